"""What kernels cost on a GPU: a profile per family of devices, in ``device_costs.toml``.

Measured numbers stand beside guesses; a profile says which it is. Choices of kernels read costs from here only, so a
device is fitted by adding a row. How CPU drivers compute is another model: ``product_kernels.py`` has it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TABLE = Path(__file__).with_name("device_costs.toml")


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
    most_sums: int
    """vec4s of a product that an invocation may keep in its registers."""
    depthwise_invocations_per_core: int
    """That a depthwise convolution needs at least before an invocation takes several pixels."""
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

    def covers(self, device: DeviceInfo) -> bool:
        """Whether they are meant for a device."""
        return (not self.vendors or device.vendor_id in self.vendors) and (not self.kinds or device.kind in self.kinds)


def device_costs(device: DeviceInfo) -> DeviceCosts:
    """The costs of a device: those of the first profile that covers it."""
    return next(costs for costs in profiles() if costs.covers(device))


@cache
def profiles() -> tuple[DeviceCosts, ...]:
    """Every profile, in the order of the table; the last covers every device."""
    rows = tomllib.loads(_TABLE.read_text(encoding="utf-8"))["profile"]
    return tuple(DeviceCosts(**{**row, "vendors": tuple(row["vendors"]), "kinds": tuple(row["kinds"])}) for row in rows)


def core_count(device: DeviceInfo) -> int:
    """How many workgroups compute at the same time; a guess if the driver doesn't say."""
    return device.cores or device_costs(device).cores
