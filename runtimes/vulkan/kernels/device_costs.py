"""What kernels cost on a GPU: a profile per family of devices, in ``device_costs.toml``.

Measured numbers stand beside guesses; a profile says which it is. Choices of kernels read costs from here only, so a
device is fitted by adding a row, or by ``mobopt tune``, whose numbers for this device and driver go before the table's.
CPU drivers have a model of their own.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from mobopt.runtimes.vulkan.engine.device_cache import device_file, keep, read_kept
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.quirks import EMULATED_CHAINS
from mobopt.shaders.push_constants import CHAIN_END

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TABLE = Path(__file__).with_name("device_costs.toml")
_LOGGER = logging.getLogger("mobopt.vulkan")
_MOST_DEVICES = 64
_ANY_NUMBER = 1 << 31


@dataclass(frozen=True)
class MatrixCosts:
    """Costs of products of halves by matrix units, in cycles of a core."""

    multiplications_per_cycle: float
    """Pairs of halves that a core multiplies and adds in a cycle."""
    fetch_cycles: float
    """32 runs of 16 bytes from memory (at most from its second-level cache) to shared memory."""
    read_cycles: float
    """32 runs of 16 bytes from shared memory."""
    store_cycles: float
    """32 vec4s of a result."""
    latency_cycles: float
    """Of a step that nothing else hides."""
    turn_cycles: float
    """Of a run that an invocation fetches in a step, likewise."""
    start_cycles: float
    """A workgroup."""
    finish_cycles: float
    """Of a vec4 that an invocation stores, which nothing else hides."""


@dataclass(frozen=True)
class FewBitsCosts:
    """Costs of products of a few rows by weights of few bits, in nanoseconds of a core."""

    read_nanoseconds: float
    """16 bytes of weights, read and multiplied by an invocation."""
    gap: float
    """Such reads that could have been done in place of jumping to the next line of weights."""
    turn_nanoseconds: float
    """Of a turn in which an invocation reads, which nothing else hides."""
    stage_nanoseconds: float
    """Of a stage in which half of the teams add up their sums and those of the others."""
    step_nanoseconds: float
    """Of each step of a turn, once."""
    step_registers: float
    """By how much of an invocation each step of a turn makes it larger: fewer of them fit a core."""


@dataclass(frozen=True)
class DeviceCosts:
    """Costs of a family of devices. A cycle is one of a core; costs in cycles are of 32 invocations together."""

    name: str
    origin: str
    """Where the numbers come from."""
    vendors: tuple[int, ...]
    """Of ``VkPhysicalDeviceProperties.vendorID``; empty: any."""
    kinds: tuple[str, ...]
    """Of :attr:`DeviceInfo.kind`; empty: any."""
    cores: int
    """Workgroups that compute at the same time, where the driver doesn't say."""
    cycles_per_nanosecond: float
    multiplications_per_cycle: int
    """Pairs of floats that a core multiplies and adds in a cycle."""
    fetch_cycles: float
    """A vec4 from memory (at most from its second-level cache) to shared memory."""
    read_cycles: float
    """A vec4 from shared memory."""
    store_cycles: float
    """A vec4 of a result."""
    latency_cycles: float
    """Of a step that nothing else hides."""
    second_dispatch_nanoseconds: float
    """A dispatch that waits for another."""
    partial_sum_nanoseconds: float
    """A vec4 of a partial sum, written and read."""
    arrival_nanoseconds: float
    """A workgroup says that it is done, and learns whether the others that share its block are."""
    joined_sum_nanoseconds: float
    """A vec4 of a partial sum that it reads."""
    chained_workgroups_per_core: int
    """Up to which a dispatch waits for others by a counter: see :attr:`Stream.chained_workgroups`."""
    in_order_drivers: tuple[int, ...]
    """Of VkDriverId: those that were seen to start workgroups in the order of dispatches, which that takes."""
    most_sums: int
    """vec4s of a product that an invocation may keep in its registers."""
    row_turn_cycles: float
    """Of a turn in which an invocation of ``product_rows.comp`` reads factors, which nothing else hides."""
    row_stage_cycles: float
    """Of a stage in which half of its teams add up their sums and those of the others."""
    row_gap: float
    """vec4s that could have been read in place of jumping to the next line of factors."""
    few_bits: FewBitsCosts
    depthwise_invocations_per_core: int
    """That a depthwise convolution needs at least before an invocation takes several pixels."""
    normalizing_lanes: int
    """Invocations of the subgroups each of which normalises a row by itself (``normalize_rows.comp``); 0 where that
    isn't known to be faster."""
    softmax_invocations_per_core: int
    """That a softmax needs at least to be computed by one dispatch."""
    softmax_long_steps: int
    """Of an invocation, from which on several dispatches may cost less."""
    reduction_invocations_per_core: int
    """That the parts of a divided reduction should have together."""
    reduction_most_results: int
    """Beyond which a reduction isn't divided."""
    reduction_least_steps: int
    """Of an invocation, from which on a reduction may be divided."""
    reduction_least_lone_steps: int
    """The same, where one invocation has a result to itself."""
    reduction_steps_of_a_part: int
    """Of an invocation, at least, once a reduction is divided."""
    matrix: MatrixCosts | None = None
    """None where matrix units aren't known to be worth it: they are not used then."""

    split: MatrixCosts | None = None
    """The same for products of floats, which are split into halves: they take three products of halves, ..."""
    split_names: tuple[str, ...] = ()
    """... so they are used on devices only whose name has one of these in it: elsewhere ordinary arithmetic may be
    faster."""

    def covers(self, device: DeviceInfo) -> bool:
        """Whether they are meant for a device."""
        return (not self.vendors or device.vendor_id in self.vendors) and (not self.kinds or device.kind in self.kinds)


