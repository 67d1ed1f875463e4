"""A Stream made real: memory, pipelines and recorded commands, ready to run."""

from __future__ import annotations

import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from mobopt.errors import DeviceError, InputError
from mobopt.ir.origin import NOWHERE, Origin
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.buffers import has_fast_upload_memory, host_view
from mobopt.runtimes.vulkan.engine.descriptors import DescriptorSets
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.exchange import DeviceSlot, HostSlot, Slot
from mobopt.runtimes.vulkan.engine.hazards import GpuOperation, plan_barriers
from mobopt.runtimes.vulkan.engine.limits import check_limits
from mobopt.runtimes.vulkan.engine.memory import MemoryLayout, MemoryReport
from mobopt.runtimes.vulkan.engine.pipelines import PipelineKey, PipelineStore, pipeline_key
from mobopt.runtimes.vulkan.engine.recording import BoundDispatch, CommandPool, Recordable, Submission, create_fence
from mobopt.runtimes.vulkan.engine.resources import ResourceScope
from mobopt.runtimes.vulkan.engine.staging import StagedStream, stage
from mobopt.runtimes.vulkan.engine.stream import Dispatch, Exchanged, HostCall, HostTensor, Stream
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage


@dataclass(frozen=True)
class OperationTime:
    """How long one operation took."""

    label: str
    source: Origin
    """The nodes of the model that it computes."""
    start_ns: int
    """Since the first operation of the run started."""
    duration_ns: int
    reason: str = ""
    """Why the CPU does it, if it does."""


Step = Callable[[], None]


class RefusedError(Exception):
    """A kernel raised the stream's flag: it met operands that it must not be given, so there are no results."""


