"""What ``mobopt tune`` found for a device and its driver: by families of kernels, kept in the cache's folder."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from mobopt.runtimes.vulkan.engine.device_cache import device_file, keep, read_kept
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.costs import CpuCosts, DeviceCosts, FewBitsCosts, FragmentCosts, MatrixCosts

_LOGGER = logging.getLogger("mobopt.vulkan")
_MOST_DEVICES = 64
_MOST_WORKGROUPS = 1 << 10
"""A core, of dispatches that wait by counters."""

CPU, SHARED, ROWS, FEW_BITS = "cpu", "shared", "rows", "few_bits"
HALVES, SPLIT, FRAGMENTS, SPLIT_FRAGMENTS = "halves", "split", "fragments", "split_fragments"
"""Families of kernels: of drivers that compute on the CPU; blocks in shared memory; a few rows; a few rows by weights
of few bits; matrix units, of halves and of floats that are split into halves, and of both that go straight to
registers."""

FITTED: Mapping[str, tuple[str, ...]] = {
    CPU: ("threads", "fetch", "multiply", "store", "start", "broadcast"),
    SHARED: (
        *("cycles_per_nanosecond", "fetch_cycles", "read_cycles", "store_cycles", "latency_cycles", "turn_cycles"),
        *("team_cycles", "start_cycles", "code_cycles"),
        *("second_dispatch_nanoseconds", "partial_sum_nanoseconds", "arrival_nanoseconds", "joined_sum_nanoseconds"),
    ),
    ROWS: ("row_turn_cycles", "row_stage_cycles", "row_gap"),
    FEW_BITS: tuple(item.name for item in fields(FewBitsCosts)),
    HALVES: tuple(item.name for item in fields(MatrixCosts)),
    SPLIT: tuple(item.name for item in fields(MatrixCosts)),
    FRAGMENTS: tuple(item.name for item in fields(FragmentCosts)),
    SPLIT_FRAGMENTS: tuple(item.name for item in fields(FragmentCosts)),
}
"""The costs that are fitted for each family: of :class:`CpuCosts`, of :class:`DeviceCosts`, or of a part of these."""
_PARTS: Mapping[str, tuple[str, type[MatrixCosts] | type[FewBitsCosts] | type[FragmentCosts]]] = {
    FEW_BITS: ("few_bits", FewBitsCosts),
    HALVES: ("matrix", MatrixCosts),
    SPLIT: ("split", MatrixCosts),
    FRAGMENTS: ("fragments", FragmentCosts),
    SPLIT_FRAGMENTS: ("split_fragments", FragmentCosts),
}
_FORM = 7
"""Of what is kept."""

Costs = TypeVar("Costs", CpuCosts, DeviceCosts)


@dataclass(frozen=True)
class UnitsUse:
    """Whether matrix units are used for a family, and the times of all products that were measured for it."""

    is_used: bool
    nanoseconds: float
    """With what is chosen where units may be."""
    nanoseconds_without: float
    """With what is chosen where they may not."""
    is_right: bool = True
    """False where their results were wrong, so that they aren't used."""


@dataclass(frozen=True)
class ChainsUse:
    """Whether dispatches wait for others by counters."""

    workgroups_per_core: int
    """Up to which they do; 0: all have barriers."""
    share: float
    """Of the time that stretches of networks take with barriers."""
    is_right: bool = True
    """False where results were others than with barriers, or a dispatch waited in vain."""


@dataclass(frozen=True, eq=False)
class TunedCosts:
    """What was found for one device."""

    costs: Mapping[str, Mapping[str, float]]
    """Of each family that was measured: those of :data:`FITTED`."""
    units: Mapping[str, UnitsUse]
    """Of those families that need matrix units."""
    chains: ChainsUse | None = None
    """None where it wasn't measured."""


NOT_TUNED = TunedCosts({}, {})


def costs_of(costs: CpuCosts | DeviceCosts, family: str) -> dict[str, float]:
    """The costs of a family, which a device has some of."""
    holder = getattr(costs, _PARTS[family][0]) if family in _PARTS else costs
    return {name: float(getattr(holder, name)) for name in FITTED[family]}


def with_costs(costs: Costs, family: str, values: Mapping[str, float]) -> Costs:
    """Costs with those of a family in place of its own."""
    changes: dict[str, Any] = dict(values)
    if family in _PARTS:
        part, kind = _PARTS[family]
        changes = {part: kind(**values)}
    elif family == CPU:
        changes["threads"] = round(values["threads"])
    return replace(costs, **changes)


def tuned_costs(device: DeviceInfo) -> TunedCosts:
    """What was found for a device and its driver; :data:`NOT_TUNED` if nothing was."""
    return _read_tuned(device, os.environ.get("MOBOPT_CACHE_DIR", ""))


def keep_tuned(device: DeviceInfo, found: TunedCosts) -> bool:
    """Let later choices of this process and of others go by what was found.

    Returns:
        Whether it is kept for other processes.
    """
    is_kept = keep(_tuned_file(device), {"form": _FORM, **asdict(found)})
    _read_tuned.cache_clear()
    return is_kept


def forget_tuned(device: DeviceInfo) -> bool:
    """Go by the table again; gives whether there was something to forget."""
    had = tuned_costs(device) is not NOT_TUNED
    _tuned_file(device).unlink(missing_ok=True)
    _read_tuned.cache_clear()
    return had


def _tuned_file(device: DeviceInfo) -> Path:
    return device_file("costs", device, ".json")


@lru_cache(maxsize=_MOST_DEVICES)
def _read_tuned(device: DeviceInfo, folder: str) -> TunedCosts:
    path = _tuned_file(device)
    kept = read_kept(path)
    if not kept:
        return NOT_TUNED
    try:
        return _checked(kept, device.is_cpu)
    except (AttributeError, KeyError, TypeError, ValueError):
        _LOGGER.warning("%s is not used: it has other costs than this release fits; tune the device anew", path)
        return NOT_TUNED


def _checked(kept: Mapping[str, Any], is_cpu: bool) -> TunedCosts:
    """What is kept, if it has the form of this release; else one of the errors of data that has another."""
    if kept["form"] != _FORM:
        raise ValueError("another form")
    units = {family: UnitsUse(**use) for family, use in kept["units"].items()}
    chains = None if kept["chains"] is None else ChainsUse(**kept["chains"])
    found = TunedCosts(kept["costs"], units, chains)
    families = {CPU} if is_cpu else FITTED.keys() - {CPU}
    if not found.costs or not found.costs.keys() <= families or not found.units.keys() <= {HALVES, SPLIT}:
        raise ValueError("other families")
    for family, costs in found.costs.items():
        if costs.keys() != set(FITTED[family]) or not all(map(_is_cost, costs.values())):
            raise ValueError("other costs")
    for family, use in found.units.items():
        times = (use.nanoseconds, use.nanoseconds_without)
        if (
            family not in found.costs
            or type(use.is_used) is not bool
            or type(use.is_right) is not bool
            or not all(map(_is_cost, times))
        ):
            raise ValueError("units without costs")
    if chains is not None and not _is_use(chains, is_cpu):
        raise ValueError("another use of chains")
    return found


def _is_use(chains: ChainsUse, is_cpu: bool) -> bool:
    limit = chains.workgroups_per_core
    is_limit = type(limit) is int and 0 <= limit <= _MOST_WORKGROUPS
    return is_limit and _is_cost(chains.share) and type(chains.is_right) is bool and not is_cpu


def _is_cost(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0
