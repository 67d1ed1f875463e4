"""Operations with their times."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mobopt.ir.origin import NOWHERE, Origin
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.hazards import GpuOperation
from mobopt.runtimes.vulkan.engine.recording import Submission
from mobopt.runtimes.vulkan.engine.stream import Dispatch, HostCall, Operation


@dataclass(frozen=True)
class OperationTime:
    """How long one operation took."""

    label: str
    source: Origin
    """The nodes of the model that it computes."""
    start_ns: int
    """Since the first operation of the run started."""
    duration_ns: int
    operation: Operation
    """What was timed; :func:`mobopt.runtimes.vulkan.engine.stream.moved_bytes` tells how much it moves."""

    @property
    def reason(self) -> str:
        """Why the CPU does it, if it does."""
        return self.operation.reason if isinstance(self.operation, HostCall) else ""


class ProfiledHostCall:
    """A host call with its time."""

    def __init__(self, call: HostCall, step: Callable[[], None]) -> None:
        self._call = call
        self._step = step

    def run(self, start_ns: int) -> list[OperationTime]:
        """Run it, timed by the host's clock."""
        started = time.perf_counter_ns()
        self._step()
        duration = time.perf_counter_ns() - started
        return [OperationTime(self._call.label, self._call.source, start_ns, duration, self._call)]


class ProfiledSegment:
    """A run of GPU operations with timestamps."""

    def __init__(
        self, device: Device, operations: Sequence[GpuOperation], submission: Submission, queries: vk.Handle
    ) -> None:
        self._device = device
        self._operations = operations
        self._submission = submission
        self._queries = queries

    def run(self, start_ns: int) -> list[OperationTime]:
        """Run it, timed by the device's clock."""
        self._submission.run()
        period = self._device.info.timestamp_period_ns
        ticks = self._read_ticks()
        ends = [int((tick - ticks[0]) * period) for tick in ticks]
        return [
            OperationTime(
                operation.label,
                operation.source if isinstance(operation, Dispatch) else NOWHERE,
                start_ns + begin,
                end - begin,
                operation,
            )
            for operation, begin, end in zip(self._operations, ends[:-1], ends[1:], strict=True)
        ]

    def _read_ticks(self) -> list[int]:
        count = len(self._operations) + 1
        data = bytearray(count * 8)
        flags = vk.VK_QUERY_RESULT_64_BIT | vk.VK_QUERY_RESULT_WAIT_BIT
        target = vk.ffi.from_buffer(data)
        result = vk.lib.vkGetQueryPoolResults(self._device.handle, self._queries, 0, count, len(data), target, 8, flags)
        vk.check(result, "read timestamps")
        return list(struct.unpack(f"<{count}Q", data))


ProfiledStep = ProfiledHostCall | ProfiledSegment