@dataclass(frozen=True)
class CpuCosts:
    """Costs of a driver that computes on the CPU, in nanoseconds of a thread."""

    name: str
    origin: str
    """Where the numbers come from."""
    drivers: tuple[int, ...]
    """Of VkDriverId; empty: any."""
    since: tuple[int, ...]
    """The first release of the driver (see :attr:`DeviceInfo.driver_release`); empty: any."""
    tiles: tuple[tuple[int, int], ...]
    """Rows and vec4s of columns of an invocation of ``product_tiles.comp``."""
    broadcast_tiles: tuple[tuple[int, int], ...]
    """Rows of a workgroup and vec4s of columns of an invocation of ``product_broadcast.comp``."""
    threads: int
    """Workgroups that compute at the same time."""
    fetch: float
    """A vec4 that a vector of invocations loads."""
    multiply: float
    """A vec4 of sums in a step: arithmetic, and merging what a loop gives."""
    store: float
    """A vec4 of a result."""
    start: float
    """A workgroup."""
    broadcast: float
    """A vec4 that one lane hands to all."""
    rolls_stores: bool = False
    """Whether the stores of an invocation are a loop (``rolled.glsl``): the driver takes long to compile each."""

    def __hash__(self) -> int:
        return hash((self.name, self.fetch))

    def covers(self, device: DeviceInfo) -> bool:
        """Whether they are meant for a device."""
        return (not self.drivers or device.driver_id in self.drivers) and self.since <= device.driver_release


Costs = TypeVar("Costs", CpuCosts, DeviceCosts)

TUNED_ON_CPUS = ("threads", "fetch", "multiply", "store", "start", "broadcast")
TUNED_ON_GPUS = (
    *("cycles_per_nanosecond", "fetch_cycles", "read_cycles", "store_cycles", "latency_cycles"),
    *("second_dispatch_nanoseconds", "partial_sum_nanoseconds"),
)
"""What ``mobopt tune`` fits, of :class:`CpuCosts` and of :class:`DeviceCosts`."""


def device_costs(device: DeviceInfo) -> DeviceCosts:
    """The costs of a GPU: as tuned, else those of the first profile that covers it."""
    return _with_tuned(next(costs for costs in profiles() if costs.covers(device)), device, TUNED_ON_GPUS)


def cpu_costs(device: DeviceInfo) -> CpuCosts:
    """The costs of a driver that computes on the CPU: as tuned, else those of the first row that covers it."""
    return _cpu_costs(device, os.environ.get("MOBOPT_CACHE_DIR", ""))


