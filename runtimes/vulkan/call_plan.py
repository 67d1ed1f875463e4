"""What a program keeps for one signature of inputs: an executable, with the way from a call's tensors to its result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch

from mobopt import ir
from mobopt.ir.nests import copy_nests, leaves_of, map_leaves
from mobopt.runtimes.results import Results
from mobopt.runtimes.segment import Alias, HostLeaf, Leaf, Returned, Segment
from mobopt.runtimes.state import ModelState
from mobopt.runtimes.vulkan.array_outputs import ArrayOutputs, may_stay
from mobopt.runtimes.vulkan.call import Call, on_host
from mobopt.runtimes.vulkan.compile.build import Built
from mobopt.runtimes.vulkan.compile.host_function import HostFunction
from mobopt.runtimes.vulkan.compile.integer_ranges import is_within
from mobopt.runtimes.vulkan.device_results import DeviceResults, as_array
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.lane import TensorOrArray
from mobopt.runtimes.vulkan.engine.profiling import OperationTime
from mobopt.runtimes.vulkan.engine.stream import HostTensor
from mobopt.runtimes.vulkan.plan_report import PlanReport
from mobopt.runtimes.vulkan.state_arrays import StateArrays

Remember = Callable[[int, torch.Tensor, DeviceArray | None], None]
"""Takes the number of an output, the output on the CPU, and an array with its elements."""


class WideFloatsError(Exception):
    """The device refused operands, though torch takes them: floats that are too large to become int64 there."""


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
        self._takes_inputs = self._taken == tuple(range(first)) and not (self._resident or self._written)
        self.outputs = built.outputs
        self._assumed = [built.assumed[value] for value in segment.inputs if value in built.assumed]
        self._owned_version = 0
        """Of the state's arrays, when it was seen last that nobody else has those that are written to."""
        self._writer = object()
        """By which the state's arrays know the plan; the plan itself they would keep alive."""
        self._prepare_delivery(remember is not None)

    @property
    def is_complete(self) -> bool:
        """Whether the call ends with it."""
        return self.following is None

    def _prepare_delivery(self, may_remember: bool) -> None:
        """Find out how a call's result comes of what it computes: few need all that :class:`DeviceResults` does."""
        segment = self.segment
        returned = set(segment.graph.outputs)
        self._handed_on = [number for number in range(segment.taken) if segment.inputs[number] in returned]
        self._has_numbers = any(True for _ in leaves_of([segment.result, dict(segment.updates)], HostLeaf))
        is_all_computed = segment.graph.outputs == self.outputs and not (self._has_numbers or segment.updates)
        is_plain = is_all_computed and not (segment.writes or may_remember)
        are_returned = all(isinstance(leaf, Returned) for leaf in leaves_of(segment.result, Leaf))
        self._has_plain_result = is_plain and segment.result == Returned(0)
        self._has_plain_results = is_plain and are_returned and not self._gives_arrays
        self._renews = is_all_computed and are_returned and self._remember is None and self._writes_in_place()

    def _writes_in_place(self) -> bool:
        """Whether a call changes the state, and only by writing to arrays that it does not return."""
        if self.executable is None or not self.segment.writes:
            return False
        values, inputs = self.outputs, self.segment.inputs
        pairs = self.executable.outputs_in_inputs.items()
        renewed = {inputs[self._taken[number]]: values[output] for output, number in pairs if output < len(values)}
        returned = set(self.segment.values_in(self.segment.result))
        return self.segment.written == renewed and returned.isdisjoint(renewed.values())

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

    def is_right_for(self, call: Call) -> bool:
        """Whether int64 tensors of a call's classes are what it was made for."""
        if not self._assumed:
            return True
        return all(is_within(has, assumed) for has, assumed in zip(call.integers(), self._assumed, strict=True))

    def run(self, call: Call) -> Any:
        """Compute, and return the result; the state is what the call has made of it.

        Raises:
            RefusedError: the device met operands that it must not be given.
        """
        return self.deliver(call, self.compute(call))

    def begin(self, call: Call) -> Callable[[bool], Any]:
        """Start to compute; what is returned must be called once, waits and delivers. It is told whether to poll.

        Raises:
            As for :meth:`run`.
        """
        if self.executable is None:
            return lambda polls: self.deliver(call, [])
        run = self.executable.begin(self._given(call))
        return lambda polls: self.deliver(call, run.finish(polls))

    def compute(self, call: Call) -> Sequence[TensorOrArray]:
        """The outputs of the device; see :meth:`run` for errors."""
        return [] if self.executable is None else self.executable.run(self._given(call))

    def hand_on(self, call: Call, computed: Sequence[TensorOrArray]) -> None:
        """Read the elements that an incomplete segment asks for; the call stands before the next one then."""
        values: dict[ir.Value, TensorOrArray] = dict(zip(self.segment.inputs, call.inputs, strict=True))
        values.update(zip(self.outputs, computed, strict=True))
        handed = [*self.segment.values_in(self.segment.result), *self.segment.values_in(self.segment.carried)]
        values.update({value: value.elements.clone() for value in handed if value.elements is not None})
        looked = {value: on_host(values[value]) for value in self.segment.values_in(self.segment.result)}
        values.update(looked)
        carried = [values[value] for value in self.segment.values_in(self.segment.carried)]
        call.go_on(self.following, carried, *self.segment.handed_on(call.values, [*looked.values()]))

    def profile(self, call: Call) -> tuple[Sequence[TensorOrArray], list[OperationTime]]:
        """The outputs of the device, and the times of one run."""
        return ([], []) if self.executable is None else self.executable.profile(self._given(call))

    def close(self) -> None:
        """Give the device's memory back."""
        if self.executable is not None:
            self.executable.close()

    def _given(self, call: Call) -> Sequence[TensorOrArray]:
        if self._takes_inputs:
            return call.inputs
        inputs, resident = call.inputs, self._resident
        taken = [call.array(number, self._device) if number in resident else inputs[number] for number in self._taken]
        if self._written and self._owned_version != self._arrays.version:
            for index, memory in self._written.items():
                taken[index] = self._arrays.own(call.wholes[memory])
            self._owned_version = self._arrays.version
        return taken

    def _where_wanted(self, value: TensorOrArray) -> TensorOrArray:
        """A result on the device, if the call wants it there and the device has elements for it."""
        if self._gives_arrays and isinstance(value, torch.Tensor):
            return as_array(self._device, value)
        return value

    def deliver(self, call: Call, computed: Sequence[TensorOrArray]) -> Any:
        """The result of a call, whose state becomes what it has made of it.

        Args:
            call: which began with the plan.
            computed: what :meth:`compute` gave.
        """
        if self._has_plain_result:
            return computed[0]
        if self._has_plain_results:
            return map_leaves(self.segment.result, Returned, lambda leaf: computed[leaf.number])
        if self._renews:
            self._arrays.renew(self._writer, (call.wholes[memory] for memory in self._written.values()))
            return map_leaves(self.segment.result, Returned, lambda leaf: self._where_wanted(computed[leaf.number]))
        if self._remember is not None:
            computed = self._remembered(computed, self._remember)
        values = dict(zip(self.outputs, computed, strict=True))
        seen: set[int] = set()
        for number in self._handed_on:
            value = call.own(number, seen)
            seen.add(id(value))
            values[self.segment.inputs[number]] = value
        segment = self.segment
        if self._has_numbers:
            segment = _with_numbers(segment, call.values)
        if not self._gives_arrays and not call.wholes and not segment.updates:
            on_cpu = {value: on_host(tensor) for value, tensor in values.items()}
            return Results(segment, on_cpu, call.inputs).deliver()[0]
        results = DeviceResults(segment, values, call.inputs, self._gives_arrays)
        return results.deliver_and_keep(self._device, self._state, call.wholes, self._arrays)


def find_fault(segment: Segment, call: Call) -> NoReturn:
    """Say what is wrong with operands that the device refused, by the CPU's kernels.

    Args:
        segment: as the model has it: of decomposed operators, the parts would not say what torch does.
        call: which was refused.

    Raises:
        InputError: an operator refuses its operands, with torch's words.
        WideFloatsError: nothing is wrong with them.
    """
    HostFunction(segment.graph.block.nodes, segment.inputs, ())(*map(on_host, call.inputs))
    raise WideFloatsError


def _with_numbers(segment: Segment, values: Sequence[Any]) -> Segment:
    """A segment with the numbers that the host computed for it."""

    def number(leaf: HostLeaf) -> Any:
        return values[leaf.ref.number]

    result = map_leaves(segment.result, HostLeaf, number)
    return replace(segment, result=result, updates=copy_nests(segment.updates, HostLeaf, number))
