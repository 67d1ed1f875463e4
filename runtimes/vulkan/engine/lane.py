"""A lane of an executable: all that one call at a time needs. Two calls in flight take two lanes."""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from mobopt.errors import InputError
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.array_memory import ArrayMemory, ArrayPool
from mobopt.runtimes.vulkan.engine.buffers import Buffer, Place, host_view, storage_bytes
from mobopt.runtimes.vulkan.engine.chains import Progress, plan_chain
from mobopt.runtimes.vulkan.engine.code_ahead import plan_code_ahead
from mobopt.runtimes.vulkan.engine.descriptors import DescriptorSets
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.doorbell import Doorbell, DoorbellPlan
from mobopt.runtimes.vulkan.engine.exchange import DeviceSlot, HostSlot, Slot, check_shape
from mobopt.runtimes.vulkan.engine.hazards import Barrier, GpuOperation, plan_barriers
from mobopt.runtimes.vulkan.engine.memory import MemoryLayout
from mobopt.runtimes.vulkan.engine.pipelines import PipelineKey, PipelineStore
from mobopt.runtimes.vulkan.engine.poison import fill_with_nan
from mobopt.runtimes.vulkan.engine.profiling import OperationTime, ProfiledHostCall, ProfiledSegment, ProfiledStep
from mobopt.runtimes.vulkan.engine.quirks import EMULATED_CHAINS
from mobopt.runtimes.vulkan.engine.recording import (
    BoundDispatch,
    CommandPool,
    Recordable,
    Submission,
    create_fence,
    fill,
)
from mobopt.runtimes.vulkan.engine.resources import ResourceScope
from mobopt.runtimes.vulkan.engine.staging import StagedStream
from mobopt.runtimes.vulkan.engine.stream import Dispatch, Exchanged, HostCall, HostTensor
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage
from mobopt.shaders.push_constants import NO_LINK

_LOGGER = logging.getLogger("mobopt.vulkan")
_OVERDUE = (
    "%s does not start workgroups in the order of their dispatches; calls have barriers between dispatches from now on "
    "(MOBOPT_QUIRKS=no-chains has them from the start)"
)
MAX_RECORDINGS = 16
"""Sets of arrays for which a lane keeps recorded commands; those not used for longest go first."""

TensorOrArray = torch.Tensor | DeviceArray
"""What a call takes and gives."""
Segment = HostCall | list[GpuOperation]


class _OverdueError(Exception):
    """A dispatch has waited in vain for those before it."""


class _LateError(Exception):
    """The host has rung after the device had given up."""


class RefusedError(Exception):
    """A kernel raised the stream's flag: it met operands that it must not be given, so there are no results."""


class Step(Protocol):
    """A part of a run: a submission, or a call of the host."""

    def begin(self) -> None:
        """Start what needs no waiting."""

    def finish(self, polls: bool = True) -> None:
        """Wait for it, or do it."""

    def settle(self) -> None:
        """See that nothing of it runs, also after an error."""


class _HostStep:
    """A call of the host, which computes when it is waited for."""

    def __init__(self, call: HostCall, slot: Callable[[Exchanged], Slot]) -> None:
        self._call = call
        self._sources = [slot(tensor) for tensor in call.inputs]
        self._targets = [slot(tensor) for tensor in call.outputs]

    def begin(self) -> None:
        """Nothing."""

    def finish(self, polls: bool = True) -> None:
        """Compute."""
        results = self._call.run(*(source.read() for source in self._sources))
        for target, values in zip(self._targets, results, strict=True):
            target.write(values)

    def settle(self) -> None:
        """Nothing."""


class _CheckedStep:
    """A submission after which the flag is looked at, before the host goes on with what was computed."""

    def __init__(self, submission: Submission, flag: torch.Tensor) -> None:
        self._submission = submission
        self._flag = flag
        self.begin = submission.begin
        self.settle = submission.settle

    def finish(self, polls: bool = True) -> None:
        """Wait for it.

        Raises:
            RefusedError: the flag is raised.
            DeviceError: the device failed.
        """
        self._submission.finish(polls)
        if self._flag.item():
            raise RefusedError


