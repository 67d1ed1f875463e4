"""What a program keeps for one signature of inputs: an executable, with the way from a call's tensors to its result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch

from mobopt import ir
from mobopt.ir.nests import copy_nests, leaves_of, map_leaves
from mobopt.runtimes.host_tape import Ref
from mobopt.runtimes.results import Results
from mobopt.runtimes.segment import Alias, HostLeaf, Returned, Segment
from mobopt.runtimes.state import ModelState
from mobopt.runtimes.vulkan.array_outputs import ArrayOutputs, may_stay
from mobopt.runtimes.vulkan.compile.build import Built
from mobopt.runtimes.vulkan.compile.host_function import HostFunction
from mobopt.runtimes.vulkan.compile.integer_ranges import Interval, is_within
from mobopt.runtimes.vulkan.compile.placement import class_of, integer_class
from mobopt.runtimes.vulkan.device_results import DeviceResults
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.lane import RefusedError, TensorOrArray
from mobopt.runtimes.vulkan.engine.profiling import OperationTime
from mobopt.runtimes.vulkan.engine.stream import HostTensor
from mobopt.runtimes.vulkan.plan_report import PlanReport
from mobopt.runtimes.vulkan.state_arrays import StateArrays

Remember = Callable[[int, torch.Tensor, DeviceArray | None], None]
"""Takes the number of an output, the output on the CPU, and an array with its elements."""


class CallTensors:
    """The tensors and numbers of one call, where it stands.

    Attributes:
        wholes: the memories of the state, in the state's own tensors.
        given: elements that were read and numbers of the host, with which the next segment's tape begins.
        values: of the tape of the segment that is up.
        mirrored: arrays with the elements of inputs on the CPU, by number.
    """

    def __init__(
        self, inputs: Sequence[TensorOrArray], wholes: Sequence[torch.Tensor], mirrored: Mapping[int, DeviceArray]
    ) -> None:
        """Begin.

        Args:
            inputs: tensors of arguments, then of the state, each on the CPU or in an array.
            wholes: the memories of the state.
            mirrored: arrays with the elements of inputs on the CPU, by number.
        """
        self.wholes = wholes
        self.answers: Sequence[torch.Tensor] = ()
        self.numbers: Sequence[Any] = ()
        self.values: Sequence[Any] = ()
        self._inputs = inputs
        self._carried: Sequence[TensorOrArray] = ()
        self._hosted: Sequence[torch.Tensor] = ()
        self.mirrored = mirrored
        self._arrays: dict[int, DeviceArray] = {**mirrored}
        self._classes = tuple([_integer_class(value) for value in inputs if value.dtype == torch.int64])

    @property
    def inputs(self) -> Sequence[TensorOrArray]:
        """What the segment takes that is up: what is carried to it, what the host computed, then the call's inputs."""
        if not (self._carried or self._hosted):
            return self._inputs
        return [*self._carried, *self._hosted, *self._inputs]

    @property
    def given(self) -> list[Any]:
        """What the tape of the next segment begins with."""
        return [*self.answers, *self.numbers]

    def integers(self) -> tuple[Interval, ...]:
        """The classes of the int64 tensors among the inputs."""
        if not (self._carried or self._hosted):
            return self._classes
        taken = [*self._carried, *self._hosted]
        return (*[_integer_class(value) for value in taken if value.dtype == torch.int64], *self._classes)

    def carry(self, carried: Sequence[TensorOrArray], answers: Sequence[torch.Tensor], numbers: Sequence[Any]) -> None:
        """Go on to the next segment."""
        self._carried, self.answers, self.numbers = carried, answers, numbers
        self._hosted = ()

    def host(self, values: Sequence[Any], hosted: Sequence[Ref]) -> None:
        """Take what the host computed for the segment."""
        self.values = values
        self._hosted = [values[ref.number] for ref in hosted]

    def array(self, number: int, device: Device) -> TensorOrArray:
        """An input of the segment; one of the call on the device, where it is copied once for all but the first."""
        number -= len(self._carried)
        if number < 0:
            return self._carried[number]
        number -= len(self._hosted)
        tensor = self._inputs[number]
        if isinstance(tensor, DeviceArray):
            return tensor
        if number not in self._arrays:
            self._arrays[number] = DeviceArray.from_tensor(device, tensor)
        return self._arrays[number]

    def own(self, number: int, seen: Collection[int]) -> TensorOrArray:
        """What is carried or hosted, as a tensor or an array that neither the caller nor the state has, nor those
        ``seen``."""
        if number >= len(self._carried):
            return self._hosted[number - len(self._carried)].clone()
        value = self._carried[number]
        is_shared = id(value) in seen or any(value is given for given in self._inputs)
        return value.clone() if is_shared else value


class RefusedOperandsError(Exception):
    """The device met operands that it must not be given."""


class WideFloatsError(Exception):
    """It did, though torch takes them: floats that are too large to become int64 there."""


