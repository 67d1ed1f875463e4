"""Tells up to how many workgroups a dispatch should wait for others by a counter, rather than by a barrier.

That isn't a cost of a kernel: it depends on what runs before and after. So stretches of networks are timed, with
several limits, each dispatch as a network has it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count, cycle, islice

import torch

from mobopt.runtimes.vulkan.engine.chains import may_chain
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.stream import Dispatch, Stream
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, device_costs
from mobopt.runtimes.vulkan.kernels.matrix_kernels import units_lanes
from mobopt.runtimes.vulkan.tuning.result import LEAST_GAIN, ChainsTuning, StretchTimes
from mobopt.runtimes.vulkan.tuning.stretches import STRETCHES, PreparedStretch, Stretch

_LIMITS = (0, 1, 2, 4, 6, 10, 20)
"""Workgroups a core that are tried, beside what the device has now; 0: barriers alone."""
_LEAST_ROUNDS = 4
"""The first one warms up."""
_INPUTS = 3
"""That take turns when results are compared: what is old in a cache would be right if they were all the same."""
_REPEATS = 30

Show = Callable[[str], None]


@dataclass(eq=False)
class _Run:
    """A stretch that is ready to run, with one choice of who waits by a counter."""

    executable: Executable
    times: list[float] = field(default_factory=list)
    """The two least, in nanoseconds."""
    is_warm: bool = False

    def time(self) -> None:
        """Run it once, and note how long it took, unless it was the first time."""
        start = time.perf_counter()
        self.executable.run([])
        if self.is_warm:
            self.times = sorted([*self.times, (time.perf_counter() - start) * 1e9])[:2]
        self.is_warm = True


def tune_chains(device: Device, seconds: float, show: Show, stretches: Sequence[Stretch] = STRETCHES) -> ChainsTuning:
    """Measure stretches of networks, and choose the limit by which they take least time together.

    Args:
        device: one whose dispatches may wait by counters, see
            :func:`mobopt.runtimes.vulkan.kernels.device_costs.can_chain`.
        seconds: for measuring, after every run was made a few times.
        show: is told each step.
        stretches: what is measured.

    Raises:
        DeviceError: the device failed.
    """
    info = device.info
    costs = device_costs(info)
    if not units_lanes(info, costs):
        stretches = [stretch for stretch in stretches if not stretch.are_halves]
    before = costs.chained_workgroups_per_core
    limits = sorted({*_LIMITS, before})
    prepared = [PreparedStretch(stretch) for stretch in stretches]
    times = _measured(device, prepared, limits, seconds, show)
    found = choose_limit(times, before)
    if device.chains and found.after:
        show("comparing results of steps without barriers")
    if device.chains and (not found.after or _are_right(device, prepared, found.after)):
        return found
    return replace(found, after=0, is_right=False)


def choose_limit(stretches: Sequence[StretchTimes], before: int) -> ChainsTuning:
    """The limit by which stretches take least time together, a mean of ratios; what the device has now where others
    gain no more than noise."""
    shares = {
        limit: math.exp(statistics.fmean(math.log(one.nanoseconds[limit] / one.nanoseconds[0]) for one in stretches))
        for limit in stretches[0].nanoseconds
    }
    noise = statistics.median(one.noise for one in stretches)
    best = min(shares, key=shares.__getitem__)
    is_gain = shares[best] * (1 + max(noise, LEAST_GAIN)) < shares[before]
    return ChainsTuning(before, best if is_gain else before, shares, tuple(stretches), noise)


def _measured(
    device: Device, prepared: Sequence[PreparedStretch], limits: Sequence[int], seconds: float, show: Show
) -> list[StretchTimes]:
    """Times by limit. All runs take turns, so that what disturbs one disturbs all."""
    with ExitStack() as opened:
        runs = []
        for item in prepared:
            show(f"preparing {item.stretch}")
            runs.append(_runs(device, item.stream(device.info), limits, opened))
        every = [run for by_limit in runs for run in dict.fromkeys(by_limit.values())]
        show(f"measuring {len(prepared)} stretches of networks, with barriers and without")
        deadline = time.perf_counter() + seconds
        for number in count():
            if number >= _LEAST_ROUNDS and time.perf_counter() > deadline:
                break
            for run in every:
                run.time()
        return [_told(item.stretch, by_limit) for item, by_limit in zip(prepared, runs, strict=True)]


def _runs(device: Device, stream: Stream, limits: Sequence[int], opened: ExitStack) -> dict[int, _Run]:
    """Runs by limit; limits by which the same dispatches wait have one run."""
    by_limit: dict[int, _Run] = {}
    by_waiting: dict[tuple[bool, ...], _Run] = {}
    for limit in limits:
        most = limit * core_count(device.info)
        waiting = tuple(isinstance(step, Dispatch) and may_chain(step, most) for step in stream.operations)
        if waiting not in by_waiting:
            executable = Executable(device, replace(stream, chained_workgroups=most))
            opened.callback(executable.close)
            by_waiting[waiting] = _Run(executable)
        by_limit[limit] = by_waiting[waiting]
    return by_limit


def _told(stretch: Stretch, by_limit: Mapping[int, _Run]) -> StretchTimes:
    runs = set(by_limit.values())
    noise = statistics.median(run.times[1] / run.times[0] - 1 for run in runs)
    return StretchTimes(str(stretch), {limit: run.times[0] for limit, run in by_limit.items()}, noise)


def _are_right(device: Device, prepared: Sequence[PreparedStretch], limit: int) -> bool:
    """Whether results have the bits of those with barriers, each time, and nothing waited in vain."""
    for item in prepared:
        stream = item.stream(device.info, is_read=True)
        inputs = item.inputs(_INPUTS)
        expected, found = (
            _results(device, replace(stream, chained_workgroups=most), inputs, repeats)
            for most, repeats in ((0, _INPUTS), (limit * core_count(device.info), _REPEATS))
        )
        if not all(map(torch.equal, found, cycle(expected))):
            return False
    return device.chains


def _results(device: Device, stream: Stream, inputs: Sequence[torch.Tensor], repeats: int) -> list[torch.Tensor]:
    executable = Executable(device, stream)
    try:
        made = [executable.run([given])[0] for given in islice(cycle(inputs), repeats)]
        return [result for result in made if isinstance(result, torch.Tensor)]
    finally:
        executable.close()