@lru_cache(maxsize=_MOST_DEVICES)
def _cpu_costs(device: DeviceInfo, folder: str) -> CpuCosts:
    """See :func:`cpu_costs`; what was tuned is kept in a folder."""
    return _with_tuned(next(costs for costs in cpu_rows() if costs.covers(device)), device, TUNED_ON_CPUS)


def tuned_costs(device: DeviceInfo) -> Mapping[str, float]:
    """What ``mobopt tune`` found for a device and its driver, by name; none if it was not tuned."""
    return _read_tuned(device, os.environ.get("MOBOPT_CACHE_DIR", ""))


def keep_tuned(device: DeviceInfo, costs: Mapping[str, float]) -> bool:
    """Let later choices of this process and of others go by these costs.

    Returns:
        Whether they are kept for other processes.
    """
    is_kept = keep(_tuned_file(device), dict(costs))
    _forget_read()
    return is_kept


def forget_tuned(device: DeviceInfo) -> bool:
    """Go by the table again; gives whether there was something to forget."""
    had = bool(tuned_costs(device))
    _tuned_file(device).unlink(missing_ok=True)
    _forget_read()
    return had


def _forget_read() -> None:
    _read_tuned.cache_clear()
    _cpu_costs.cache_clear()


def _tuned_file(device: DeviceInfo) -> Path:
    return device_file("costs", device, ".json")


@lru_cache(maxsize=_MOST_DEVICES)
def _read_tuned(device: DeviceInfo, folder: str) -> Mapping[str, float]:
    path = _tuned_file(device)
    found = read_kept(path)
    names = TUNED_ON_CPUS if device.is_cpu else TUNED_ON_GPUS
    if found and not (found.keys() == set(names) and all(_is_cost(value) for value in found.values())):
        _LOGGER.warning("%s is not used: it has other costs than this release fits; tune the device anew", path)
        return {}
    return found


def _is_cost(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


def _with_tuned(costs: Costs, device: DeviceInfo, names: tuple[str, ...]) -> Costs:
    tuned = tuned_costs(device)
    if tuned.keys() != set(names):
        return costs
    kinds = {name: type(getattr(costs, name)) for name in names}
    return replace(costs, **{name: kind(tuned[name]) for name, kind in kinds.items()})


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(_TABLE.read_text(encoding="utf-8"))


@cache
def cpu_rows() -> tuple[CpuCosts, ...]:
    """The rows for drivers that compute on the CPU, in the order of the table; the last covers all of them."""
    return tuple(CpuCosts(**{name: _frozen(value) for name, value in row.items()}) for row in _table()["cpu"])


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@cache
def profiles() -> tuple[DeviceCosts, ...]:
    """Every profile, in the order of the table; the last covers every device."""
    return tuple(map(_profile, _table()["profile"]))


def _profile(row: Mapping[str, Any]) -> DeviceCosts:
    matrix = {name: MatrixCosts(**row[name]) for name in ("matrix", "split") if name in row}
    few_bits = FewBitsCosts(**row["few_bits"])
    lists = {name: tuple(row[name]) for name in ("vendors", "kinds", "in_order_drivers")}
    return DeviceCosts(
        **{**row, **lists, **matrix, "few_bits": few_bits, "split_names": tuple(row.get("split_names", ()))}
    )


def chained_workgroups(device: DeviceInfo) -> int:
    """What :attr:`Stream.chained_workgroups` is on a device."""
    able = "device_memory_model" in device.features and device.limits.max_push_constants_size >= CHAIN_END
    if not able or "no-chains" in device.switches:
        return 0
    if EMULATED_CHAINS in device.switches:
        return _ANY_NUMBER
    if device.is_cpu:
        return 0
    costs = device_costs(device)
    is_in_order = device.driver_id in costs.in_order_drivers
    return costs.chained_workgroups_per_core * core_count(device) if is_in_order else 0


def core_count(device: DeviceInfo) -> int:
    """How many workgroups compute at the same time; a guess if the driver doesn't say."""
    return device.cores or device_costs(device).cores
