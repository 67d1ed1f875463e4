"""Steps without barriers beside those with them: equal bits, and times: ``python tests/benchmarks/chains.py``.

Both take turns in one process, from a CPU tensor to a CPU tensor; the median counts. The exit code is 1 if a result has
other bits, or if a dispatch has waited in vain.
"""

from __future__ import annotations

import argparse
import sys
from itertools import cycle, islice
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from models import PASSES, Contestant, cuda_contestants, first_tensor, median_times
from table_nets import built

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.options import PrecisionChoice
from mobopt.passes.manager import run_passes
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.devices import open_device
from mobopt.runtimes.vulkan.program import VulkanProgram

MODELS = ["mobilenet_v2", "resnet18", "resnet50", "efficientnet_b0", "unet_bilinear", "encoder_6x384", "vit_small"]


def measure(name: str, precision: str, device: Device, args: argparse.Namespace) -> int:
    """Print the row of a model; gives how many results had other bits."""
    model, x = built(name)
    program = program_from_script_module(torch.jit.script(model))
    run_passes(program, PASSES)
    runners = {key: VulkanProgram(program, device, precision=PrecisionChoice.of(precision)) for key in ("old", "new")}
    device.chains = False  # not by the switch: with it other kernels may be chosen
    torch.manual_seed(4)
    inputs = [x, *(torch.randn_like(x) for _ in range(2))]  # of equal ones, what is old in a cache may be equal, too
    expected = [first_tensor(runners["old"](given)).clone() for given in inputs]  # planned now
    device.chains = True
    turns = islice(cycle(zip(inputs, expected, strict=True)), args.repeats)
    wrong = sum(not torch.equal(first_tensor(runners["new"](given)), right) for given, right in turns)
    waited_in_vain = not device.chains
    contestants: dict[str, Contestant] = {
        "mobopt": lambda: runners["new"](x),
        "barriers": lambda: runners["old"](x),
    }
    if torch.cuda.is_available():
        contestants.update(cuda_contestants(model, x))
    times = median_times(contestants, args.rounds, args.seconds)
    shown = "  ".join(f"{key} {milliseconds:.3f}" for key, milliseconds in times.items())
    print(
        f"{name} {precision}: {wrong} of {args.repeats} differ{', waited in vain' if waited_in_vain else ''}  {shown}",
        flush=True,
    )
    return wrong + waited_in_vain


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--precision", default="fp32,fp16")
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.1)
    args = parser.parse_args()
    device = open_device()
    wrong = sum(measure(name, one, device, args) for name in args.models for one in args.precision.split(","))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
