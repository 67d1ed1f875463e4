"""Two sets of compiled shaders beside each other: ``python tests/benchmarks/shaders.py FOLDER [MODEL ...]``.

The folder has ``.spv`` files of the same names and interfaces as those of ``shaders/spirv``, in whose place they are
tried: a build of another commit's sources, say. Each set has a device of its own, and all take turns in one process,
from a CPU tensor to a CPU tensor, as processes differ by more than what most changes of a shader do. The installed set
runs twice: what its two medians differ by is noise. The exit code is 1 if a result has other bits.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from models import PASSES, Contestant, first_tensor, median_times
from table_nets import built

from mobopt import shaders
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.options import PrecisionChoice
from mobopt.passes.manager import run_passes
from mobopt.runtimes.vulkan.engine import devices
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

MODELS = ["mobilenet_v2", "resnet50", "encoder_6x384", "vit_small"]


def measure(name: str, precision: str, sets: dict[str, Path], args: argparse.Namespace) -> bool:
    """Print the row of a model; gives whether all results have the same bits."""
    model, x = built(name)
    program = program_from_script_module(torch.jit.script(model))
    run_passes(program, PASSES)
    runners: dict[str, VulkanProgram] = {}
    results = []
    for key, folder in sets.items():
        shaders.SPIRV_FOLDER = folder
        runners[key] = VulkanProgram(program, opened(key, args.device), precision=PrecisionChoice.of(precision))
        results.append(first_tensor(runners[key](x)).clone())  # planned now, by these shaders
    contestants: dict[str, Contestant] = {key: lambda runner=runner: runner(x) for key, runner in runners.items()}  # type: ignore[misc]
    times = median_times(contestants, args.rounds, args.seconds)
    same = all(torch.equal(result, results[0]) for result in results)
    shown = "  ".join(f"{key} {taken:.4f} ({taken / times['mobopt'] - 1:+.1%})" for key, taken in times.items())
    print(f"{name} {precision}: {shown}{'' if same else '  other bits'}", flush=True)
    for runner in runners.values():
        runner.close()
    return same


_OPENED: dict[str, Device] = {}


def opened(key: str, selector: str | None) -> Device:
    """The device of a set of shaders, whose pipelines are its own."""
    if key not in _OPENED:
        devices._devices.clear()  # or the one of another set would be given back
        _OPENED[key] = devices.open_device(selector)
    return _OPENED[key]


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of .spv files")
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--precisions", default="fp32,fp16")
    parser.add_argument("--device", help="number or part of a name")
    parser.add_argument("--rounds", type=int, default=5, help="at least")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each model's rounds")
    args = parser.parse_args()
    others = list(args.folder.glob("*.spv"))
    if not others:
        parser.error(f"{args.folder} has no .spv files")
    with TemporaryDirectory() as folder:
        other = Path(folder) / "spirv"
        shutil.copytree(shaders.SPIRV_FOLDER, other)
        for file in others:
            shutil.copy(file, other)
        sets = {"mobopt": shaders.SPIRV_FOLDER, "other": other, "mobopt again": shaders.SPIRV_FOLDER}
        rows = [
            measure(name, precision, sets, args) for name in args.models for precision in args.precisions.split(",")
        ]
    return 0 if all(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