class CallPlan:
    """An executable, and what becomes of its outputs.

    Attributes:
        following: where the call goes on after a look at elements; None if it ends here.
        exposes: numbers of the segment's inputs that are parts of the state and lie on the device, though the result
            shares their memory with the caller: the plan is of no use but to say so.
        segment: as it was lowered.
        outputs: the values of the segment that :meth:`compute` gives.
        own_bytes: memory of the device that it takes beside constants.
        users: how many calls have the plan now; the program counts them.
        is_retired: whether the last of them closes it.
    """

    report: PlanReport

    def __init__(
        self,
        device: Device,
        segment: Segment,
        built: Built,
        gives_arrays: bool,
        state: ModelState,
        arrays: StateArrays,
        in_arrays: Collection[int],
        stays: ArrayOutputs,
        is_later: bool,
        mirrored: Collection[int] = (),
        remember: Remember | None = None,
    ) -> None:
        """Make the executable.

        Args:
            device: where it runs.
            segment: as it was lowered.
            built: what it was lowered to.
            gives_arrays: whether results stay on the device.
            state: of the model.
            arrays: what of it lies on the device.
            in_arrays: numbers of the segment's inputs, arguments and parts of the state, that are given there.
            stays: what it computes that stays there.
            is_later: whether it isn't the first segment of the call; others take what they can in arrays.
            mirrored: numbers of the segment's inputs that are on the CPU, and in arrays too.
            remember: is told of each output that is returned on the CPU, with its number and array.
        """
        self.following = segment.following
        self.users = 0
        self.is_retired = False
        self._device, self._state, self._arrays = device, state, arrays
        self._gives_arrays = gives_arrays
        self.segment = segment
        self.exposes = () if gives_arrays else tuple(number for number in in_arrays if self._is_returned(number))
        hosted = range(segment.taken - len(segment.hosted), segment.taken)
        resident = {number for number, value in enumerate(segment.inputs) if is_later and may_stay(value)}
        resident |= set(mirrored)
        bound = {
            index
            for index, (number, tensor) in enumerate(zip(built.inputs, built.stream.inputs, strict=True))
            if not isinstance(tensor, HostTensor)
            and number not in hosted
            and (number in in_arrays or number in resident)
        }
        self._resident = {built.inputs[index] for index in bound} & resident
        outputs = {index for index, ref in enumerate(built.outputs) if ref in stays.alone}
        self._remember = remember if segment.is_complete and not gives_arrays else None
        self._kept = [
            index
            for index, (value, tensor) in enumerate(zip(built.outputs, built.stream.outputs, strict=True))
            if value in stays.too and not isinstance(tensor, HostTensor)
        ]
        given, again = built.stream.outputs, [built.stream.outputs[number] for number in self._kept]
        outputs |= set(range(len(given), len(given) + len(again)))
        stream = replace(built.stream, outputs=[*given, *again])
        self.executable = Executable(device, stream, bound, outputs) if built.outputs else None
        memory = None if self.executable is None else self.executable.memory
        self.own_bytes = 0 if memory is None else memory.arena_bytes + memory.io_bytes
        self._taken = built.inputs
        first = len(segment.inputs)
        self._written = {
            index: built.inputs[index] - first
            for index, tensor in enumerate(built.stream.inputs)
            if not isinstance(tensor, HostTensor) and tensor.storage in built.stream.in_place
        }
        """Inputs of the stream that it writes to, and which memory of the state each is, counted from the last."""
        self.outputs = built.outputs
        self._assumed = [built.assumed[value] for value in segment.inputs if value in built.assumed]
        returned = set(segment.graph.outputs)
        self._handed_on = [number for number in range(segment.taken) if segment.inputs[number] in returned]
        is_plain = segment.result == Returned(0) and segment.graph.outputs == built.outputs
        self._has_numbers = any(True for _ in leaves_of([segment.result, dict(segment.updates)], HostLeaf))
        self._has_plain_result = is_plain and not (segment.updates or segment.writes or remember)

    @property
    def is_complete(self) -> bool:
        """Whether the call ends with it."""
        return self.following is None

    def _is_returned(self, number: int) -> bool:
        """Whether a tensor of the result lies in the memory of an input."""
        memory = self.segment.inputs[number]
        return any(self.segment.value_of(leaf) is memory for leaf in leaves_of(self.segment.result, Alias))

    def _remembered(self, computed: Sequence[TensorOrArray], remember: Remember) -> Sequence[TensorOrArray]:
        """The outputs on the CPU, once it is said which arrays have their elements."""
        results = [on_host(value) for value in computed[: len(self.outputs)]]
        arrays = dict(zip(self._kept, computed[len(self.outputs) :], strict=True))
        for number, result in enumerate(results):
            array = arrays.get(number)
            assert array is None or isinstance(array, DeviceArray)
            remember(self.segment.graph.outputs.index(self.outputs[number]), result, array)
        return results

    def is_right_for(self, integers: Sequence[Interval]) -> bool:
        """Whether int64 tensors of these classes are what it was made for."""
        if not (self._assumed or integers):
            return True
        return all(is_within(given, assumed) for given, assumed in zip(integers, self._assumed, strict=True))

    def run(self, given: CallTensors) -> Any:
        """Compute, and return the result; the state is what the call has made of it.

        Raises:
            RefusedOperandsError: the device met operands that it must not be given.
        """
        return self.deliver(given, self.compute(given))

    def begin(self, given: CallTensors) -> Callable[[bool], Any]:
        """Start to compute; what is returned must be called once, waits and delivers. It is told whether to poll.

        Raises:
            As for :meth:`run`.
        """
        if self.executable is None:
            return lambda polls: self.deliver(given, [])
        call = self.executable.begin(self._given(given))
        return lambda polls: self.deliver(given, _checked(lambda: call.finish(polls)))

    def compute(self, given: CallTensors) -> Sequence[TensorOrArray]:
        """The outputs of the device; see :meth:`run` for errors."""
        executable = self.executable
        if executable is None:
            return []
        return _checked(lambda: executable.run(self._given(given)))

    def hand_on(self, given: CallTensors, computed: Sequence[TensorOrArray]) -> None:
        """Read the elements that an incomplete segment asks for; the call stands before the next one then."""
        values: dict[ir.Value, TensorOrArray] = dict(zip(self.segment.inputs, given.inputs, strict=True))
        values.update(zip(self.outputs, computed, strict=True))
        handed = [*self.segment.values_in(self.segment.result), *self.segment.values_in(self.segment.carried)]
        values.update({value: value.elements.clone() for value in handed if value.elements is not None})
        looked = {value: on_host(values[value]) for value in self.segment.values_in(self.segment.result)}
        values.update(looked)
        carried = [values[value] for value in self.segment.values_in(self.segment.carried)]
        given.carry(carried, *self.segment.handed_on(given.values, [*looked.values()]))

    def profile(self, given: CallTensors) -> tuple[Sequence[TensorOrArray], list[OperationTime]]:
        """The outputs of the device, and the times of one run."""
        return ([], []) if self.executable is None else self.executable.profile(self._given(given))

    def close(self) -> None:
        """Give the device's memory back."""
        if self.executable is not None:
            self.executable.close()

    def _given(self, given: CallTensors) -> list[TensorOrArray]:
        inputs, resident = given.inputs, self._resident
        taken = [given.array(number, self._device) if number in resident else inputs[number] for number in self._taken]
        for index, memory in self._written.items():
            taken[index] = self._arrays.own(given.wholes[memory])
        return taken

    def deliver(self, given: CallTensors, computed: Sequence[TensorOrArray]) -> Any:
        """The result of a call, whose state becomes what it has made of it.

        Args:
            given: the call's tensors.
            computed: what :meth:`compute` gave.
        """
        if self._has_plain_result:
            return computed[0]
        if self._remember is not None:
            computed = self._remembered(computed, self._remember)
        values = dict(zip(self.outputs, computed, strict=True))
        seen: set[int] = set()
        for number in self._handed_on:
            value = given.own(number, seen)
            seen.add(id(value))
            values[self.segment.inputs[number]] = value
        segment = self.segment
        if self._has_numbers:
            segment = _with_numbers(segment, given.values)
        if not self._gives_arrays and not given.wholes and not segment.updates:
            on_cpu = {value: on_host(tensor) for value, tensor in values.items()}
            return Results(segment, on_cpu, given.inputs).deliver()[0]
        results = DeviceResults(segment, values, given.inputs, self._gives_arrays)
        return results.deliver_and_keep(self._device, self._state, given.wholes, self._arrays)


