"""What sizes cost that were not seen before: ``python tests/benchmarks/sizes.py [device]``.

CPU time of the host, for plans alone: the device computes nothing but in the column of calls. That of the thread that
plans is told apart from that of all threads, in which drivers make the pipelines that no earlier size needed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mobopt.optimizer import optimize_for_mobile
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.devices import open_device
from mobopt.runtimes.vulkan.program import VulkanProgram

TRIALS = 24
"""Sizes that are met after those that the model is traced for."""


class Attention(nn.Module):
    """Self-attention, as products and a softmax."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.inputs(x).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5, -1)
        return self.outputs((weights @ v).transpose(1, 2).reshape(n, length, width))


class EncoderLayer(nn.Module):
    """A layer of a transformer that normalises first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.layers(self.second(x))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int, groups: int) -> list[nn.Module]:
    padding = kernel // 2
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU6()]


class Inverted(nn.Module):
    """The block of MobileNetV2."""

    def __init__(self, inputs: int, outputs: int, stride: int, factor: int) -> None:
        super().__init__()
        inner = inputs * factor
        layers = _convolution(inputs, inner, 1, 1, 1) if factor > 1 else []
        layers += _convolution(inner, inner, 3, stride, inner) + _convolution(inner, outputs, 1, 1, 1)[:2]
        self.layers, self.is_residual = nn.Sequential(*layers), stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.is_residual else self.layers(x)


def mobilenet() -> nn.Module:
    """MobileNetV2 of width 1 (Sandler et al., 2018)."""
    rows = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    layers, channels = _convolution(3, 32, 3, 2, 1), 32
    for factor, outputs, count, stride in rows:
        for number in range(count):
            layers.append(Inverted(channels, outputs, stride if number == 0 else 1, factor))
            channels = outputs
    layers += [*_convolution(320, 1280, 1, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers)


def image_sizes(channels: int, largest: int, draw: random.Random) -> list[tuple[int, ...]]:
    """Images, none twice."""
    sides = [(h, w) for h in range(largest // 2, largest) for w in range(largest // 2, largest)]
    return [(1, channels, *side) for side in draw.sample(sides, TRIALS + 4)]


def cases(draw: random.Random) -> dict[str, tuple[nn.Module, Sequence[tuple[int, ...]]]]:
    """Models, with the sizes that they meet."""
    lengths = draw.sample(range(16, 129), TRIALS + 4)
    return {
        "a block of MobileNetV2": (Inverted(32, 32, 1, 6), image_sizes(32, 56, draw)),
        "MobileNetV2": (mobilenet(), image_sizes(3, 224, draw)),
        "6 encoder layers, 384 wide": (
            nn.Sequential(*(EncoderLayer(384, 6) for _ in range(6))),
            [(1, length, 384) for length in lengths],
        ),
    }


def planned(program: VulkanProgram, size: Sequence[int]) -> tuple[float, float]:
    """CPU time of a plan in this thread, and in all of them, in ms."""
    x = torch.rand(*size)
    thread, process = time.thread_time(), time.process_time()
    program.plan_report([x])
    return (time.thread_time() - thread) * 1e3, (time.process_time() - process) * 1e3


def measure(name: str, model: nn.Module, sizes: Sequence[tuple[int, ...]], device: Device) -> str:
    """A row of the table."""
    x = torch.rand(*sizes[0])
    module = optimize_for_mobile(torch.jit.script(model.eval()), backend="vulkan", runtime="mobopt", example_inputs=[x])
    program = VulkanProgram(module.program, device)
    known = [planned(program, size) for size in sizes[:4]]
    later = [planned(program, size) for size in sizes[4:]]
    program.run("forward", [x])
    start = time.perf_counter()
    for _ in range(10):
        program.run("forward", [x])
    call = (time.perf_counter() - start) * 100
    program.close()
    first, *others = [process for _, process in known]
    threads, processes = zip(*later, strict=True)
    numbers = [first, max(others), min(threads), statistics.median(threads), max(threads), max(processes), call]
    return " | ".join([f"| {name}", *(f"{number:.1f}" for number in numbers)]) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?")
    device = open_device(parser.parse_args().device)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(
        "| model | first size | most of three more | best of 24 more | median | worst | worst, all threads "
        "| call of a known size |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, (model, sizes) in cases(random.Random(1)).items():
        print(measure(name, model, sizes, device), flush=True)


if __name__ == "__main__":
    main()
