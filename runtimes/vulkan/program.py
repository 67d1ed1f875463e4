"""Runs a Program on a Vulkan device: one plan for each signature of inputs, made when it is first met."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from mobopt.errors import DeviceLostError, InputError
from mobopt.ir import Program
from mobopt.options import FallbackChoice, check_fallback
from mobopt.runtimes.call import Trace
from mobopt.runtimes.memories import StateMemories
from mobopt.runtimes.nests import leaves_of
from mobopt.runtimes.results import Results
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.state import ModelState
from mobopt.runtimes.vulkan.compile.build import Built, Fallback, build_stream
from mobopt.runtimes.vulkan.compile.host_function import HostFunction, UnforeseenResultError
from mobopt.runtimes.vulkan.compile.integer_ranges import Interval, is_within
from mobopt.runtimes.vulkan.compile.placement import integer_class
from mobopt.runtimes.vulkan.engine.device import Device, open_device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.lane import RefusedError
from mobopt.runtimes.vulkan.engine.memory import MemoryReport
from mobopt.runtimes.vulkan.engine.profiling import OperationTime
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore

_LOG = logging.getLogger("mobopt.vulkan")

MAX_PLANS = 16
"""Plans that a program keeps; the one not used for longest goes first."""

Result = TypeVar("Result")

_PLAIN = (bool, int, float, str, complex, type(None), torch.device, torch.dtype)


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


class VulkanProgram:
    """A Program ready to run on a device; safe to call from several threads, which take turns."""

    def __init__(
        self,
        program: Program,
        device: Device | int | str | None = None,
        fallback: FallbackChoice = "cpu",
        state: ModelState | None = None,
    ) -> None:
        """Open the device; plans are made by the first call of each signature.

        Args:
            program: the model; its graphs and tensors must not change any more.
            device: an open device, or what :func:`open_device` takes.
            fallback: whether operators without a GPU kernel run on the CPU, or are an error that names them all.
            state: of the model; without it, one that starts with the Program's values.

        Raises:
            DeviceError: there is no such device.
            InputError: ``fallback`` is neither.
        """
        check_fallback(fallback)
        self.program = program
        self.device = device if isinstance(device, Device) else open_device(device)
        self._allow_fallback = fallback == "cpu"
        self._constants = ConstantStore()
        self._plans: OrderedDict[Any, _Plan] = OrderedDict()
        self.model_state = ModelState(program) if state is None else state
        self._by_elements: set[str] = set()
        """Operators that gave other sizes than the meta kernels foretold."""
        self._floats_fit = True
        """Whether no large float was made an int64 so far."""
        self._lock = threading.Lock()
        self._was_lost = False
        _programs.add(self)

    def __call__(self, *args: Any) -> Any:
        """Run ``forward``; see :meth:`run`."""
        return self.run("forward", args)

    def run(self, method: str, args: Sequence[Any]) -> Any:
        """What a method returns for these arguments (without self), in tensors on the CPU.

        As in eager mode, a result that is an argument or a part of the state, or a view of one, shares its memory.
        Arguments and weights are never changed; the state is, once everything has been computed.

        Raises:
            InputError: the arguments don't fit the model, or the model raises.
            UnsupportedError: the model needs what neither the device nor the CPU can do, or the CPU may not be used.
            DeviceError: the device failed or ran out of memory.
        """
        with self._lock, self.model_state.lock, torch.no_grad():
            result, updates = self._with_plan(method, args, _Plan.run)
            self._was_lost = False
            if updates:
                self.model_state.commit(updates)
            return result

    def profile(self, args: Sequence[Any], method: str = "forward") -> list[OperationTime]:
        """Run once and say how long each operation took on the device.

        Raises:
            DeviceError: the device has no timestamps, or failed.
            InputError: as for :meth:`run`.
        """
        with self._lock, self.model_state.lock, torch.no_grad():
            return self._with_plan(method, args, _Plan.profile)

    def plan_report(self, args: Sequence[Any], method: str = "forward") -> PlanReport:
        """What the plan for such arguments is made of; the plan is made if need be."""
        with self._lock, self.model_state.lock, torch.no_grad():
            return self._with_plan(method, args, lambda plan, tensors: plan.report)

    def close(self) -> None:
        """Give the device's memory back; the next call makes new plans."""
        with self._lock:
            self._forget_plans()

    def _forget_plans(self) -> None:
        while self._plans:
            self._plans.popitem()[1].close()

    def _with_plan(
        self, method: str, args: Sequence[Any], use: Callable[[_Plan, Sequence[torch.Tensor]], Result]
    ) -> Result:
        """What is done with a call's plan and tensors. The plan is made anew where an operator gives what was not
        foretold, now from the elements that it takes, and where a large float becomes an int64."""
        while True:
            try:
                return use(*self._plan(method, args))
            except UnforeseenResultError as error:
                if error.op in self._by_elements:
                    raise
                self._by_elements.add(error.op)
                self._forget_plans()
            except _WideFloatsError:
                self._floats_fit = False
                self._forget_plans()

    def _open_again(self) -> None:
        """Open the device anew: it was closed, or lost, or opened before this process was forked.

        Raises:
            DeviceLostError: it is lost for the second time, with no call between that ended well.
            DeviceError: it can't be opened.
        """
        if self.device.is_lost:
            name = self.device.info.name
            if self._was_lost:
                raise DeviceLostError(f"{name} was lost again after it was opened anew; choose another device")
            _LOG.warning("%s was lost; it is opened anew", name)
            self._was_lost = True
        self._forget_plans()
        self.device = self.device.open_again()

    def _begin_anew(self) -> None:
        """Drop the plans of the process that this one was forked from; a thread of it may have held the locks."""
        self._lock = threading.Lock()
        self.model_state.lock = threading.Lock()
        self._plans.clear()

    def _plan(self, method: str, args: Sequence[Any]) -> tuple[_Plan, list[torch.Tensor]]:
        """The complete plan for a call, and the call's tensors."""
        if not self.device.is_open or self.device.is_lost:
            self._open_again()
        tensors: list[torch.Tensor] = []
        key: tuple[Any, ...] = (method, _signature(args, tensors))
        state = self.model_state.values
        if state:
            memories = StateMemories(state)
            of_state: list[torch.Tensor] = []
            key = (*key, _signature(state, of_state), tuple(map(memories.place, (*tensors, *of_state))))
            tensors += memories.tensors
        integers = tuple(integer_class(tensor) for tensor in tensors if tensor.dtype == torch.int64)
        looks: list[torch.Tensor] = []
        while True:
            plan = self._plans.get(key)
            if plan is None:
                plan = self._make(key, method, args, looks, integers)
            elif not plan.is_right_for(integers):
                key = (key, integers)
                continue
            else:
                self._plans.move_to_end(key)
            if plan.is_complete:
                return plan, tensors
            seen = plan.look(tensors)
            looks += seen
            key = (key, *(_elements(tensor) for tensor in seen))

    def _make(
        self,
        key: Any,
        method: str,
        args: Sequence[Any],
        looks: Sequence[torch.Tensor],
        integers: Sequence[Interval],
    ) -> _Plan:
        started = time.perf_counter()
        trace = specialize(self.program, method, args, looks, self.model_state.values, self._by_elements)
        wide = [ref for ref in trace.inputs if ref.dtype == torch.int64]
        classes = dict(zip(wide, integers, strict=True))
        built = build_stream(trace, self.device.info, self._constants, self._allow_fallback, classes, self._floats_fit)
        plan = _Plan(self.device, trace, built)
        plan.report = PlanReport(
            method,
            ", ".join(_describe(value) for value in args),
            plan.executable.dispatches if plan.executable else 0,
            built.fallbacks,
            len(looks),
            plan.executable.memory if plan.executable else None,
            time.perf_counter() - started,
        )
        _LOG.debug("planned %s(%s): %d dispatches", method, plan.report.signature, plan.report.dispatches)
        for fallback in dict.fromkeys(built.fallbacks):
            _LOG.warning("runs on the CPU: %s", fallback)
        self._plans[key] = plan
        if len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)[1].close()
        return plan


