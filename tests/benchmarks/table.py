"""Every network of the table in docs/performance.md, all precisions and rivals in one run:
``python tests/benchmarks/table.py [NAME[@BATCH] ...] [--precisions fp32,fp16,bf16] [--json FILE]``.

All contestants of a model take turns, from a CPU tensor to a CPU tensor; the median counts. Errors are the
largest difference from eager torch in float32 on the CPU, over the output's largest magnitude. ``fp32, unsplit`` is
float32 without matrix units (``no-split-products``), on devices that split floats for them.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
from models import PASSES, Contestant, cuda_contestants, first_tensor, median_times, worst_error
from table_nets import built

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.options import PRECISIONS, PrecisionChoice
from mobopt.passes.manager import run_passes
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.devices import open_device
from mobopt.runtimes.vulkan.kernels.matrix_kernels import NO_SPLIT_PRODUCTS, splits
from mobopt.runtimes.vulkan.program import VulkanProgram

ROWS = [
    *("mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "resnet18", "resnet50", "densenet121", "unet_bilinear"),
    *("encoder_6x384", "vit_small", "convnext_tiny", "gpt2_prompt", "resnet50@8", "resnet50@32"),
]
UNSPLIT = "fp32, unsplit"


def halves_on_cuda(model: nn.Module, x: Tensor) -> dict[str, Contestant]:
    """torch in half precision, likewise from and to float32 on the CPU."""
    found = cuda_contestants(copy.deepcopy(model).half(), x.half())
    return {f"{name}, fp16": lambda run=run: run().float() for name, run in found.items()}  # type: ignore[misc, attr-defined]


@contextmanager
def switched(device: Device, precision: str) -> Iterator[None]:
    """The device, with the switches by whose plans something runs."""
    info = device.info
    if precision == UNSPLIT:
        device.info = replace(info, switches=info.switches | {NO_SPLIT_PRODUCTS})
    try:
        yield
    finally:
        device.info = info


def planned(device: Device, program: Any, precision: str, x: Tensor) -> VulkanProgram:
    """A runner with its plan made."""
    with switched(device, precision):
        runner = VulkanProgram(program, device, precision=PrecisionChoice.of(precision.partition(",")[0]))
        runner(x)
        return runner


def measure(name: str, device: Device, options: argparse.Namespace) -> dict[str, Any]:
    """Print the rows of one model."""
    model, x = built(name)
    with torch.no_grad():
        expected = first_tensor(model(x))
    program = program_from_script_module(torch.jit.script(model))
    run_passes(program, PASSES)
    precisions = options.precisions.split(",")
    if splits(device.info) and "fp32" in precisions:
        precisions.insert(1, UNSPLIT)
    runners = {precision: planned(device, program, precision, x) for precision in precisions}
    contestants: dict[str, Contestant] = {
        "mobopt" if key == "fp32" else f"mobopt, {key}": lambda runner=runner: runner(x)  # type: ignore[misc]
        for key, runner in runners.items()
    }
    if torch.cuda.is_available():
        contestants.update(cuda_contestants(copy.deepcopy(model), x))
        contestants.update(halves_on_cuda(model, x))
    elif not options.no_eager:
        contestants["eager"] = lambda: first_tensor(model(x))
    with torch.no_grad():
        errors = {key: worst_error(first_tensor(run()), expected) for key, run in contestants.items()}
    times = median_times(contestants, options.repeat, options.seconds)
    print(f"{name} {list(x.shape)}")
    for key, milliseconds in times.items():
        print(f"  {key:22}{milliseconds:9.3f} ms   error {errors[key]:.1e}", flush=True)
    devices = {}
    for key, runner in runners.items():
        with switched(device, key):
            devices[key] = described(key, runner, x)
        runner.close()
    return {"times": times, "errors": errors, "devices": devices}


def described(precision: str, runner: VulkanProgram, x: Tensor) -> dict[str, float]:
    """Print and give what a plan does on the device."""
    report = runner.plan_report([x])
    assert report.memory is not None
    peak, constants = report.memory.peak_bytes / 1e6, report.memory.constant_bytes / 1e6
    runs = [runner.profile([x]) for _ in range(5)]
    busy = sum(min(item.duration_ns for item in each) for each in zip(*runs, strict=True)) / 1e6
    text = f"{report.dispatches} dispatches, {busy:.3f} ms busy, peak {peak:.2f} MB, constants {constants:.2f} MB"
    print(f"  {precision}: {text}")
    if report.halves is not None:
        print(f"    {report.halves}", flush=True)
    return {"dispatches": report.dispatches, "busy_ms": busy, "peak_mb": peak}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=ROWS, metavar="NAME[@BATCH]")
    parser.add_argument("--precisions", default="fp32,fp16", help=f"of {', '.join(PRECISIONS)}")
    parser.add_argument("--device", default=None, help="number or part of a name")
    parser.add_argument("--repeat", type=int, default=5, help="rounds at least")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each model's rounds")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch on the CPU")
    parser.add_argument("--no-eager", action="store_true", help="leave torch on the CPU out")
    parser.add_argument("--json", type=Path, help="write all figures there as well")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = open_device(options.device)
    print(f"{device.info.name}; torch {torch.__version__}, {options.threads} threads")
    found: dict[str, Any] = {}
    for name in options.models:
        found[name] = measure(name, device, options)
        if options.json:
            options.json.write_text(json.dumps({"device": device.info.name, "models": found}, indent=1))


if __name__ == "__main__":
    main()