class _DoubtfulStep:
    """A submission after which it is asked whether its dispatches waited for something in vain."""

    def __init__(self, step: Step, waited_in_vain: Callable[[], bool], error: type[Exception]) -> None:
        self._step = step
        self._waited_in_vain = waited_in_vain
        self._error = error
        self.begin = step.begin
        self.settle = step.settle

    def finish(self, polls: bool = True) -> None:
        """Wait for it.

        Raises:
            Exception: what it computed is not to be used.
            RefusedError, DeviceError: as for other steps.
        """
        try:
            self._step.finish(polls)
        except RefusedError:
            if not self._waited_in_vain():
                raise
        if self._waited_in_vain():
            raise self._error


@dataclass(eq=False)
class _Recording:
    """Steps for one set of arrays."""

    scope: ResourceScope
    pool: CommandPool
    bound: Mapping[Dispatch, BoundDispatch]
    places: Mapping[Storage, Place]
    steps: list[Step]
    is_chained: bool = False
    profiled: list[ProfiledStep] | None = None
    undo: Submission | None = None


class Lane:
    """Memory, commands and a fence for one call at a time, made by :class:`Executable`."""

    def __init__(
        self,
        device: Device,
        staged: StagedStream,
        segments: Sequence[Segment],
        undoing: list[GpuOperation],
        keys: Mapping[Dispatch, PipelineKey],
        pipelines: Mapping[PipelineKey, vk.Handle],
        doorbell: DoorbellPlan | None,
    ) -> None:
        """Allocate everything, and record the commands unless they read or write arrays.

        Raises:
            DeviceError: memory is exhausted.
        """
        self._device = device
        self._staged = staged
        self._segments = segments
        self._undoing = undoing
        self._keys = keys
        self._pipelines = pipelines
        self._doorbell_plan = doorbell
        self.scope = device.scope()
        self.memory: MemoryLayout | None = None
        self._bound_inputs = list(staged.bound_inputs)
        self._seen: list[Callable[[], DeviceArray | None]] = [lambda: None] * len(self._bound_inputs)
        """References to the arrays that were bound last, one for each of these inputs."""
        self._seen_buffers: list[Buffer] = []
        """Their memory."""
        self._arrays: dict[int, DeviceArray] = {}
        """What is bound, by the number of the input."""
        self._made: dict[Storage, ArrayMemory] = {}
        self._values: Sequence[TensorOrArray] = ()
        self._given: Sequence[torch.Tensor] = ()
        """What the host writes."""
        self._steps: Sequence[Step] = ()
        self._begun = 0
        self._written: _Recording | None = None
        """What has written to inputs that must become what they were, unless the call ends well."""
        self._recordings: OrderedDict[tuple[Buffer, ...], _Recording] = OrderedDict()
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        device, staged = self._device, self._staged
        self.memory = memory = MemoryLayout(device, staged)
        self._doorbell = None if self._doorbell_plan is None else Doorbell(device, self.scope, self._doorbell_plan)
        self._places = memory.places if self._doorbell is None else {**memory.places, **self._doorbell.places}
        self._temporary = memory.temporary
        if memory.counters:
            fill(device, memory.counters, 0)
        self._fence = create_fence(self.scope)
        self._host_slots: dict[HostTensor, HostSlot] = {}
        inputs = [self._slot(tensor) for tensor in staged.inputs]
        self._written_inputs = [(number, slot) for number, slot in enumerate(inputs) if slot is not None]
        self._outputs = [self._slot(tensor) for tensor in staged.outputs]
        self._read_outputs = [(number, slot) for number, slot in enumerate(self._outputs) if slot is not None]
        self._flag = None if staged.flag is None else self._view(staged.flag)
        self._array_storages = staged.array_storages
        self._new_arrays = list(staged.bound_outputs.values())
        self._new_bytes = [storage_bytes(storage) for storage in self._new_arrays]
        self._barriers = [
            [] if isinstance(segment, HostCall) else plan_barriers(segment, self._locate)
            for segment in (*self._segments, self._undoing)
        ]
        least = staged.code_ahead_bytes
        self._brings_code = least is not None and memory.report.constant_bytes >= least
        self._may_chain = {dispatch for dispatch, key in self._keys.items() if key.layout.is_chained}
        self._progress = Progress(device, self.scope) if self._may_chain else None
        fixed = list(self._keys)
        self._varying: list[Dispatch] = []
        if self._array_storages:
            self._varying = [dispatch for dispatch in self._keys if self._touches_arrays(dispatch)]
            fixed = [dispatch for dispatch in self._keys if not self._touches_arrays(dispatch)]
        self._fixed = self._bind(self.scope, fixed, self._places)
        if not self._array_storages:
            self._recording(())

    def begin(self, values: Sequence[TensorOrArray]) -> None:
        """Give the inputs, and start as much as needs no waiting.

        Raises:
            InputError: the number or shape of the inputs is wrong, or an integer doesn't fit in 32 bits.
            DeviceError: the device failed.
        """
        if len(values) != len(self._staged.inputs):
            raise InputError(f"the plan takes {len(self._staged.inputs)} inputs, and {len(values)} were given")
        self._values = values
        self._begin(self._device.in_use.is_lone)

    def _begin(self, may_be_early: bool = False) -> None:
        """Write the inputs and submit; where the device may wait for the inputs, the other way round."""
        self._prepare(self._values)
        recording = self._recording(self._bound_buffers())
        if self._doorbell is None:
            self._write_inputs()
            self._begin_steps(recording)
        else:
            self._begin_awaited(recording, self._doorbell, may_be_early)

    def _begin_awaited(self, recording: _Recording, bell: Doorbell, may_be_early: bool) -> None:
        bell.hush()
        try:
            if may_be_early:
                self._begin_steps(recording)
            self._write_inputs()
        finally:
            bell.ring()  # also after an error: nothing on the device must be left waiting
        if not may_be_early:
            self._begin_steps(recording)

    def _begin_steps(self, recording: _Recording) -> None:
        self._steps = recording.steps
        if self._steps:
            self._begun = 1
            self._steps[0].begin()
            self._written = recording if self._undoing else None

    def finish(self, polls: bool = True) -> list[TensorOrArray]:
        """Wait until everything is computed; the outputs, new ones, but for inputs that were written to.

        Args:
            polls: whether to poll for a short while, or to sleep: see :meth:`Submission.finish`.

        Raises:
            RefusedError: a kernel met operands that it must not be given.
            DeviceError: the device failed.
        """
        rooms = self._rooms()  # while the device computes
        while not self._is_computed(polls):
            self._begin()
            rooms = self._rooms()
        results = self._with_read(rooms)
        self._written = None
        return results

    def _is_computed(self, polls: bool) -> bool:
        """Wait; false if something was waited for in vain, which won't be again."""
        try:
            self._finish_steps(polls)
        except _OverdueError:
            self._undo()
            self._unchain()
            return False
        except _LateError:
            self._undo()
            return False
        return True

    def _finish_steps(self, polls: bool) -> None:
        for number, step in enumerate(self._steps):
            if number:
                self._begun = number + 1
                step.begin()
            step.finish(polls)
        self._begun = 0

    def _unchain(self) -> None:
        """Have barriers between dispatches from now on, whatever was recorded."""
        assert self._progress is not None
        if self._device.chains:
            _LOGGER.warning(_OVERDUE, self._device.info.name)
        self._device.chains = False
        self._progress.reset()

    def settle(self) -> None:
        """Be ready for another call, whatever has become of this one: nothing of it may run any more."""
        if self._begun:
            self._steps[self._begun - 1].settle()
            self._begun = 0
        if self._written is not None:
            self._undo()
        for slot in self._host_slots.values():
            slot.clear()
        self._arrays = {}
        self._made = {}
        self._values = ()
        self._given = ()

    def profile(self, values: Sequence[TensorOrArray]) -> tuple[list[TensorOrArray], list[OperationTime]]:
        """Run once with a timestamp after every operation."""
        self._prepare(values)
        self._write_inputs()
        recording = self._recording(self._bound_buffers())
        if recording.profiled is None:
            recording.profiled = [self._profiled_step(recording, number) for number in range(len(self._segments))]
        times: list[OperationTime] = []
        for step in recording.profiled:
            times += step.run(times[-1].start_ns + times[-1].duration_ns if times else 0)
            self._written = recording if self._undoing else None
        return self._with_read(self._rooms()), times

    def _undo(self) -> None:
        """Make inputs that were written to what they were."""
        recording, self._written = self._written, None
        if recording is None or self._device.is_lost:
            return
        if recording.undo is None:
            number = len(self._segments)
            commands = recording.pool.record(self._recordable(recording, self._undoing, number, False))
            recording.undo = Submission(self._device, commands, self._fence)
        recording.undo.run()

    def close(self) -> None:
        """Give everything back to the device, which is open."""
        for recording in self._recordings.values():
            recording.scope.close()
        self.scope.close()
        if self.memory is not None:
            self.memory.release()
            self.memory = None

    # What goes in and out.

    def _prepare(self, values: Sequence[TensorOrArray]) -> None:
        """All that may need the device before a call: it can't have it any more once the call waits there."""
        if self._device.poisons:
            fill_with_nan(self._device, self._temporary)
        self._given = [
            value.tensor() if isinstance(value := values[number], DeviceArray) else value
            for number, _ in self._written_inputs
        ]
        self._arrays = self._bindables(values)
        if self._flag is not None:
            self._flag.zero_()

    def _write_inputs(self) -> None:
        for (_, slot), value in zip(self._written_inputs, self._given, strict=True):
            slot.write(value)

    def _bindables(self, values: Sequence[TensorOrArray]) -> dict[int, DeviceArray]:
        """What is bound in this call; of arrays that were bound as they are in the call before nothing is asked."""
        given = [values[number] for number in self._bound_inputs]
        seen = [reference() for reference in self._seen]
        arrays = [array for value, array in zip(given, seen, strict=True) if array is not None and value is array]
        if len(arrays) < len(given):
            arrays = [
                array if array is not None and value is array else self._bindable(value, number)
                for value, array, number in zip(given, seen, self._bound_inputs, strict=True)
            ]
            self._seen = [weakref.ref(array) for array in arrays]
            self._seen_buffers = [array.memory.buffer for array in arrays]
        return dict(zip(self._bound_inputs, arrays, strict=True))

    def _bindable(self, value: TensorOrArray, number: int) -> DeviceArray:
        """An array of the device with the input's elements, dense from the start of its memory."""
        tensor = self._staged.inputs[number]
        assert isinstance(tensor, DeviceTensor)
        check_shape(value, tensor.sizes)
        if isinstance(value, DeviceArray):
            value.memory.check()
            if value.device is self._device and (value.dtype, value.elements) == (tensor.dtype, tensor.elements):
                return value if value.is_contiguous and value.storage_offset() == 0 else value.clone()
            value = value.tensor()
        return DeviceArray.from_tensor(self._device, value.to(tensor.dtype), tensor.elements)

    def _bound_buffers(self) -> tuple[Buffer, ...]:
        """The memory of the arrays of this call, that of the outputs new, in the order of the staged stream."""
        if not self._array_storages:
            return ()
        pool = self._device.shared(ArrayPool)
        made = pool.allocate_all(self._new_bytes)
        self._made = dict(zip(self._new_arrays, made, strict=True))
        return (*self._seen_buffers, *[memory.buffer for memory in made])

    def _rooms(self) -> list[Any]:
        """Where the outputs will be: arrays of those that stay on the device, and rooms of the others' slots."""
        return [
            self._array_output(number) if slot is None else slot.room() for number, slot in enumerate(self._outputs)
        ]

    def _array_output(self, number: int) -> DeviceArray:
        written = self._staged.outputs_in_inputs.get(number)
        if written is not None:
            return self._arrays[written]
        tensor = self._staged.outputs[number]
        assert isinstance(tensor, DeviceTensor)
        return DeviceArray(
            self._made[tensor.storage], tensor.dtype, tensor.sizes, tensor.strides, tensor.offset, tensor.elements
        )

    def _with_read(self, rooms: list[Any]) -> list[TensorOrArray]:
        """All outputs, of which the host reads those that aren't arrays."""
        for number, slot in self._read_outputs:
            rooms[number] = slot.read(rooms[number])
        return rooms

    def _slot(self, tensor: Exchanged) -> Slot | None:
        """Where the host writes or reads a tensor; None for an array."""
        if isinstance(tensor, HostTensor):
            return self._host_slots.setdefault(tensor, HostSlot(tensor))
        if tensor.storage in self._staged.array_storages:
            return None
        return DeviceSlot(self._view(tensor), tensor.dtype)

    def _host_step_slot(self, tensor: Exchanged) -> Slot:
        slot = self._slot(tensor)
        assert slot is not None, "what a host call touches has been staged"
        return slot

    def _view(self, tensor: DeviceTensor) -> torch.Tensor:
        return host_view(self._places[tensor.storage], tensor)

    # Recorded commands.

    def _touches_arrays(self, dispatch: Dispatch) -> bool:
        return any(binding.storage in self._array_storages for binding in dispatch.bindings)

    def _locate(self, storage: Storage) -> tuple[int, int]:
        """For hazards: arrays of a call that it writes to are new, so each stands for a buffer of its own."""
        place = self._places.get(storage)
        return (id(storage), 0) if place is None else (id(place.buffer), place.offset)

    def _bind(
        self, scope: ResourceScope, dispatches: Sequence[Dispatch], places: Mapping[Storage, Place]
    ) -> dict[Dispatch, BoundDispatch]:
        store = self._device.shared(PipelineStore)
        keys = [self._keys[dispatch] for dispatch in dispatches]
        layouts = {dispatch: store.layout(key.layout) for dispatch, key in zip(dispatches, keys, strict=True)}
        sets = DescriptorSets(self._device, scope, layouts, places).handles
        return {
            dispatch: BoundDispatch(self._pipelines[key], layout.handle, sets, number)
            for number, ((dispatch, layout), key) in enumerate(zip(layouts.items(), keys, strict=True))
        }

    def _recording(self, buffers: tuple[Buffer, ...]) -> _Recording:
        """The commands for these arrays, recorded when they are first met."""
        recording = self._recordings.get(buffers)
        if recording is not None and recording.is_chained and not self._device.chains:
            self._recordings.pop(buffers).scope.close()
            recording = None
        if recording is None:
            while len(self._recordings) >= MAX_RECORDINGS:
                self._recordings.popitem(last=False)[1].scope.close()
            recording = self._recordings[buffers] = self._record(buffers)
        elif buffers:
            self._recordings.move_to_end(buffers)
        return recording

    def _record(self, buffers: tuple[Buffer, ...]) -> _Recording:
        arrays = {
            storage: Place(buffer, 0, storage_bytes(storage))
            for storage, buffer in zip(self._array_storages, buffers, strict=True)
        }
        places = {**self._places, **arrays}
        scope = self._device.scope()
        try:
            bound = {**self._fixed, **self._bind(scope, self._varying, places)}
            recording = _Recording(scope, CommandPool(self._device, scope), bound, places, [])
            recording.is_chained = self._progress is not None and self._device.chains
            recording.steps = [self._step(recording, number) for number in range(len(self._segments))]
            return recording
        except BaseException:
            scope.close()
            raise

    def _step(self, recording: _Recording, number: int) -> Step:
        segment = self._segments[number]
        if isinstance(segment, HostCall):
            return _HostStep(segment, self._host_step_slot)
        bell = self._doorbell if number == 0 else None
        commands = recording.pool.record(self._recordable(recording, segment, number, recording.is_chained, bell))
        submission = Submission(self._device, commands, self._fence)
        step: Step = submission if self._flag is None else _CheckedStep(submission, self._flag)
        if recording.is_chained and self._progress is not None:
            step = _DoubtfulStep(step, self._progress.is_overdue, _OverdueError)
        return step if bell is None else _DoubtfulStep(step, bell.is_late, _LateError)

    def _recordable(
        self,
        recording: _Recording,
        segment: Sequence[GpuOperation],
        number: int,
        is_chained: bool,
        bell: Doorbell | None = None,
    ) -> Recordable:
        barriers: Sequence[Barrier | None] = self._barriers[number]
        if bell is not None:
            segment, barriers = bell.plan.before(segment, barriers)
        links = dict.fromkeys(self._may_chain, NO_LINK)
        ahead: Mapping[int, list[Dispatch]] = {}
        if is_chained:
            chained = plan_chain(segment, barriers, self._may_chain.__contains__, self._locate)
            if self._brings_code:
                ahead = plan_code_ahead(segment, chained.barriers, self._keys)
            if EMULATED_CHAINS not in self._device.info.switches:
                barriers = chained.barriers
            links.update((step, link) for step, link in zip(segment, chained.links, strict=True) if step in links)
        continues = number > 0 or bool(self._array_storages)
        constants = {dispatch: links[dispatch].pack() for dispatch in self._may_chain}
        progress = None if self._progress is None else self._progress.descriptor_set
        return Recordable(segment, barriers, recording.bound, recording.places, continues, constants, progress, ahead)

    def _profiled_step(self, recording: _Recording, number: int) -> ProfiledStep:
        segment = self._segments[number]
        if isinstance(segment, HostCall):
            return ProfiledHostCall(segment, recording.steps[number].finish)
        info = vk.struct("VkQueryPoolCreateInfo", queryType=vk.VK_QUERY_TYPE_TIMESTAMP, queryCount=len(segment) + 1)
        queries = recording.scope.create("QueryPool", info, "make a query pool")
        commands = recording.pool.record(self._recordable(recording, segment, number, False), queries)
        return ProfiledSegment(self._device, segment, Submission(self._device, commands, self._fence), queries)