_programs: weakref.WeakSet[VulkanProgram] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for program in _programs:
        program._begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


class _WideFloatsError(Exception):
    """The device met floats that are too large to become int64 there."""


class _Plan:
    """An executable with the way from a call's tensors to its inputs and from its outputs to the call's result."""

    report: PlanReport

    def __init__(self, device: Device, trace: Trace, built: Built) -> None:
        self.is_complete = trace.is_complete
        self.executable = Executable(device, built.stream) if built.outputs else None
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

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, dict[str, Any]]:
        """The call's result, and the new values of attributes; the state's tensors hold what was written to them."""
        computed = self._computed(tensors)
        if self._has_plain_result:
            return computed[0], {}
        return Results(self._trace, dict(zip(self._outputs, computed, strict=True)), tensors).deliver()

    def look(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The elements that an incomplete trace asks for."""
        values = dict(zip(self._trace.inputs, tensors, strict=True))
        values.update(zip(self._outputs, self._computed(tensors), strict=True))
        return [values[ref] for ref in self._trace.result]

    def _computed(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The outputs of the device.

        Raises:
            InputError: the device met operands that it must not be given, and torch's kernel says what is wrong.
            _WideFloatsError: nothing is wrong with them.
        """
        if self.executable is None:
            return []
        try:
            outputs: list[Any] = self.executable.run([tensors[number] for number in self._taken])
            return outputs
        except RefusedError:
            HostFunction(self._calls, self._trace.inputs, self._outputs)(*tensors)
            raise _WideFloatsError from None

    def profile(self, tensors: Sequence[torch.Tensor]) -> list[OperationTime]:
        """Times of one run."""
        if self.executable is None:
            return []
        return self.executable.profile([tensors[number] for number in self._taken])[1]

    def close(self) -> None:
        """Give the device's memory back."""
        if self.executable is not None:
            self.executable.close()


def _signature(value: Any, tensors: list[torch.Tensor]) -> Any:
    """What a plan depends on: structure, shapes, dtypes and plain values. Tensors are collected on the way."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return value.dtype, value.shape
    if isinstance(value, (list, tuple)):
        return type(value), *[_signature(item, tensors) for item in value]
    if isinstance(value, dict):
        return dict, *[(key, _signature(item, tensors)) for key, item in value.items()]
    if isinstance(value, _PLAIN):
        return type(value), value
    raise InputError(
        f"an argument is a {type(value).__name__}; give tensors, numbers, strings, or lists, tuples and "
        "dictionaries of them"
    )


def _elements(tensor: torch.Tensor) -> Any:
    """A tensor's elements as part of a key."""
    return tensor.dtype, tensor.shape, tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    tensors = list(leaves_of(value, torch.Tensor))
    return f"{type(value).__name__} of {len(tensors)} tensors" if tensors else repr(value)
