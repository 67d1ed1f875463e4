"""fp32 beside fp16 and bf16: bytes, times, errors, and torch on CUDA: ``python tests/benchmarks/precision.py``.

All contestants of a model take turns in one run, from a CPU tensor to a CPU tensor; the median counts. Errors are the
largest difference from eager torch in float32 on the CPU, over the output's largest magnitude.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
from models import PASSES, ZOO, Contestant, cuda_contestants, first_tensor, median_times, worst_error
from sizes import EncoderLayer

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.options import PRECISIONS, PrecisionChoice
from mobopt.passes.manager import run_passes
from mobopt.runtimes.vulkan.engine.device import Device, open_device
from mobopt.runtimes.vulkan.program import VulkanProgram


class VisionTransformer(nn.Module):
    """A ViT for images of 224 x 224 in patches of 16 (Dosovitskiy et al., 2021)."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.layers = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


def encoder() -> nn.Module:
    """Six layers of 384."""
    return nn.Sequential(*(EncoderLayer(384, 6) for _ in range(6)))


def transformer(make: Callable[[], nn.Module]) -> nn.Module:
    """With seeded weights."""
    torch.manual_seed(0)
    return make().eval()


TRANSFORMERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "encoder_6x384": (encoder, (1, 128, 384)),
    "vit_small": (lambda: VisionTransformer(384, 6, 12), (1, 3, 224, 224)),
}
MODELS = ["mobilenet_v2", "resnet18", "resnet50", "unet_bilinear", *TRANSFORMERS]


def built(name: str) -> tuple[nn.Module, Tensor]:
    """A model and its input."""
    if name in TRANSFORMERS:
        make, sizes = TRANSFORMERS[name]
        return transformer(make), torch.randn(sizes, generator=torch.Generator().manual_seed(1))
    return ZOO[name].build(), ZOO[name].example(1, 224, 224)


def halves_on_cuda(model: nn.Module, x: Tensor) -> dict[str, Contestant]:
    """torch in half precision, likewise from and to float32 on the CPU."""
    found = cuda_contestants(copy.deepcopy(model).half(), x.half())
    return {f"{name} fp16": lambda run=run: run().float() for name, run in found.items()}  # type: ignore[misc, attr-defined]


def measure(name: str, device: Device, rounds: int, seconds: float, profiles: bool) -> None:
    """Print the rows of one model."""
    model, x = built(name)
    with torch.no_grad():
        expected = first_tensor(model(x))
    program = program_from_script_module(torch.jit.script(model))
    run_passes(program, PASSES)
    runners = {p: VulkanProgram(program, device, precision=PrecisionChoice.of(p)) for p in PRECISIONS}
    contestants: dict[str, Contestant] = {
        "mobopt": lambda: runners["fp32"](x),
        "mobopt fp16": lambda: runners["fp16"](x),
        "mobopt bf16": lambda: runners["bf16"](x),
        "eager": lambda: first_tensor(model(x)),
    }
    if torch.cuda.is_available():
        contestants.update(cuda_contestants(copy.deepcopy(model), x))
        contestants.update(halves_on_cuda(model, x))
    with torch.no_grad():
        errors = {key: worst_error(first_tensor(run()), expected) for key, run in contestants.items()}
    times = median_times(contestants, rounds, seconds)
    print(f"{name} {list(x.shape)}")
    for key, milliseconds in times.items():
        print(f"  {key:18}{milliseconds:9.3f} ms   error {errors[key]:.1e}", flush=True)
    for precision, runner in runners.items():
        report = runner.plan_report([x])
        assert report.memory is not None
        peak, constants = report.memory.peak_bytes / 1e6, report.memory.constant_bytes / 1e6
        busy = f", {_busy(runner, x):.3f} ms busy" if profiles else ""
        print(f"  {precision}: {report.dispatches} dispatches{busy}, peak {peak:.2f} MB, constants {constants:.2f} MB")
        if report.halves is not None:
            print(f"    {report.halves}", flush=True)
    for runner in runners.values():
        runner.close()


def _busy(runner: VulkanProgram, x: Tensor) -> float:
    """Milliseconds of all dispatches, each at its best of a few runs."""
    runs = [runner.profile([x]) for _ in range(5)]
    return sum(min(item.duration_ns for item in each) for each in zip(*runs, strict=True)) / 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=MODELS, choices=[*ZOO, *TRANSFORMERS], metavar="NAME")
    parser.add_argument("--device", default=None, help="number or part of a name")
    parser.add_argument("--repeat", type=int, default=5, help="rounds at least")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each model's rounds")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch on the CPU")
    parser.add_argument("--profile", action="store_true", help="also say how long the device was busy")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = open_device(options.device)
    print(f"{device.info.name}; torch {torch.__version__}, {options.threads} threads")
    for name in options.models:
        measure(name, device, options.repeat, options.seconds, options.profile)


if __name__ == "__main__":
    main()
