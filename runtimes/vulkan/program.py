"""Runs a Program on a Vulkan device: one plan for each signature of inputs, made when it is first met."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, TypeVar

import torch

from mobopt.errors import DeviceError, DeviceLostError, InputError
from mobopt.ir import Program
from mobopt.options import SINGLE, FallbackChoice, PrecisionChoice, check_fallback
from mobopt.runtimes.bounds import NO_BOUNDS, InputBounds
from mobopt.runtimes.checkpoint import Checkpoint
from mobopt.runtimes.half_ranges import ValueRanges, check_patterns
from mobopt.runtimes.host_tape import Decisions
from mobopt.runtimes.memories import StateMemories
from mobopt.runtimes.segment import Segment
from mobopt.runtimes.state import ModelState
from mobopt.runtimes.vulkan.call import Call
from mobopt.runtimes.vulkan.call_arguments import Key, described, is_on_host, signature_of
from mobopt.runtimes.vulkan.call_plan import CallPlan, WideFloatsError, find_fault
from mobopt.runtimes.vulkan.compile.build import Fallback
from mobopt.runtimes.vulkan.compile.host_function import UnforeseenResultError
from mobopt.runtimes.vulkan.compile.integer_ranges import Interval
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.devices import open_again, open_device
from mobopt.runtimes.vulkan.engine.executable import MAX_LANES
from mobopt.runtimes.vulkan.engine.kept_clock import KeptClock
from mobopt.runtimes.vulkan.engine.lane import RefusedError, TensorOrArray
from mobopt.runtimes.vulkan.engine.profiling import OperationTime
from mobopt.runtimes.vulkan.mirrors import Mirrors
from mobopt.runtimes.vulkan.plan_report import PlanReport, joined
from mobopt.runtimes.vulkan.plan_store import PlanStore
from mobopt.runtimes.vulkan.segment_builder import SegmentBuilder
from mobopt.runtimes.vulkan.state_arrays import StateArrays, is_kept_on_device
from mobopt.runtimes.vulkan.submitted import Finish, SubmittedCalls

_LOG = logging.getLogger("mobopt.vulkan")

MAX_PLANS = 16
"""Signatures of calls for which a program keeps plans; the one not used for longest goes first."""
MAX_LATER_PLANS = 256
"""Plans of segments after looks at elements that a program keeps."""
MAX_LATER_BYTES = 2**28
"""How much memory of the device these may take, beside constants, where they are more than ``MAX_PLANS``."""
MAX_DECISIONS = 4096
"""Outcomes of steps of the host that are kept for one checkpoint; then all are forgotten."""
MAX_CHECKPOINTS = 4096
"""Checkpoints of one signature that are told apart; then new ones are not compared with the old ones any more."""

Result = TypeVar("Result")
Passing = Callable[[CallPlan, Call], Sequence[TensorOrArray]]
"""Computes a segment that ends with a look at elements."""


class VulkanProgram:
    """A Program ready to run on a device; safe to call from several threads.

    Two calls of one signature are in flight at once; those of a model with state take turns.
    """

    def __init__(
        self,
        program: Program,
        device: Device | int | str | None = None,
        fallback: FallbackChoice = "cpu",
        state: ModelState | None = None,
        bounds: InputBounds = NO_BOUNDS,
        precision: PrecisionChoice = SINGLE,
        ranges: ValueRanges | None = None,
        keep_clock: bool = False,
        mirrors: bool = False,
    ) -> None:
        """Open the device; plans are made by the first call of each signature.

        Args:
            program: the model; its graphs and tensors must not change any more.
            device: an open device, or what :func:`open_device` takes.
            fallback: whether operators without a GPU kernel run on the CPU, or are an error that names them all.
            state: of the model; without it, one that starts with the Program's values.
            bounds: of inputs' sizes: others are refused, and no size within them is traced after the first.
            precision: how float32 tensors lie in memory. Of ``fp16``, plans are made with what nodes were seen to make:
                the first call of each computes on the CPU too.
            ranges: what nodes of the model made before.
            keep_clock: whether the clock of an NVIDIA GPU stays up for as long as this object lives.
            mirrors: whether :meth:`run`, on a device across a bus, takes what other such programs have returned from
                where it lies there, unless somebody has written to it, and keeps there what they take: see
                :class:`Mirrors`.

        Raises:
            DeviceError: there is no such device.
            InputError: ``fallback`` is neither, or no node matches a pattern of ``precision``.
            UnsupportedError: the device's clock can't be kept up.
        """
        check_fallback(fallback)
        check_patterns(program, precision.fp32_nodes)
        self.program = program
        self.device = device if isinstance(device, Device) else open_device(device)
        self._clock = KeptClock(self.device.info) if keep_clock else None
        self._plans = PlanStore(lambda: MAX_PLANS)
        self._later_plans = PlanStore(lambda: MAX_LATER_PLANS, MAX_PLANS, MAX_LATER_BYTES)
        self._checkpoints: OrderedDict[Any, dict[Any, Checkpoint]] = OrderedDict()
        """By the signature of the call, then by their keys."""
        self.model_state = ModelState(program) if state is None else state
        self._state_arrays = StateArrays(self.device)
        self._memories: StateMemories | None = None
        """Of the state, as the last call found it."""
        self._state_form = Key(None)
        """What a plan depends on of the state's values, then."""
        self._may_stay: tuple[bool, ...] = ()
        """Whether the device has elements for these memories."""
        known = ValueRanges() if ranges is None else ranges
        self._builder = SegmentBuilder(program, self.model_state, bounds, precision, known, fallback == "cpu")
        self._mirrors = mirrors and not self.device.info.has_unified_memory
        self._taken_by_others: frozenset[int] = frozenset()
        """Numbers of outputs that other programs take."""
        self._lock = threading.Lock()
        """Held while plans are looked for and made, not while the device computes."""
        self._calls: SubmittedCalls | None = None
        """Those that were submitted, once one was."""
        self._last: Future[Any] | None = None
        """The last call that was submitted, if calls change the state."""
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
        if self._calls is not None:
            self._await_turn(self._calls)
        return self._run(method, args, False)

    def run_on_device(self, method: str, args: Sequence[Any]) -> Any:
        """What a method returns for these arguments, in arrays on the device.

        Args:
            method: the method's name.
            args: without self; tensors are arrays or lie on the CPU, from where they are copied.

        Returns:
            The result with a :class:`DeviceArray` for each tensor, but for those that the device has no elements for
            (float64, complex128), which lie on the CPU. An array that is an argument, or a view
            of one, shares its memory; a part of the state is what the state is now.

        Raises:
            As for :meth:`run`.
        """
        if self._calls is not None:
            self._await_turn(self._calls)
        return self._run(method, args, True)

    def submit(self, method: str, args: Sequence[Any], on_device: bool = False) -> Future[Any]:
        """Start a call, and return before it is done: as :meth:`run`, or as :meth:`run_on_device`.

        Two calls are in flight at once, a third waits here for one of them. Calls of a model with state take turns, in
        the order in which they were submitted. Arguments must not be changed before the call is done.

        Returns:
            A future of the result; it can't be cancelled. All errors are raised by its ``result()``.
        """
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        calls = self._submitted_calls()
        try:
            calls.make_room()
            finish = None if self.model_state.names else self._begun(method, args, on_device)
        except Exception as error:
            future.set_exception(error)
            return future
        if finish is not None:
            return calls.add(finish)
        with self._lock:
            if self.model_state.names:
                self._last = future
            calls.run(future, lambda: self._run(method, args, on_device))
        return future

    def profile(self, args: Sequence[Any], method: str = "forward") -> list[OperationTime]:
        """Run once and say how long each operation took on the device.

        Raises:
            DeviceError: the device has no timestamps, or failed.
            InputError: as for :meth:`run`.
        """
        times: list[OperationTime] = []

        def profiled(plan: CallPlan, call: Call) -> Sequence[TensorOrArray]:
            computed, found = plan.profile(call)
            end = times[-1].start_ns + times[-1].duration_ns if times else 0
            times.extend(replace(item, start_ns=end + item.start_ns) for item in found)
            return computed

        with self.model_state.lock:
            self._attempt(method, args, False, profiled, profiled, times.clear)
        return times

    def plan_report(self, args: Sequence[Any], method: str = "forward") -> PlanReport:
        """What the plans of a call with such arguments are made of; they are made if need be."""
        reports: list[PlanReport] = []

        def computed(plan: CallPlan, call: Call) -> Sequence[TensorOrArray]:
            reports.append(plan.report)
            return plan.compute(call)

        def ended(plan: CallPlan, call: Call) -> None:
            reports.append(plan.report)

        with self.model_state.lock:
            self._attempt(method, args, False, computed, ended, reports.clear)
        return joined(reports)

    def close(self) -> None:
        """Give the device's memory back, that of calls in flight when they are done; the next call makes new plans."""
        with self._lock:
            self._forget_plans()

    def _run(self, method: str, args: Sequence[Any], on_device: bool) -> Any:
        if self.model_state.names:
            with self.model_state.lock:
                result = self._attempt(method, args, on_device, CallPlan.compute, CallPlan.run)
        else:
            result = self._attempt(method, args, on_device, CallPlan.compute, CallPlan.run)
        self._was_lost = False
        return result

    def _submitted_calls(self) -> SubmittedCalls:
        with self._lock:
            if self._calls is None:
                self._calls = SubmittedCalls(MAX_LANES, workers=1 if self.model_state.names else MAX_LANES)
            return self._calls

    def _begun(self, method: str, args: Sequence[Any], on_device: bool) -> Finish | None:
        """Start a call without state; the function that is returned ends it.

        One that looks at elements can't be started: calls that wait there for a lane must not hold another.
        """
        with torch.no_grad():
            call, plan = self._enter(method, args, on_device)
            if not plan.is_complete:
                self._leave_plan(plan)
                return None
            try:
                deliver = plan.begin(call)
            except BaseException:
                self._leave_plan(plan)
                raise

        def finish(polls: bool) -> Any:
            try:
                with torch.no_grad():
                    return deliver(polls)
            except (UnforeseenResultError, RefusedError, InputError):
                return self._run(method, args, on_device)
            finally:
                self._leave_plan(plan)

        return finish

    def _await_turn(self, calls: SubmittedCalls) -> None:
        """Let the calls that were submitted end, if they change the state; of others those that are too many."""
        calls.make_room()
        last = self._last
        if last is not None:
            wait([last])
            self._last = None

    def _forget_plans(self) -> None:
        self._builder.forget()
        self._plans.forget()
        self._later_plans.forget()
        self._checkpoints.clear()

    def _take_plan(self, call: Call) -> CallPlan:
        """The plan with which a call goes on, which stays until :meth:`_leave_plan`; the lock is held.

        Raises:
            _ExposesStateError: it must begin anew.
        """
        plan = self._plan(call)
        if plan.exposes:
            for number in plan.exposes:
                self._expose(call.wholes[number - len(call.inputs)])
            raise _ExposesStateError
        plan.users += 1
        return plan

    def _leave_plan(self, plan: CallPlan) -> None:
        with self._lock:
            plan.users -= 1
            if plan.is_retired and not plan.users:
                plan.close()

    def _walk(
        self,
        method: str,
        args: Sequence[Any],
        on_device: bool,
        passing: Passing,
        ending: Callable[[CallPlan, Call], Result],
    ) -> Result:
        """Take a call through its segments; see :meth:`_attempt`."""
        call, plan = self._enter(method, args, on_device)
        while True:
            try:
                if plan.following is None:
                    return ending(plan, call)
                plan.hand_on(call, passing(plan, call))
            except (RefusedError, InputError) as refused:  # a part of an operator on the CPU refuses in its words
                self._find_fault(call, refused)
                raise
            finally:
                self._leave_plan(plan)
            with self._lock:
                plan = self._take_plan(call)

    def _find_fault(self, call: Call, refused: RefusedError | InputError) -> None:
        """Say what is wrong with operands, in torch's words, if anything is."""
        with self._lock:
            segment = self._builder.segment(call)
        with nullcontext() if isinstance(refused, RefusedError) else suppress(WideFloatsError):
            find_fault(segment, call)

    def _attempt(
        self,
        method: str,
        args: Sequence[Any],
        on_device: bool,
        passing: Passing,
        ending: Callable[[CallPlan, Call], Result],
        again: Callable[[], None] = lambda: None,
    ) -> Result:
        """A whole call. It begins anew with other plans where an operator gives what was not foretold, now from the
        elements that it takes, where a large float becomes an int64, and where the caller gets a part of the state.

        Args:
            method: of the model.
            args: without self.
            on_device: whether results stay on the device.
            passing: what computes a segment that ends with a look at elements.
            ending: what is done with the last one.
            again: is called before the call begins anew.

        Raises:
            DeviceError: a kernel refuses what torch takes, large floats or not.
        """
        if torch.is_inference_mode_enabled():
            # Tensors of memory that other calls use too: to those of inference mode nobody may write outside of it.
            with torch.inference_mode(False):
                return self._attempt(method, args, on_device, passing, ending, again)
        while True:
            floats_fit = self._builder.floats_fit
            had_gradients = torch.is_grad_enabled()
            try:
                torch._C._set_grad_enabled(False)  # what torch.no_grad does in 1.5 us
                return self._walk(method, args, on_device, passing, ending)
            except UnforeseenResultError as error:
                if error.op in self._builder.by_elements:
                    raise
                with self._lock:
                    self._builder.by_elements.add(error.op)
                    self._forget_plans()
            except WideFloatsError:
                if not floats_fit:
                    raise DeviceError(
                        "a kernel refused operands that torch takes, which is a fault of mobopt; please report the "
                        "model, and run it with device='cpu' until it is mended"
                    ) from None
                with self._lock:
                    self._builder.floats_fit = False
                    self._forget_plans()
            except _ExposesStateError:
                pass
            finally:
                torch._C._set_grad_enabled(had_gradients)
            again()

    def _open_again(self) -> None:
        """Open the device anew: it was closed, or lost, or opened before this process was forked.

        Raises:
            DeviceLostError: it is lost for the second time, with no call between that ended well; or the model's state
                was lost with it, which is said once.
            DeviceError: it can't be opened.
        """
        if self.device.is_lost:
            name = self.device.info.name
            if self._was_lost:
                raise DeviceLostError(f"{name} was lost again after it was opened anew; choose another device")
            _LOG.warning("%s was lost; it is opened anew", name)
            self._was_lost = True
        self._forget_plans()
        name, is_state_lost = self.device.info.name, self.device.is_lost and self._state_arrays.lose()
        self.device = open_again(self.device)
        self._state_arrays = StateArrays(self.device)
        if is_state_lost:
            raise DeviceLostError(
                f"{name} was lost, and with it what the model's state had become there; it is opened anew, and the "
                "state is what was last read on the CPU, or else what it was at first: set it, or begin again"
            )

    def _begin_anew(self) -> None:
        """Drop the plans of the process that this one was forked from; a thread of it may have held the locks."""
        self._lock = threading.Lock()
        self.model_state.lock = threading.RLock()
        self._calls = self._last = None
        self._state_arrays.bring_home_after_fork()
        self._plans.drop()
        self._later_plans.drop()
        self._checkpoints.clear()

    def _enter(self, method: str, args: Sequence[Any], on_device: bool) -> tuple[Call, CallPlan]:
        """Where a call begins, and the plan with which it does; see :meth:`_take_plan`."""
        with self._lock:
            if not self.device.is_open or self.device.in_use.is_lost:
                self._open_again()
            tensors: list[Any] = []
            of_args = [signature_of(value, tensors, on_device) for value in args]
            wholes: Sequence[torch.Tensor] = ()
            of_state: Any = None
            if self.model_state.names:
                state, wholes, of_state = self._state_inputs(tensors)
                tensors += state
            mirrored = self._mirrored(tensors) if self._mirrors and not on_device else {}
            wanted = self._taken_by_others
            signature = (method, on_device, of_state, wanted, *of_args, *mirrored)
            call = Call(method, args, on_device, signature, tensors, wholes, mirrored, wanted)
            return call, self._take_plan(call)

    def _mirrored(self, tensors: Sequence[Any]) -> dict[int, DeviceArray]:
        """Arrays on the device with the elements of tensors on the CPU, by the tensors' numbers."""
        mirrors = self.device.shared(Mirrors)
        arrays = {number: mirrors.array(tensor) for number, tensor in enumerate(tensors) if is_on_host(tensor)}
        return {number: array for number, array in arrays.items() if array is not None}

    def _remember(self, number: int, result: torch.Tensor, array: DeviceArray | None) -> None:
        """Let other programs find an output on the device."""

        program = weakref.ref(self)

        def want() -> None:
            giver = program()
            if giver is not None:
                giver._taken_by_others |= {number}

        self.device.shared(Mirrors).add(result, array, want)

    def _plan(self, call: Call) -> CallPlan:
        """The plan with which a call goes on."""
        store, key, segment = self._plans, call.signature, None
        if call.following is not None:
            store, (key, segment) = self._later_plans, self._decided(call, call.following)
        plan = store.get(key)
        while plan is not None and not plan.is_right_for(call):
            key = (key, call.integers())
            plan = store.get(key)
        if plan is None:
            plan = self._make(call, segment, call.integers())
            store.put(key, plan)
        return plan

    def _decided(self, call: Call, checkpoint: Checkpoint) -> tuple[Decisions, Segment | None]:
        """What stands for the segment that follows, which is made if none went this way yet."""
        segment = None
        leaf, values = checkpoint.decisions.find(call.given)
        if leaf is None:
            segment = self._builder.segment(call)
            if checkpoint.decisions.size > MAX_DECISIONS:
                checkpoint.decisions = Decisions()
            leaf = checkpoint.decisions.add(segment.tape)
            leaf.hosted, values = segment.hosted, segment.tape.values
        call.host(values, leaf.hosted)
        return leaf, segment

    def _known(self, call: Call, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint of that key which a call of that signature came by first."""
        known = self._checkpoints.setdefault(call.signature, {})
        self._checkpoints.move_to_end(call.signature)
        if len(self._checkpoints) > MAX_PLANS:
            self._checkpoints.popitem(last=False)
        if len(known) >= MAX_CHECKPOINTS:
            known.clear()
        return known.setdefault(checkpoint.key, checkpoint)

    def _state_inputs(
        self, arguments: Sequence[TensorOrArray]
    ) -> tuple[list[TensorOrArray], Sequence[torch.Tensor], Any]:
        """What a call takes of the state, where it lies now; its memories; and what a plan depends on of it."""
        state, arrays = self.model_state, self._state_arrays
        state.keep_elsewhere(arrays)
        memories = state.memories
        wholes = memories.tensors
        if memories is not self._memories:
            arrays.keep_only(wholes)
            state.forget_exposed(wholes)
            self._memories = memories
            self._state_form = Key((signature_of(state.forms, [], False), memories.places))
            self._may_stay = tuple([is_kept_on_device(whole) for whole in wholes])
        places = [memories.place(tensor) for tensor in arguments if isinstance(tensor, torch.Tensor)]
        for place in filter(None, places):  # the caller has it
            self._expose(wholes[place.memory])
        stays = self._may_stay
        if not state.is_private:
            stays = tuple([may and not state.is_exposed(whole) for whole, may in zip(wholes, stays, strict=True)])
        return arrays.inputs(wholes, stays), wholes, (self._state_form, tuple(places), stays)

    def _expose(self, whole: torch.Tensor) -> None:
        """Keep a memory of the state on the CPU, for the caller gets tensors that lie there."""
        self._state_arrays.bring_home_of(whole)
        self.model_state.expose(whole)

    def _make(self, call: Call, segment: Segment | None, integers: Sequence[Interval]) -> CallPlan:
        started = time.perf_counter()
        segment, built = self._builder.build(call, segment, integers, self.device.info)
        if segment.following is not None:
            segment.following = self._known(call, segment.following)
        in_arrays = [segment.taken + number for number in call.in_arrays]
        is_later = call.following is not None
        plan = CallPlan(
            self.device,
            segment,
            built,
            call.on_device,
            self.model_state,
            self._state_arrays,
            in_arrays,
            call.array_outputs(segment),
            is_later,
            [segment.taken + number for number in call.mirrored],
            self._remember if self._mirrors else None,
        )
        plan.report = PlanReport(
            call.method,
            ", ".join(described(value) for value in call.args),
            plan.executable.dispatches if plan.executable else 0,
            built.fallbacks,
            0 if segment.is_complete else len(segment.result),
            plan.executable.memory if plan.executable else None,
            time.perf_counter() - started,
            halves=built.halves,
        )
        for node in built.halves.pinned if built.halves else ():
            _LOG.info("stays float32: %s", node)
        _LOG.debug("planned %s(%s): %d dispatches", call.method, plan.report.signature, plan.report.dispatches)
        self._tell_fallbacks(built.fallbacks)
        return plan

    def _tell_fallbacks(self, fallbacks: Sequence[Fallback]) -> None:
        """Tell what a new plan leaves to the CPU."""
        for fallback in dict.fromkeys(fallbacks):
            _LOG.warning("runs on the CPU: %s", fallback)


class _ExposesStateError(Exception):
    """A call returns a part of the state, which the caller has from now on, so that it lies on the CPU."""


_programs: weakref.WeakSet[VulkanProgram] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for program in _programs:
        program._begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
