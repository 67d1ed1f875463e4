"""What kernels cost on a GPU: a profile per family of devices, in ``device_costs.toml``.

Measured numbers stand beside guesses; a profile says which it is. Choices of kernels read costs from here only, so a
device is fitted by adding a row, or by ``mobopt tune``, whose numbers for this device and driver go before the table's
(``tuned_costs.py``).
CPU drivers have a model of their own.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.quirks import EMULATED_CHAINS, EMULATED_DOORBELLS
from mobopt.runtimes.vulkan.kernels.costs import (
    CpuCosts,
    DeviceCosts,
    FewBitsCosts,
    FragmentCosts,
    MatrixCosts,
    UnitRowCosts,
)
from mobopt.runtimes.vulkan.kernels.tuned_costs import CPU, HALVES, SPLIT, TunedCosts, tuned_costs, with_costs
from mobopt.shaders.push_constants import CHAIN_END

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TABLE = Path(__file__).with_name("device_costs.toml")
_MOST_DEVICES = 64
_ANY_NUMBER = 1 << 31
_ANY_NAME = ""
_HOSTS_OF_DOORBELLS = ("x86_64", "AMD64")
"""Others may reach an NVIDIA GPU by two ways that have no order (GH200), and write in another order themselves."""


def device_costs(device: DeviceInfo) -> DeviceCosts:
    """The costs of a GPU: as tuned, else those of the first profile that covers it."""
    return _device_costs(device, tuned_costs(device))


@lru_cache(maxsize=_MOST_DEVICES)
def _device_costs(device: DeviceInfo, tuned: TunedCosts) -> DeviceCosts:
    costs = next(costs for costs in profiles() if costs.covers(device))
    for family, values in tuned.costs.items():
        costs = costs if family == CPU else with_costs(costs, family, values)
    if HALVES in tuned.units:
        costs = replace(costs, uses_units=tuned.units[HALVES].is_used)
    if SPLIT in tuned.units:
        costs = replace(costs, split_names=(_ANY_NAME,) if tuned.units[SPLIT].is_used else ())
    if tuned.chains is not None:
        costs = replace(costs, chained_workgroups_per_core=tuned.chains.workgroups_per_core)
    return costs


def cpu_costs(device: DeviceInfo) -> CpuCosts:
    """The costs of a driver that computes on the CPU: as tuned, else those of the first row that covers it."""
    return _cpu_costs(device, tuned_costs(device))


@lru_cache(maxsize=_MOST_DEVICES)
def _cpu_costs(device: DeviceInfo, tuned: TunedCosts) -> CpuCosts:
    costs = next(costs for costs in cpu_rows() if costs.covers(device))
    return with_costs(costs, CPU, tuned.costs[CPU]) if CPU in tuned.costs else costs


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
    fragments = {name: FragmentCosts(**row[name]) for name in ("fragments", "split_fragments") if name in row}
    rows = {"unit_rows": UnitRowCosts(**row["unit_rows"])} if "unit_rows" in row else {}
    few_bits = FewBitsCosts(**row["few_bits"])
    lists = {name: tuple(row[name]) for name in ("vendors", "kinds", "in_order_drivers")}
    names = {name: tuple(row.get(name, ())) for name in ("split_names", "doorbell_names")}
    parts = {**lists, **matrix, **names, **fragments, **rows, "few_bits": few_bits}
    return DeviceCosts(**{**row, **parts})


def can_chain(device: DeviceInfo) -> bool:
    """Whether dispatches may wait for others by counters at all: where workgroups may start in another order than their
    dispatches, those that wait could keep out what they wait for."""
    able = "device_memory_model" in device.features and device.limits.max_push_constants_size >= CHAIN_END
    if not able or "no-chains" in device.switches:
        return False
    is_in_order = not device.is_cpu and device.driver_id in device_costs(device).in_order_drivers
    return is_in_order or EMULATED_CHAINS in device.switches


def chained_workgroups(device: DeviceInfo) -> int:
    """What :attr:`Stream.chained_workgroups` is on a device."""
    if not can_chain(device):
        return 0
    if EMULATED_CHAINS in device.switches:
        return _ANY_NUMBER
    return device_costs(device).chained_workgroups_per_core * core_count(device)


def code_ahead_bytes(device: DeviceInfo) -> int | None:
    """What :attr:`Stream.code_ahead_bytes` is on a device."""
    if not chained_workgroups(device) or "no-code-ahead" in device.switches:
        return None
    return 0 if EMULATED_CHAINS in device.switches else device_costs(device).code_ahead_bytes


def doorbell_bytes(device: DeviceInfo) -> int | None:
    """What :attr:`Stream.doorbell_bytes` is on a device."""
    if "no-doorbells" in device.switches:
        return None
    if EMULATED_DOORBELLS in device.switches:
        return 0
    costs = device_costs(device)
    is_known = device.driver_id in costs.in_order_drivers and any(name in device.name for name in costs.doorbell_names)
    return costs.doorbell_bytes if is_known and platform.machine() in _HOSTS_OF_DOORBELLS else None


def ahead_workgroups(device: DeviceInfo) -> int:
    """Workgroups up to which a dispatch that waits by a counter reads constants before those before it have ended."""
    most = chained_workgroups(device)
    if EMULATED_CHAINS in device.switches:
        return most
    return min(most, device_costs(device).ahead_workgroups_per_core * core_count(device)) if most else 0


def core_count(device: DeviceInfo) -> int:
    """How many workgroups compute at the same time; a guess if the driver doesn't say."""
    return device.cores or device_costs(device).cores
