"""Models that look at elements: what a turn of a loop costs, and how many plans calls make:
``python tests/benchmarks/loops.py [device]``. Every call has other elements; times are CPU seconds of the whole process
and the clock's, medians of calls after the first.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine.devices import open_device
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.runtimes.vulkan.segment_builder import SegmentBuilder

CALLS = 6


class Climbs(nn.Module):
    """27 turns of a layer, steered by a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        total = y.sum() * 0.0
        while bool(total.sum() < 26.5):
            y = torch.tanh(self.layer(y))
            total = total + 1.0
        return y


class Decodes(nn.Module):
    """Greedy decoding of 24 tokens over a growing sequence, with a stop that never comes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(101, 32)
        self.cell = nn.GRUCell(32, 32)
        self.head = nn.Linear(32, 100)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        tokens = torch.zeros(1, 1, dtype=torch.int64)
        for _ in range(24):
            hidden = self.cell(self.table(tokens[:, -1]), hidden)
            token = self.head(hidden).argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, token], 1)
            if bool(token == 100):
                break
        return tokens


class Scales(nn.Module):
    """Layers after a division by a number of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x / x.abs().max().item())
        return y


class Selects(nn.Module):
    """Layers on the rows that a mask chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x[:, 0]
        y: torch.Tensor = self.layers(x[scores > scores.median()])
        return y


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "while, 27 turns": (Climbs, (8, 64), 27),
    "greedy decoding, 24 turns": (Decodes, (1, 32), 24),
    "divided by item()": (Scales, (8, 64), 1),
    "rows of a mask": (Selects, (33, 64), 1),
}


class Plans:
    """Counts plans as they are made."""

    def __init__(self) -> None:
        self._count, build = 0, SegmentBuilder.build

        def counted(*args: Any) -> Any:
            self._count += 1
            return build(*args)

        SegmentBuilder.build = counted  # type: ignore[method-assign]

    def taken(self) -> int:
        """How many were made since the last time."""
        count, self._count = self._count, 0
        return count


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?")
    torch.set_num_threads(1)
    device = open_device(parser.parse_args().device)
    plans = Plans()
    logging.getLogger("mobopt.vulkan").setLevel(logging.ERROR)
    print(f"{'':28}{'plans':>12}{'first call':>24}{'later calls':>24}{'a turn':>12}")
    for name, (make, sizes, turns) in MODELS.items():
        torch.manual_seed(0)
        program = VulkanProgram(program_from_script_module(torch.jit.script(make().eval())), device)
        times, made = [], []
        for _ in range(CALLS):
            x = torch.randn(sizes)
            started = time.process_time(), time.perf_counter()
            program.run("forward", [x])
            times.append((time.process_time() - started[0], time.perf_counter() - started[1]))
            made.append(plans.taken())
        (first_cpu, first), (cpu, later) = times[0], map(statistics.median, zip(*times[1:], strict=True))
        counts = f"{made[0]} + {statistics.median(made[1:]):.0f}"
        both = f"{first_cpu * 1e3:.1f} ms CPU, {first * 1e3:.1f}", f"{cpu * 1e3:.1f} ms CPU, {later * 1e3:.1f}"
        print(f"{name:28}{counts:>12}{both[0]:>24}{both[1]:>24}{cpu / turns * 1e3:9.2f} ms")
        program.close()


if __name__ == "__main__":
    main()
