"""A Stream made real: memory, pipelines and recorded commands, ready to run."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.buffers import has_fast_upload_memory
from mobopt.runtimes.vulkan.engine.chains import may_chain
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.doorbell import plan_doorbell
from mobopt.runtimes.vulkan.engine.hazards import GpuOperation
from mobopt.runtimes.vulkan.engine.lane import Lane, Segment, TensorOrArray
from mobopt.runtimes.vulkan.engine.limits import check_limits
from mobopt.runtimes.vulkan.engine.machine_code import made_on_all_cores
from mobopt.runtimes.vulkan.engine.memory import MemoryReport
from mobopt.runtimes.vulkan.engine.pipelines import PipelineKey, PipelineStore, pipeline_key
from mobopt.runtimes.vulkan.engine.profiling import OperationTime
from mobopt.runtimes.vulkan.engine.staging import StagedStream, stage
from mobopt.runtimes.vulkan.engine.stream import Dispatch, HostCall, Stream

MAX_LANES = 2
"""Calls of one executable that may be in flight at once: the device computes one while the host serves another."""


class Executable:
    """Runs one plan on one device, any number of times, from several threads: two calls are in flight, others wait."""

    def __init__(
        self,
        device: Device,
        stream: Stream,
        array_inputs: Collection[int] = (),
        array_outputs: Collection[int] = (),
    ) -> None:
        """Allocate, compile and record everything.

        Args:
            device: from :func:`mobopt.runtimes.vulkan.engine.devices.open_device`.
            stream: what to run; its inputs and outputs are contiguous tensors.
            array_inputs: numbers of the inputs that are bound where they lie on the device at each call.
            array_outputs: numbers of the outputs that stay on the device, in arrays.

        Raises:
            DeviceError: the plan exceeds a limit of the device, or memory or the driver fails.
        """
        check_limits(device.info, stream)
        self._device = device
        across_bus = not device.info.has_unified_memory
        self._staged = stage(
            stream,
            stage_inputs=across_bus and not has_fast_upload_memory(device),
            stage_outputs=across_bus,
            array_inputs=array_inputs,
            array_outputs=array_outputs,
        )
        self._segments = list(_segments(self._staged))
        self._undoing: list[GpuOperation] = [*self._staged.undo]
        self._doorbell = plan_doorbell(device.info, self._staged, stream.doorbell_bytes)
        self._lock = threading.RLock()
        """Of the condition, whose own methods are Python: each call takes it twice."""
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        """How many threads are told when a lane is idle again."""
        self._owned = _Owned(device)
        self._idle: list[Lane] = []
        self._max_lanes = MAX_LANES
        self._finalizer = weakref.finalize(self, device.when_free, self._owned.close)
        try:
            with device.in_use:
                operations = (*self._staged.operations, *self._undoing)
                dispatches = [operation for operation in operations if isinstance(operation, Dispatch)]
                if self._doorbell is not None:
                    dispatches.append(self._doorbell.dispatch)
                most = stream.chained_workgroups if device.chains else 0
                switches = device.info.switches
                self._keys = {each: pipeline_key(each, switches, may_chain(each, most)) for each in dispatches}
                with made_on_all_cores(device, self._keys):
                    self._owned.acquire_pipelines(self._keys.values())
                    self._idle.append(self._add_lane())
        except BaseException:
            self.close()
            raise

    @property
    def memory(self) -> MemoryReport:
        """How much device memory the plan takes, for one call at a time."""
        memory = self._owned.lanes[0].memory
        assert memory is not None
        return memory.report

    @property
    def outputs_in_inputs(self) -> Mapping[int, int]:
        """Outputs that are what has become of an input's array, by number, and the number of the input."""
        return self._staged.outputs_in_inputs

    @property
    def host_calls(self) -> int:
        """How many operations run on the CPU in each run."""
        return sum(isinstance(segment, HostCall) for segment in self._segments)

    @property
    def dispatches(self) -> int:
        """How many dispatches each run makes."""
        return sum(isinstance(operation, Dispatch) for operation in self._staged.operations)

    @property
    def is_open(self) -> bool:
        """Whether it can run; false once it or its device is closed."""
        return self._finalizer.alive and self._device.is_open

    def run(self, inputs: Sequence[TensorOrArray]) -> list[TensorOrArray]:
        """Run once.

        Args:
            inputs: one tensor or array for each of the stream's inputs, of its shape.

        Returns:
            New tensors, one for each of the stream's outputs; arrays for those that are to be arrays.

        Raises:
            InputError: the number or shape of the inputs is wrong, or an integer doesn't fit in 32 bits.
            DeviceError: the device failed, or the executable is closed.
            RefusedError: a kernel met operands that it must not be given.
        """
        with self._device.in_use:
            lane = self._take()
            try:
                lane.begin(inputs)
                return lane.finish()
            finally:
                self._give_back(lane)

    def begin(self, inputs: Sequence[TensorOrArray]) -> CallInFlight:
        """Start a run; a third one waits here for one of two that are in flight.

        Raises:
            As for :meth:`run`.
        """
        return CallInFlight(self, inputs)

    def profile(self, inputs: Sequence[TensorOrArray]) -> tuple[list[TensorOrArray], list[OperationTime]]:
        """Run once with a timestamp after every operation; returns the outputs, and the times in order.

        A duration is the time from the end of the operation before, so the sum is the time of the whole.

        Raises:
            DeviceError: the device has no timestamps, or as for :meth:`run`.
        """
        if "timestamps" not in self._device.info.features:
            raise DeviceError(f"{self._device.info.name} has no timestamps, so its dispatches can't be profiled")
        with self._device.in_use:
            lane = self._take()
            try:
                return lane.profile(inputs)
            finally:
                self._give_back(lane)

    def close(self) -> None:
        """Give everything back to the device, once calls in flight have ended. A second call does nothing."""
        with self._lock:
            while self._finalizer.alive and len(self._idle) < len(self._owned.lanes):
                self._wait()
            if self._finalizer.detach() is not None:
                self._idle.clear()
                self._owned.close()

    def _take(self) -> Lane:
        """A lane that no other call has; the device is open."""
        with self._lock:
            while not self._idle:
                if not self.is_open:
                    raise DeviceError("this executable is closed; build the plan again")
                if len(self._owned.lanes) < self._max_lanes:
                    try:
                        return self._add_lane()
                    except DeviceError:  # memory for one call is all there is
                        self._max_lanes = len(self._owned.lanes)
                self._wait()
            return self._idle.pop()

    def _wait(self) -> None:
        """Until a lane is idle again, perhaps; the lock is held before and after."""
        self._waiting += 1
        try:
            self._changed.wait()
        finally:
            self._waiting -= 1

    def _give_back(self, lane: Lane) -> None:
        try:
            lane.settle()
        finally:
            with self._lock:
                self._idle.append(lane)
                if self._waiting:
                    self._changed.notify_all()

    def _add_lane(self) -> Lane:
        lane = Lane(
            self._device,
            self._staged,
            self._segments,
            self._undoing,
            self._keys,
            self._owned.pipelines,
            self._doorbell,
        )
        self._owned.lanes.append(lane)
        return lane


