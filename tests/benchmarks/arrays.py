"""Three models in a chain with and without copies through the host, calls in flight, and a cache as state:
``python tests/benchmarks/arrays.py [device]``. Rounds alternate between the contestants; medians count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.devices import open_device
from mobopt.runtimes.vulkan.program import VulkanProgram

Contestant = Callable[[], object]
ROUNDS, CALLS = 15, 6


class Cache(nn.Module):
    """Attention of one query over a cache of keys, into which it is written."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(length, width))

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(0, place, x)
        return torch.softmax(x @ self.keys.t(), 1) @ self.keys


def program_of(model: nn.Module, device: Device) -> VulkanProgram:
    """A model on a device."""
    return VulkanProgram(program_from_script_module(torch.jit.script(model.eval())), device)


def convolutions(channels: int) -> nn.Module:
    """A model of two convolutions."""
    layers = [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)]
    return nn.Sequential(*layers)


def chain(device: Device, channels: int, size: int) -> dict[str, Contestant]:
    """Three models one after the other."""
    programs = [program_of(convolutions(channels), device) for _ in range(3)]
    x = torch.rand(1, channels, size, size)
    array = DeviceArray.from_tensor(device, x)

    def through_the_host() -> Any:
        value: Any = x
        for program in programs:
            value = program.run("forward", [value])
        return value

    def on_the_device(start: Any) -> Any:
        for program in programs:
            start = program.run_on_device("forward", [start])
        return start

    return {
        "three models, tensors": through_the_host,
        "three models, arrays between": lambda: on_the_device(x).tensor(),
        "three models, arrays only": lambda: on_the_device(array),
    }


def in_flight(device: Device, channels: int, size: int) -> dict[str, Contestant]:
    """Eight calls of one model."""
    program = program_of(convolutions(channels), device)
    x = torch.rand(1, channels, size, size)

    def submitted() -> list[Any]:
        futures: list[Future[Any]] = [program.submit("forward", [x]) for _ in range(8)]
        return [future.result() for future in futures]

    return {
        "eight calls, one after the other": lambda: [program.run("forward", [x]) for _ in range(8)],
        "eight calls, two in flight": submitted,
    }


def cache(device: Device, length: int, width: int) -> dict[str, Contestant]:
    """A step with a cache on the device, and with one that the caller has too, so that each call uploads it."""
    on_device, on_host = (program_of(Cache(length, width), device) for _ in range(2))
    on_host.model_state.share()
    x, place = torch.rand(1, width), torch.tensor([3])
    return {
        f"cache of {length} x {width}, on the host": lambda: on_host.run("forward", [x, place]),
        f"cache of {length} x {width}, on the device": lambda: on_device.run("forward", [x, place]),
    }


def measured(contestants: dict[str, Contestant]) -> dict[str, float]:
    """Milliseconds of each, the median of rounds."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()
        run()
    for _ in range(ROUNDS):
        for name, run in contestants.items():
            started = time.perf_counter()
            for _ in range(CALLS):
                run()
            times[name].append((time.perf_counter() - started) / CALLS * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?")
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--length", type=int, default=4096)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = open_device(arguments.device)
    print(f"{device.info.name}; milliseconds, median of {ROUNDS} rounds of {CALLS}")
    groups = [
        chain(device, arguments.channels, arguments.size),
        in_flight(device, arguments.channels, arguments.size),
        cache(device, arguments.length, 64),
    ]
    for contestants in groups:
        for name, milliseconds in measured(contestants).items():
            print(f"{name:44} {milliseconds:9.3f}")


if __name__ == "__main__":
    main()
