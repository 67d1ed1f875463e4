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
from pathlib import Path

import numpy as np
import torch

TOLERANCE = 1e-4
"""Of the output's scale."""
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


def numbers(folder, name):
    """Saved arrays, in order."""
    return [
        np.load(str(path)) for path in sorted(folder.glob(name + "*.npy"), key=lambda path: int(path.stem[len(name) :]))
    ]


def difference(found, expected):
    """Largest difference by the scale of what is expected; infinite where only one is finite, or sizes differ."""
    found = torch.as_tensor(found).cpu().float().numpy()
    expected = expected.astype(np.float32)
    if found.shape != expected.shape or not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return float("inf")
    finite = np.isfinite(expected)
    scale = max(1e-6, float(np.abs(expected[finite]).max(initial=0)))
    return float(np.abs(found[finite] - expected[finite]).max(initial=0)) / scale


def run(path, repeats, poison):
    """The worst difference of all runs of a file."""
    inputs = [torch.from_numpy(array) for array in numbers(path.parent, "in")]
    expected = numbers(path.parent, "out")
    worst = 0.0
    with torch.inference_mode():
        module = load(path)
        for _ in range(repeats):
            if poison:
                leave_nan()
            found = leaves(module(*[value.clone() for value in inputs]))
            worst = max([worst, *(difference(*pair) for pair in zip(found, expected, strict=True))])
    return worst


def run_apart(path, repeats, poison):
    """As :func:`run`, in a process of its own, which a kernel may end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        try:
            answer = {"worst": run(path, repeats, poison)}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:600]}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"error": f"the process ended with status {status}"}


def main():
    """Run every file below the folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--library", help="shared library with kernels to load first")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--poison", action="store_true", help="leave NaN in memory before every run")
    options = parser.parse_args()
    if options.library:
        torch.ops.load_library(options.library)
    torch.set_num_threads(1)
    torch._C._jit_set_texpr_fuser_enabled(False)  # phones have none; 2.6's compiles depthwise convolutions for minutes
    paths = sorted(path for folder in options.folders for path in folder.rglob("model.pt*"))
    bad, worst = 0, 0.0
    for path in paths:
        answer = run_apart(path, options.repeats, options.poison)
        if answer.get("worst", float("inf")) > TOLERANCE:
            bad += 1
            print(f"{path}: {answer}", flush=True)
        else:
            worst = max(worst, answer["worst"])
    print(f"torch {torch.__version__}: {len(paths)} files, {bad} wrong; worst difference of the others {worst:.1e}")
    sys.exit(1 if bad or not paths else 0)


if __name__ == "__main__":
    main()
