"""Run files on PyTorch's own kernels and compare with what eager gave: ``python3 check.py FOLDER...``.

Runs in an environment of its own, with a PyTorch that has the Vulkan backend and with numpy, without mobopt: see the
README beside it. Each file runs in a process of its own, several times, by the full and by the lite loader. Exit code 1
if one does not load, does not run or gives other numbers.
"""

import argparse
import json
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

TOLERANCE = 1e-4
"""Of the output's scale."""
HALVES = 20
"""How many times more halves may differ: two of their steps."""
SECONDS = 100


def leaves(value):
    """The tensors and numbers of a nest, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [] if value is None else [value]


def load(path):
    """A module, by the loader that its kind is for."""
    if path.suffix == ".ptl":
        from torch.jit.mobile import _load_for_lite_interpreter

        return _load_for_lite_interpreter(str(path))
    return torch.jit.load(str(path))


def leave_nan():
    """Leave NaN in the memory that the GPU's tensors and copies to and from it are made of."""
    for size in (
        (1, 4, 2, 2),
        (1, 4, 4, 4),
        (1, 4, 8, 8),
        (1, 8, 8, 8),
        (1, 4, 16, 16),
        (1, 4, 32, 32),
        (1, 4, 64, 64),
    ):
        for tensor in [torch.full(size, float("nan")).to("vulkan") for _ in range(6)]:
            tensor.cpu()


class Call:
    """A method of a file, its arguments, and what eager gave."""

    def __init__(self, path):
        module, told = load(path), json.loads((path.parent / "call.json").read_text())
        self.function = module if told["method"] == "forward" else method_of(module, told["method"])
        self.arguments = [
            torch.from_numpy(np.load(str(path.parent / value))) if isinstance(value, str) else value
            for value in told["arguments"]
        ]
        results = sorted(path.parent.glob("out*.npy"), key=lambda found: int(found.stem[3:]))
        self.expected = [np.load(str(result)) for result in results]

    def worst(self):
        """The largest difference of one run."""
        given = [value.clone() if isinstance(value, torch.Tensor) else value for value in self.arguments]
        pairs = zip(leaves(self.function(*given)), self.expected, strict=True)
        return max((difference(*pair) for pair in pairs), default=0.0)


def method_of(module, name):
    """A method other than ``forward``, by the loader's own way."""
    if isinstance(module, torch.jit.ScriptModule):
        return getattr(module, name)
    return lambda *arguments: module.run_method(name, *arguments)


def difference(found, expected):
    """Largest difference by the scale of what is expected; infinite where only one is finite, or sizes differ."""
    steps = HALVES if expected.dtype == np.float16 else 1
    found = torch.as_tensor(found).cpu().float().numpy()
    expected = expected.astype(np.float32)
    if found.shape != expected.shape or not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return float("inf")
    finite = np.isfinite(expected)
    scale = max(1e-6, float(np.abs(expected[finite]).max(initial=0)))
    return float(np.abs(found[finite] - expected[finite]).max(initial=0)) / scale / steps


def run(paths, repeats, poison):
    """The worst difference of all runs of each file, or what went wrong; files are called in turn."""
    answers = {str(path): {"worst": 0.0} for path in paths}
    calls = {}
    with torch.inference_mode():
        for path in paths:
            with kept(answers[str(path)]):
                calls[str(path)] = Call(path)
        for _ in range(repeats):
            for name, call in calls.items():
                if poison:
                    leave_nan()
                with kept(answers[name]):
                    answers[name]["worst"] = max(answers[name]["worst"], call.worst())
    return answers


@contextmanager
def kept(answer):
    """An error goes into the answer."""
    try:
        yield
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {error}"[:600]


def run_apart(paths, repeats, poison):
    """As :func:`run`, in a process of its own, which a kernel may end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS * len(paths))
        os.write(writer, json.dumps(run(paths, repeats, poison)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    ended = {str(path): {"error": f"the process ended with status {status}"} for path in paths}
    return json.loads(text) if text else ended


def main():
    """Run every file below the folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--library", help="shared library with kernels to load first")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--together", type=int, default=1, help="files that are called in turn in one process")
    parser.add_argument("--poison", action="store_true", help="leave NaN in memory before every run")
    options = parser.parse_args()
    if "qnnpack" in torch.backends.quantized.supported_engines:
        torch.backends.quantized.engine = "qnnpack"  # as on phones
    if options.library:
        torch.ops.load_library(options.library)
    torch.set_num_threads(1)
    torch._C._jit_set_texpr_fuser_enabled(False)  # phones have none; 2.6's compiles depthwise convolutions for minutes
    paths = sorted(path for folder in options.folders for path in folder.rglob("model.pt*"))
    bad, worst = 0, 0.0
    for start in range(0, len(paths), options.together):
        answers = run_apart(paths[start : start + options.together], options.repeats, options.poison)
        for name, answer in answers.items():
            if "error" in answer or answer["worst"] > TOLERANCE:
                bad += 1
                print(f"{name}: {answer}", flush=True)
            else:
                worst = max(worst, answer["worst"])
    print(f"torch {torch.__version__}: {len(paths)} files, {bad} wrong; worst difference of the others {worst:.1e}")
    sys.exit(1 if bad or not paths else 0)


if __name__ == "__main__":
    main()