class CallInFlight:
    """A run that has begun; :meth:`finish` must be called once."""

    def __init__(self, executable: Executable, inputs: Sequence[TensorOrArray]) -> None:
        """Begin; see :meth:`Executable.begin`."""
        self._executable = executable
        self._gate = executable._device.in_use
        with self._gate:
            lane = executable._take()
            try:
                lane.begin(inputs)
            except BaseException:
                executable._give_back(lane)
                raise
            self._lane = lane
            self._gate.stay()

    def finish(self, polls: bool = True) -> list[TensorOrArray]:
        """Wait for the outputs; see :meth:`Executable.run` and :meth:`Lane.finish`."""
        with self._gate.leaving():
            try:
                return self._lane.finish(polls)
            finally:
                self._executable._give_back(self._lane)


class _Owned:
    """What an executable must give back."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.lanes: list[Lane] = []
        self.pipelines: Mapping[PipelineKey, vk.Handle] = {}
        device.register(self)

    def acquire_pipelines(self, keys: Iterable[PipelineKey]) -> None:
        """Hold the pipelines of ``keys`` until :meth:`close`."""
        self.pipelines = self._device.shared(PipelineStore).acquire(keys)

    def close(self) -> None:
        """Give it back; a second call does nothing."""
        with self._device.lock:
            if not self._device.is_open:
                return
            for lane in self.lanes:
                lane.close()
            if self.pipelines:
                self._device.shared(PipelineStore).release(self.pipelines)
                self.pipelines = {}


def _segments(staged: StagedStream) -> Iterator[Segment]:
    """Host calls, and the longest runs of GPU operations between them."""
    for on_host, group in groupby(staged.operations, key=lambda operation: isinstance(operation, HostCall)):
        operations = list(group)
        if on_host:
            yield from (operation for operation in operations if isinstance(operation, HostCall))
        else:
            yield [operation for operation in operations if not isinstance(operation, HostCall)]
