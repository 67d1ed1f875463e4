"""What a device can do at most: bytes copied, products of float32, and the time of a dispatch that waits for another.

Measured in seconds with mobopt's own kernels and the device's own clock, once for a device and a release of its driver,
and kept in the cache's folder. Shares of these numbers tell how much a kernel leaves.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_cache import device_file, keep, read_kept
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.profiling import OperationTime
from mobopt.runtimes.vulkan.engine.stream import Copy, Stream, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, lower

_LEAST_RUNS = 4
_SECONDS = 0.4
"""Spent on one stream, after the least runs: other processes may take some of them."""
_CHAIN = 64
"""Dispatches that each wait for the one before."""
_COPIED_BYTES = (64 << 20, 256 << 20)
"""Of the first attempt, more than most caches hold, and of the last."""
_PRODUCT_ROWS = (256, 512, 1024, 2048, 4096)
_ENOUGH_SECONDS = 0.02
"""What takes as long is not made larger."""


@dataclass(frozen=True)
class DeviceRoofs:
    """The most that a device was seen to do."""

    bytes_per_second: float
    """Read and written, of a copy that no cache holds."""
    flops_per_second: float
    """Of a product of square matrices of float32, a multiply-add counting two."""
    dispatch_seconds: float
    """Of a dispatch with next to no work that waits for another."""

    def beside(self, other: DeviceRoofs) -> DeviceRoofs:
        """The better of two measurements of one device."""
        return DeviceRoofs(
            max(self.bytes_per_second, other.bytes_per_second),
            max(self.flops_per_second, other.flops_per_second),
            min(self.dispatch_seconds, other.dispatch_seconds),
        )

    def floors(self, nbytes: int, flops: int, dispatches: int) -> dict[str, float]:
        """The seconds that something takes at least, by what bounds it."""
        return {
            "memory": nbytes / self.bytes_per_second,
            "arithmetic": flops / self.flops_per_second,
            "dispatch": dispatches * self.dispatch_seconds,
        }


def roofs_of(device: Device, *, again: bool = False) -> DeviceRoofs:
    """The roofs of a device: what an earlier process measured, else measured now and kept.

    Args:
        device: with timestamps.
        again: measure in any case; what was kept stays where it is the better, as of a device that was less busy.

    Raises:
        DeviceError: the device has no timestamps, or failed.
    """
    path = device_file("roofs", device.info, ".json")
    kept = read_kept(path)
    names = {field.name for field in fields(DeviceRoofs)}
    is_known = kept.keys() == names and all(isinstance(value, float) and value > 0 for value in kept.values())
    if is_known and not again:
        return DeviceRoofs(**kept)
    found = measure_roofs(device)
    if is_known:
        found = found.beside(DeviceRoofs(**kept))
    keep(path, asdict(found))
    return found


def measure_roofs(device: Device) -> DeviceRoofs:
    """Measure; takes seconds, and a quarter of the device's memory at most.

    Raises:
        DeviceError: the device has no timestamps, or failed.
    """
    load_lowerings()
    return DeviceRoofs(_copy_rate(device), _product_rate(device), _dispatch_seconds(device))


def _copy_rate(device: Device) -> float:
    """Bytes in a second, by the driver's copy or by a shader, whichever is faster, of the largest that was tried."""
    most = min(_COPIED_BYTES[-1], device.info.limits.max_storage_buffer_range, device.info.memory_bytes // 8)
    nbytes = min(_COPIED_BYTES[0], most)
    while True:
        seconds = min(_seconds(device, _copies(nbytes)), _seconds(device, _negations(device, nbytes // 4, 2)))
        if 2 * nbytes > most or seconds > _ENOUGH_SECONDS:
            return 2 * nbytes / seconds
        nbytes *= 2


def _product_rate(device: Device) -> float:
    """FLOP in a second, of the size that does best."""
    best = 0.0
    for rows in _PRODUCT_ROWS:
        # Several dispatches may make one product.
        seconds = _seconds(device, _product(device, rows), is_one=True)
        best = max(best, 2 * rows**3 / seconds)
        if seconds > _ENOUGH_SECONDS:
            break
    return best


def _dispatch_seconds(device: Device) -> float:
    runs = _runs(device, _negations(device, 256, _CHAIN))
    return min(sum(item.duration_ns for item in run) for run in runs) / _CHAIN / 1e9


def _seconds(device: Device, stream: Stream, *, is_one: bool = False) -> float:
    """The least time of an operation, or of all of them together if they are parts of one."""
    runs = [[item.duration_ns for item in run] for run in _runs(device, stream)]
    return min(sum(run) if is_one else min(run) for run in runs) / 1e9


def _runs(device: Device, stream: Stream) -> list[list[OperationTime]]:
    """Operations with their times, of several runs after the first."""
    executable = Executable(device, stream)
    try:
        executable.profile([])
        runs: list[list[OperationTime]] = []
        deadline = time.perf_counter() + _SECONDS
        while len(runs) < _LEAST_RUNS or time.perf_counter() < deadline:
            runs.append(executable.profile([])[1])
        return runs
    finally:
        executable.close()


def _copies(nbytes: int) -> Stream:
    """There and back, so that what is read was written."""
    sizes = (nbytes // 4,)
    one, other = (DeviceTensor(Storage(nbytes), torch.float32, sizes, (1,)) for _ in range(2))
    ways = ((one, other), (other, one), (one, other))
    return Stream([Copy(bind(source), bind(target, writes=True)) for source, target in ways])


def _negations(device: Device, elements: int, count: int) -> Stream:
    """Each of what the one before made."""
    plan = Plan(device.info)
    value = Value.of_tensor(torch.float32, (elements,))
    plan.place(value, plan.empty((elements,)))
    for _ in range(count):
        value = _lowered(plan, "aten::neg", (value,), (elements,))
    return plan.stream


def _product(device: Device, rows: int) -> Stream:
    plan = Plan(device.info)
    generator = torch.Generator().manual_seed(0)
    source, weight = (Value.of_elements(torch.rand(rows, rows, generator=generator)) for _ in range(2))
    _lowered(plan, "aten::linear", (source, weight, None), (rows, rows))
    return plan.stream


def _lowered(plan: Plan, operator: str, args: Sequence[object], sizes: tuple[int, ...]) -> Value:
    result = Value.of_tensor(torch.float32, sizes)
    made = lower(plan, Node.call(operator, args, (result,)))
    assert isinstance(made, DeviceTensor)
    plan.place(result, made)
    return result