class Executable:
    """Runs one plan on one device, any number of times. Safe to call from several threads; calls take turns."""

    def __init__(self, device: Device, stream: Stream) -> None:
        """Allocate, compile and record everything.

        Args:
            device: from :func:`mobopt.runtimes.vulkan.engine.device.open_device`.
            stream: what to run; its inputs and outputs are contiguous tensors.

        Raises:
            DeviceError: the plan exceeds a limit of the device, or memory or the driver fails.
        """
        check_limits(device.info, stream)
        self._device = device
        self._lock = threading.Lock()
        across_bus = not device.info.has_unified_memory
        self._staged = stage(
            stream,
            stage_inputs=across_bus and not has_fast_upload_memory(device),
            stage_read_outputs=across_bus,
        )
        self._owned = _Owned(device)
        self._finalizer = weakref.finalize(self, self._owned.close)
        try:
            with device.in_use:
                self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        owned, staged = self._owned, self._staged
        dispatches = [operation for operation in staged.operations if isinstance(operation, Dispatch)]
        owned.memory = MemoryLayout(self._device, owned.scope, staged)
        pipelines = owned.acquire_pipelines([pipeline_key(dispatch) for dispatch in dispatches])
        sets = DescriptorSets(self._device, owned.scope, dispatches, owned.memory.places)
        self._bound = {
            dispatch: self._bind(dispatch, pipelines, descriptor_set)
            for dispatch, descriptor_set in zip(dispatches, sets.handles, strict=True)
        }
        self._pool = CommandPool(self._device, owned.scope)
        self._fence = create_fence(owned.scope)
        self._host_slots: dict[HostTensor, HostSlot] = {}
        self._inputs = [self._slot(tensor) for tensor in staged.inputs]
        self._outputs = [self._slot(tensor) for tensor in staged.outputs]
        self._flag = None if staged.flag is None else self._view(staged.flag)
        self._segments = list(_segments(staged))
        self._steps = [self._step(number) for number in range(len(self._segments))]
        self._profiled: list[_ProfiledStep] | None = None

    def _bind(
        self, dispatch: Dispatch, pipelines: Mapping[PipelineKey, vk.Handle], descriptor_set: vk.Handle
    ) -> BoundDispatch:
        key = pipeline_key(dispatch)
        return BoundDispatch(
            pipelines[key], self._device.shared(PipelineStore).layout(key.layout).handle, descriptor_set
        )

    @property
    def memory(self) -> MemoryReport:
        """How much device memory the plan takes."""
        return self._memory.report

    @property
    def _memory(self) -> MemoryLayout:
        assert self._owned.memory is not None
        return self._owned.memory

    @property
    def host_calls(self) -> int:
        """How many operations run on the CPU in each run."""
        return sum(isinstance(segment, HostCall) for segment in self._segments)

    @property
    def dispatches(self) -> int:
        """How many dispatches each run makes."""
        return len(self._bound)

    @property
    def is_open(self) -> bool:
        """Whether it can run; false once it or its device is closed."""
        return self._finalizer.alive and self._device.is_open

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run once.

        Args:
            inputs: one tensor for each of the stream's inputs, of its shape.

        Returns:
            New tensors, one for each of the stream's outputs.

        Raises:
            InputError: the number or shape of the inputs is wrong, or an integer doesn't fit in 32 bits.
            DeviceError: the device failed, or the executable is closed.
            RefusedError: a kernel met operands that it must not be given.
        """
        with self._device.in_use, self._lock:
            self._write_inputs(inputs)
            try:
                for step in self._steps:
                    step()
                return self._read_outputs()
            finally:
                self._clear_host_slots()

    def profile(self, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[OperationTime]]:
        """Run once with a timestamp after every operation; returns the outputs, and the times in order.

        A duration is the time from the end of the operation before, so the sum is the time of the whole.

        Raises:
            DeviceError: the device has no timestamps, or as for :meth:`run`.
        """
        if "timestamps" not in self._device.info.features:
            raise DeviceError(f"{self._device.info.name} has no timestamps, so its dispatches can't be profiled")
        with self._device.in_use, self._lock:
            self._write_inputs(inputs)
            if self._profiled is None:
                self._profiled = [self._profiled_step(number) for number in range(len(self._segments))]
            times: list[OperationTime] = []
            for step in self._profiled:
                start = times[-1].start_ns + times[-1].duration_ns if times else 0
                times += step.run(start)
            outputs = self._read_outputs()
            self._clear_host_slots()
            return outputs, times

    def close(self) -> None:
        """Give everything back to the device. A second call does nothing."""
        with self._lock:
            self._finalizer()

    def _write_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        if not self.is_open:
            raise DeviceError("this executable is closed; build the plan again")
        if len(inputs) != len(self._inputs):
            raise InputError(f"the plan takes {len(self._inputs)} inputs, and {len(inputs)} were given")
        for slot, values in zip(self._inputs, inputs, strict=True):
            slot.write(values)
        if self._flag is not None:
            self._flag.zero_()

    def _read_outputs(self) -> list[torch.Tensor]:
        return [slot.read() for slot in self._outputs]

    def _clear_host_slots(self) -> None:
        for slot in self._host_slots.values():
            slot.clear()

    def _slot(self, tensor: Exchanged) -> Slot:
        if isinstance(tensor, HostTensor):
            return self._host_slots.setdefault(tensor, HostSlot(tensor))
        return DeviceSlot(self._view(tensor), tensor.dtype)

    def _view(self, tensor: DeviceTensor) -> torch.Tensor:
        return host_view(self._memory.places[tensor.storage], tensor)

    def _step(self, number: int) -> Step:
        segment = self._segments[number]
        if isinstance(segment, HostCall):
            return self._host_step(segment)
        run = Submission(self._device, self._pool.record(self._recordable(number)), self._fence).run
        return run if self._flag is None else self._checked(run, self._flag)

    def _checked(self, run: Step, flag: torch.Tensor) -> Step:
        """A step after which the flag is looked at, before the host goes on with what was computed."""

        def checked() -> None:
            run()
            if flag.item():
                raise RefusedError

        return checked

    def _host_step(self, call: HostCall) -> Step:
        sources = [self._slot(tensor) for tensor in call.inputs]
        targets = [self._slot(tensor) for tensor in call.outputs]

        def run() -> None:
            results = call.run(*(slot.read() for slot in sources))
            for slot, values in zip(targets, results, strict=True):
                slot.write(values)

        return run

    def _recordable(self, number: int) -> Recordable:
        segment = self._segments[number]
        assert not isinstance(segment, HostCall)
        places = self._memory.places
        buffers: dict[vk.Handle, int] = {}

        def locate(storage: Storage) -> tuple[int, int]:
            place = places[storage]
            return buffers.setdefault(place.buffer.handle, len(buffers)), place.offset

        return Recordable(segment, plan_barriers(segment, locate), self._bound, places, number > 0)

    def _profiled_step(self, number: int) -> _ProfiledStep:
        segment = self._segments[number]
        if isinstance(segment, HostCall):
            return _ProfiledHostCall(segment, self._steps[number])
        info = vk.struct("VkQueryPoolCreateInfo", queryType=vk.VK_QUERY_TYPE_TIMESTAMP, queryCount=len(segment) + 1)
        queries = self._owned.scope.create("QueryPool", info, "make a query pool")
        commands = self._pool.record(self._recordable(number), queries)
        return _ProfiledSegment(self._device, segment, Submission(self._device, commands, self._fence), queries)


class _Owned:
    """What an executable must give back."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.scope: ResourceScope = device.scope()
        self.memory: MemoryLayout | None = None
        self._pipelines: list[PipelineKey] = []
        device.register(self)

    def acquire_pipelines(self, keys: Sequence[PipelineKey]) -> Mapping[PipelineKey, vk.Handle]:
        """The pipelines of ``keys``, held until :meth:`close`."""
        pipelines = self._device.shared(PipelineStore).acquire(keys)
        self._pipelines = list(pipelines)
        return pipelines

    def close(self) -> None:
        """Give it back; a second call does nothing."""
        with self._device.lock:
            if not self._device.is_open:
                return
            self.scope.close()
            if self._pipelines:
                self._device.shared(PipelineStore).release(self._pipelines)
                self._pipelines = []
            if self.memory is not None:
                self.memory.release_constants()


class _ProfiledHostCall:
    """A host call with its time."""

    def __init__(self, call: HostCall, step: Step) -> None:
        self._call = call
        self._step = step

    def run(self, start_ns: int) -> list[OperationTime]:
        """Run it, timed by the host's clock."""
        started = time.perf_counter_ns()
        self._step()
        duration = time.perf_counter_ns() - started
        return [OperationTime(self._call.label, self._call.source, start_ns, duration, self._call.reason)]


class _ProfiledSegment:
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


_ProfiledStep = _ProfiledHostCall | _ProfiledSegment


def _segments(staged: StagedStream) -> Iterator[HostCall | list[GpuOperation]]:
    """Host calls, and the longest runs of GPU operations between them."""
    for on_host, group in groupby(staged.operations, key=lambda operation: isinstance(operation, HostCall)):
        operations = list(group)
        if on_host:
            yield from (operation for operation in operations if isinstance(operation, HostCall))
        else:
            yield [operation for operation in operations if not isinstance(operation, HostCall)]
