"""What a program keeps for one signature of inputs: an executable, with the way from a call's tensors to its result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from mobopt import ir
from mobopt.ir.nests import leaves_of
from mobopt.runtimes.results import Results
from mobopt.runtimes.segment import Alias, Returned, Segment
from mobopt.runtimes.state import ModelState
from mobopt.runtimes.vulkan.compile.build import Built, Fallback
from mobopt.runtimes.vulkan.compile.host_function import HostFunction
from mobopt.runtimes.vulkan.compile.integer_ranges import Interval, is_within
from mobopt.runtimes.vulkan.device_results import DeviceResults
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.lane import RefusedError, Value
from mobopt.runtimes.vulkan.engine.memory import MemoryReport
from mobopt.runtimes.vulkan.engine.profiling import OperationTime
from mobopt.runtimes.vulkan.state_arrays import StateArrays


class CallTensors(NamedTuple):
    """The tensors of one call."""

    inputs: Sequence[Value]
    """Those of the trace's inputs: of arguments, then of the state, each on the CPU or in an array."""
    wholes: Sequence[torch.Tensor]
    """The memories of the state, in the state's own tensors."""


@dataclass(frozen=True)
class PlanReport:
    """What one plan is made of."""

    method: str
    signature: str
    dispatches: int
    fallbacks: tuple[Fallback, ...]
    """Calls that run on the CPU, with the reason for each."""
    looks: int
    """Tensors whose elements the CPU read before the plan could be made: they decide a size, a branch or a number."""
    memory: MemoryReport | None
    """None if nothing is left to compute."""
    build_seconds: float


class WideFloatsError(Exception):
    """The device met floats that are too large to become int64 there."""


class CallPlan:
    """An executable, and what becomes of its outputs.

    Attributes:
        exposes: numbers of the segment's inputs that are parts of the state and lie on the device, though the result
            shares their memory with the caller: the plan is of no use but to say so.
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
        kept: Collection[int],
    ) -> None:
        """Make the executable.

        Args:
            device: where it runs.
            segment: as it was lowered.
            built: what it was lowered to.
            gives_arrays: whether results stay on the device, and arguments are taken from there.
            state: of the model.
            arrays: what of it lies on the device.
            kept: numbers of the segment's inputs that are parts of the state and lie there.
        """
        self.is_complete = segment.is_complete
        self.users = 0
        self.is_retired = False
        self._device, self._state, self._arrays = device, state, arrays
        self._gives_arrays = gives_arrays
        self._segment = segment
        self.exposes = () if gives_arrays else tuple(number for number in kept if self._is_returned(number))
        inputs = {index for index, number in enumerate(built.inputs) if gives_arrays or number in kept}
        staying = self._staying({segment.inputs[number] for number in kept})
        outputs = {index for index, ref in enumerate(built.outputs) if gives_arrays or ref in staying}
        self.executable = (
            Executable(device, built.stream, inputs, outputs if segment.is_complete else ()) if built.outputs else None
        )
        self._taken = built.inputs
        self._outputs = built.outputs
        self._assumed = [built.assumed[value] for value in segment.inputs if value in built.assumed]
        is_plain = segment.result == Returned(0) and segment.graph.outputs == built.outputs
        self._has_plain_result = is_plain and not (segment.updates or segment.writes)

    def _is_returned(self, number: int) -> bool:
        """Whether a tensor of the result lies in the memory of an input."""
        memory = self._segment.inputs[number]
        return any(self._segment.value_of(leaf) is memory for leaf in leaves_of(self._segment.result, Alias))

    def _staying(self, kept: Collection[ir.Value]) -> set[ir.Value]:
        """What is computed for the state and stays on the device: what is written to memories that lie there, and new
        values that are not returned too."""
        segment = self._segment
        staying = {value for target, value in segment.written.items() if target in kept}
        staying |= set(segment.values_in(segment.updates)) - set(segment.values_in(segment.result))
        return {value for value in staying if value.dtype != torch.int64 and value.numel}

    def is_right_for(self, integers: Sequence[Interval]) -> bool:
        """Whether int64 tensors of these classes are what it was made for."""
        return all(is_within(given, assumed) for given, assumed in zip(integers, self._assumed, strict=True))

    def run(self, given: CallTensors) -> Any:
        """Compute, and return the result; the state is what the call has made of it.

        Raises:
            InputError: the device met operands that it must not be given, and torch's kernel says what is wrong.
            WideFloatsError: nothing is wrong with them.
        """
        return self._deliver(given, self._computed(given.inputs))

    def begin(self, given: CallTensors) -> Callable[[], Any]:
        """Start to compute; what is returned must be called once, waits and delivers.

        Raises:
            As for :meth:`run`.
        """
        if self.executable is None:
            return lambda: self._deliver(given, [])
        call = self.executable.begin(self._given(given.inputs))
        return lambda: self._deliver(given, self._checked(given.inputs, call.finish))

    def look(self, given: CallTensors) -> list[torch.Tensor]:
        """The elements that an incomplete segment asks for."""
        values = dict(zip(self._segment.inputs, given.inputs, strict=True))
        values.update(zip(self._outputs, self._computed(given.inputs), strict=True))
        return [on_host(values[value]) for value in self._segment.values_in(self._segment.result)]

    def profile(self, given: CallTensors) -> list[OperationTime]:
        """Times of one run."""
        return [] if self.executable is None else self.executable.profile(self._given(given.inputs))[1]

    def close(self) -> None:
        """Give the device's memory back."""
        if self.executable is not None:
            self.executable.close()

    def _given(self, inputs: Sequence[Value]) -> list[Value]:
        return [inputs[number] for number in self._taken]

    def _computed(self, inputs: Sequence[Value]) -> Sequence[Value]:
        """The outputs of the device; see :meth:`run` for errors."""
        executable = self.executable
        if executable is None:
            return []
        return self._checked(inputs, lambda: executable.run(self._given(inputs)))

    def _checked(self, inputs: Sequence[Value], compute: Callable[[], Sequence[Value]]) -> Sequence[Value]:
        try:
            return compute()
        except RefusedError:
            HostFunction(self._segment.graph.block.nodes, self._segment.inputs, self._outputs)(*map(on_host, inputs))
            raise WideFloatsError from None

    def _deliver(self, given: CallTensors, computed: Sequence[Value]) -> Any:
        if self._has_plain_result:
            return computed[0]
        values = dict(zip(self._outputs, computed, strict=True))
        if not self._gives_arrays and not given.wholes and not self._segment.updates:
            return Results(self._segment, values, given.inputs).deliver()[0]
        results = DeviceResults(self._segment, values, given.inputs, self._gives_arrays)
        return results.deliver_and_keep(self._device, self._state, given.wholes, self._arrays)


def on_host(value: Value) -> torch.Tensor:
    """A tensor, or what an array holds."""
    return value.tensor() if isinstance(value, DeviceArray) else value
