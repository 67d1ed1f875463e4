"""Latency and memory of whole models on a device, beside torch in the same run: ``python tests/benchmarks/models.py``.

Rounds alternate between the contestants, so that a busy machine slows them alike; the median counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from model_zoo import ZOO, ZooModel, worst_error

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.options import OWN_RUNTIME, Settings
from mobopt.passes.manager import run_passes
from mobopt.passes.pipelines import pipeline_for
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.devices import open_device
from mobopt.runtimes.vulkan.program import VulkanProgram

Contestant = Callable[[], object]

PASSES = pipeline_for(Settings("vulkan", OWN_RUNTIME))
"""For mobopt's own runtime: what is rewritten for phones is not what a desktop should run."""
UNTIMED, TIMED = 2, 3
"""Calls of a contestant in each round."""


@dataclass(frozen=True)
class Row:
    """One model's figures; times are medians, in milliseconds."""

    model: str
    error: float
    times: dict[str, float]
    first_ms: float
    plan_ms: float
    dispatches: int
    fallbacks: int
    peak_bytes: int
    lower_bound_bytes: int


def cuda_contestants(model: torch.nn.Module, x: torch.Tensor) -> dict[str, Contestant]:
    """torch on a CUDA device, from a CPU tensor to a CPU tensor: eager, and one captured graph."""
    twin, static = model.cuda(), x.cuda()
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            twin(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = first_tensor(twin(static))

    def replay() -> torch.Tensor:
        static.copy_(x)
        graph.replay()
        return captured.cpu()

    return {"cuda eager": lambda: first_tensor(twin(x.cuda())).cpu(), "cuda graph": replay}


def first_tensor(result: object) -> torch.Tensor:
    """The tensor that a classifier or a segmentation model is about."""
    if isinstance(result, dict):
        return next(iter(result.values()))
    return result[0] if isinstance(result, tuple) else result  # type: ignore[return-value]


def measure(zoo_model: ZooModel, device: Device, x: torch.Tensor, rounds: int, seconds: float, compiles: bool) -> Row:
    """Build, run and compare one model; also by ``torch.compile(model, backend="mobopt")`` if asked."""
    model = zoo_model.build()
    with torch.no_grad():
        expected = model(x)
    program = program_from_script_module(torch.jit.script(model))
    run_passes(program, PASSES)
    runner = VulkanProgram(program, device)
    started = time.perf_counter()
    found = runner(x)
    first = time.perf_counter() - started
    contestants: dict[str, Contestant] = {"mobopt": lambda: runner(x), "eager": lambda: model(x)}
    if torch.cuda.is_available():
        contestants.update(cuda_contestants(zoo_model.build(), x))
    if compiles:
        compiled = torch.compile(zoo_model.build(), backend="mobopt")
        with torch.no_grad():
            error = worst_error(first_tensor(compiled(x)), first_tensor(expected))
        assert error < 1e-4, f"torch.compile gives other numbers: {error}"
        contestants["compiled"] = lambda: compiled(x)
    times = median_times(contestants, rounds, seconds)
    report = runner.plan_report([x])
    runner.close()
    assert report.memory is not None
    return Row(
        zoo_model.name,
        worst_error(first_tensor(found), first_tensor(expected)),
        times,
        first * 1e3,
        report.build_seconds * 1e3,
        report.dispatches,
        len(report.fallbacks),
        report.memory.peak_bytes,
        report.memory.lower_bound_bytes,
    )


def median_times(contestants: dict[str, Contestant], rounds: int, seconds: float) -> dict[str, float]:
    """The median time of each contestant in milliseconds, over at least ``rounds`` rounds and ``seconds`` of work.

    In each round everyone is called some times untimed, since a processor or a pool of threads that was idle is slow to
    wake, and then timed.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    deadline = time.perf_counter() + seconds
    with torch.no_grad():
        while len(times["mobopt"]) < rounds * TIMED or time.perf_counter() < deadline:
            for name, run in contestants.items():
                for call in range(UNTIMED + TIMED):
                    started = time.perf_counter()
                    run()
                    if call >= UNTIMED:
                        times[name].append((time.perf_counter() - started) * 1e3)
    return {name: statistics.median(each) for name, each in times.items()}


def print_profile(zoo_model: ZooModel, device: Device, x: torch.Tensor, lines: int) -> None:
    """The dispatches that take longest, those of the same label together."""
    program = program_from_script_module(torch.jit.script(zoo_model.build()))
    run_passes(program, PASSES)
    runner = VulkanProgram(program, device)
    runner(x)
    profiles = [runner.profile([x]) for _ in range(5)]
    best = [min(run[index].duration_ns for run in profiles) for index in range(len(profiles[0]))]
    totals: dict[str, list[float]] = {}
    for item, duration in zip(profiles[0], best, strict=True):
        totals.setdefault(item.label, []).append(duration / 1e6)
    print(f"  {sum(best) / 1e6:.2f} ms on the device")
    for label, each in sorted(totals.items(), key=lambda pair: -sum(pair[1]))[:lines]:
        print(f"  {sum(each):8.3f} ms  {len(each):3d} x  {label}")
    runner.close()


def print_row(row: Row, header: bool) -> None:
    """One line of the table, after its head if asked."""
    if header:
        names = "".join(f"{name:>11}" for name in row.times)
        print(
            f"{'model':22}{names}{'/eager':>8}{'error':>9}{'disp':>6}{'cpu':>5}{'plan':>8}{'first':>9}{'peak':>9}{'/lower':>8}"
        )
    values = "".join(f"{value:9.2f}ms" for value in row.times.values())
    ratio = row.times["mobopt"] / row.times["eager"]
    print(
        f"{row.model:22}{values}{ratio:7.2f}x{row.error:9.1e}{row.dispatches:6d}{row.fallbacks:5d}{row.plan_ms:6.0f}ms"
        f"{row.first_ms:7.0f}ms{row.peak_bytes / 1e6:7.1f}MB{row.peak_bytes / row.lower_bound_bytes:8.3f}",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(ZOO), choices=list(ZOO), metavar="NAME")
    parser.add_argument("--device", default=None, help="number or part of a name")
    parser.add_argument("--repeat", type=int, default=5, help="rounds at least")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each model's rounds")
    parser.add_argument("--size", type=int, nargs=3, default=(1, 224, 224), metavar=("BATCH", "HEIGHT", "WIDTH"))
    parser.add_argument("--threads", type=int, default=2, help="threads of torch on the CPU")
    parser.add_argument("--profile", type=int, default=0, metavar="LINES", help="also print the longest dispatches")
    parser.add_argument("--compile", action="store_true", help="also measure torch.compile with mobopt as its backend")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = open_device(options.device)
    print(f"{device.info.name}; torch {torch.__version__}, {options.threads} threads; input {options.size}")
    for number, name in enumerate(options.models):
        x = ZOO[name].example(*options.size)
        row = measure(ZOO[name], device, x, options.repeat, options.seconds, options.compile)
        print_row(row, header=number == 0)
        if options.profile:
            print_profile(ZOO[name], device, x, options.profile)


if __name__ == "__main__":
    main()