def find_fault(segment: Segment, given: CallTensors) -> NoReturn:
    """Say what is wrong with operands that the device refused, by the CPU's kernels.

    Args:
        segment: as the model has it: of decomposed operators, the parts would not say what torch does.
        given: the call's tensors.

    Raises:
        InputError: an operator refuses its operands, with torch's words.
        WideFloatsError: nothing is wrong with them.
    """
    HostFunction(segment.graph.block.nodes, segment.inputs, ())(*map(on_host, given.inputs))
    raise WideFloatsError


def _checked(compute: Callable[[], Sequence[TensorOrArray]]) -> Sequence[TensorOrArray]:
    try:
        return compute()
    except RefusedError:
        raise RefusedOperandsError from None


def _with_numbers(segment: Segment, values: Sequence[Any]) -> Segment:
    """A segment with the numbers that the host computed for it."""

    def number(leaf: HostLeaf) -> Any:
        return values[leaf.ref.number]

    result = map_leaves(segment.result, HostLeaf, number)
    return replace(segment, result=result, updates=copy_nests(segment.updates, HostLeaf, number))


def _integer_class(value: TensorOrArray) -> Interval:
    return class_of(value.bounds) if isinstance(value, DeviceArray) else integer_class(value)


def on_host(value: TensorOrArray) -> torch.Tensor:
    """A tensor, or what an array holds."""
    return value.tensor() if isinstance(value, DeviceArray) else value
