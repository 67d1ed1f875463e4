"""Write optimised files of many models, with inputs and expected outputs, for ``check.py`` to run on PyTorch's kernels.

``python tests/genuine/files.py FOLDER`` makes a folder for each model: ``model.pt`` and ``model.ptl``, ``in0.npy``...,
``out0.npy``... (what eager gives), and ``what.txt``. Needs what the tests need.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.extend(str(Path(__file__).resolve().parents[1] / name) for name in (".", "passes", "properties"))
from check import leaves
from layer_cases import Layer
from model_zoo import ZOO
from nets import NETS
from random_graphs import RandomModule, random_modules
from tensor_cases import ALL
from vulkan_cases import cases

import mobopt
from mobopt.errors import MoboptError

ZOO_SIZES = (1, 3, 96, 80)


def write(
    folder: Path, module: torch.nn.Module, inputs: Sequence[torch.Tensor], runtime: str, backend: str, scripts: bool
) -> None:
    """Optimise a module for a release and save it with its numbers; says so if that is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        expected = module.eval()(*[value.clone() for value in inputs])
        copies = tuple(value.clone() for value in inputs)
        script = (
            torch.jit.script(module) if scripts else torch.jit.trace(module, copies, check_trace=False, strict=False)
        )  # type: ignore[no-untyped-call]
    try:
        made = mobopt.optimize_for_mobile(script, backend=backend, runtime=runtime, example_inputs=list(inputs))
        made.save(folder / "model.pt")
        made._save_for_lite_interpreter(folder / "model.ptl")
    except MoboptError as error:
        print(f"{folder}: refused: {error}", flush=True)
    for name, values in (("in", inputs), ("out", leaves(expected))):
        for index, value in enumerate(values):
            np.save(folder / f"{name}{index}.npy", np.asarray(torch.as_tensor(value).detach()))
    (folder / "what.txt").write_text(f"{module}\n")


def known_models() -> Iterator[tuple[str, torch.nn.Module, Sequence[torch.Tensor], bool]]:
    """The cases tried on PyTorch's kernels before, the calls of the tests, the benchmarks' models, and small nets."""
    torch.manual_seed(1)
    for name, case in cases().items():
        yield f"case {name}", case.make(), (torch.randn(case.sizes),), False
    for name, (call, inputs) in ALL.items():
        yield f"call {name}", Layer(call), [value.contiguous() for value in inputs], False
    for name, item in ZOO.items():
        yield f"model {name}", item.build(), (torch.rand(ZOO_SIZES),), True
    for name, net in NETS.items():
        for way in net.ways:
            yield f"net {name} {way}", net.module(), net.inputs(), way == "scripted"


def random_models(count: int, start: int) -> list[RandomModule]:
    """The same modules for the same seed."""
    found: list[RandomModule] = []
    if count == 0:
        return found

    @seed(start)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(random_modules())
    def collect(module: RandomModule) -> None:
        found.append(module)

    collect()
    return found


def main() -> None:
    """Write everything for each release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", default="vulkan", choices=["vulkan", "cpu"])
    parser.add_argument("--runtime", nargs="+", default=["1.13", "2.1", "2.6"])
    parser.add_argument("--random", type=int, default=100, help="number of random models")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="PATTERN", help="regular expression in names of models")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for runtime in options.runtime:
        for name, module, inputs, scripts in known_models():
            if not re.search(options.only, name):
                continue
            folder = options.folder / runtime / re.sub(r"\W+", "_", name)
            write(folder, module, inputs, runtime, options.backend, scripts)
        for index, item in enumerate(random_models(options.random, options.seed)):
            folder = options.folder / runtime / f"random_{options.seed}_{index}"
            write(folder, item.module(), item.arguments(), runtime, options.backend, item.how == "script")
            (folder / "what.txt").write_text(repr(item))


if __name__ == "__main__":
    main()
