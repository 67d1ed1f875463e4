"""What a program keeps for one signature of inputs: an executable, with the way from a call's tensors to its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mobopt.runtimes.call import Trace
from mobopt.runtimes.results import Results
from mobopt.runtimes.vulkan.array_results import ArrayResults
from mobopt.runtimes.vulkan.compile.build import Built, Fallback
from mobopt.runtimes.vulkan.compile.host_function import HostFunction
from mobopt.runtimes.vulkan.compile.integer_ranges import Interval, is_within
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.lane import RefusedError, Value
from mobopt.runtimes.vulkan.engine.memory import MemoryReport
from mobopt.runtimes.vulkan.engine.profiling import OperationTime

Delivered = tuple[Any, dict[str, Any]]
"""A call's result, and the new values of attributes; the state's tensors hold what was written to them."""


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
        users: how many calls have the plan now; the program counts them.
        is_retired: whether the last of them closes it.
    """

    report: PlanReport

    def __init__(self, device: Device, trace: Trace, built: Built, gives_arrays: bool) -> None:
        """Make the executable.

        Args:
            device: where it runs.
            trace: before it was lowered.
            built: what it was lowered to.
            gives_arrays: whether results stay on the device, and arguments are taken from there.
        """
        self.is_complete = trace.is_complete
        self.users = 0
        self.is_retired = False
        self._device = device
        self._gives_arrays = gives_arrays
        inputs = range(len(built.stream.inputs)) if gives_arrays else ()
        outputs = range(len(built.stream.outputs)) if gives_arrays and trace.is_complete else ()
        self.executable = Executable(device, built.stream, inputs, outputs) if built.outputs else None
        self._taken = built.inputs
        self._outputs = built.outputs
        self._assumed = [built.assumed[ref] for ref in trace.inputs if ref in built.assumed]
        self._calls = trace.calls
        self._trace = built.trace
        is_plain = len(built.outputs) == 1 and built.trace.result is built.outputs[0]
        self._has_plain_result = is_plain and not (built.trace.updates or built.trace.writes)

    def is_right_for(self, integers: Sequence[Interval]) -> bool:
        """Whether int64 tensors of these classes are what it was made for."""
        return all(is_within(given, assumed) for given, assumed in zip(integers, self._assumed, strict=True))

    def run(self, tensors: Sequence[Value]) -> Delivered:
        """Compute and deliver.

        Raises:
            InputError: the device met operands that it must not be given, and torch's kernel says what is wrong.
            WideFloatsError: nothing is wrong with them.
        """
        return self._deliver(tensors, self._computed(tensors))

    def begin(self, tensors: Sequence[Value]) -> Callable[[], Delivered]:
        """Start to compute; what is returned must be called once, waits and delivers.

        Raises:
            As for :meth:`run`.
        """
        if self.executable is None:
            return lambda: self._deliver(tensors, [])
        call = self.executable.begin(self._given(tensors))
        return lambda: self._deliver(tensors, self._checked(tensors, call.finish))

    def look(self, tensors: Sequence[Value]) -> list[torch.Tensor]:
        """The elements that an incomplete trace asks for."""
        values = dict(zip(self._trace.inputs, tensors, strict=True))
        values.update(zip(self._outputs, self._computed(tensors), strict=True))
        return [on_host(values[ref]) for ref in self._trace.result]

    def profile(self, tensors: Sequence[Value]) -> list[OperationTime]:
        """Times of one run."""
        return [] if self.executable is None else self.executable.profile(self._given(tensors))[1]

    def close(self) -> None:
        """Give the device's memory back."""
        if self.executable is not None:
            self.executable.close()

    def _given(self, tensors: Sequence[Value]) -> list[Value]:
        return [tensors[number] for number in self._taken]

    def _computed(self, tensors: Sequence[Value]) -> Sequence[Value]:
        """The outputs of the device; see :meth:`run` for errors."""
        executable = self.executable
        if executable is None:
            return []
        return self._checked(tensors, lambda: executable.run(self._given(tensors)))

    def _checked(self, tensors: Sequence[Value], compute: Callable[[], Sequence[Value]]) -> Sequence[Value]:
        try:
            return compute()
        except RefusedError:
            HostFunction(self._calls, self._trace.inputs, self._outputs)(*map(on_host, tensors))
            raise WideFloatsError from None

    def _deliver(self, tensors: Sequence[Value], computed: Sequence[Value]) -> Delivered:
        if self._has_plain_result:
            return computed[0], {}
        values = dict(zip(self._outputs, computed, strict=True))
        if self._gives_arrays:
            return ArrayResults(self._trace, values, tensors, self._device).deliver()
        return Results(self._trace, values, tensors).deliver()


def on_host(value: Value) -> torch.Tensor:
    """A tensor, or what an array holds."""
    return value.tensor() if isinstance(value, DeviceArray) else value
