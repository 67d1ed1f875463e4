"""Run a bundle and measure it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mobopt.errors import InputError
from mobopt.frontends.open_source import read_program
from mobopt.frontends.torchscript import in_floats
from mobopt.ir import Program
from mobopt.ir.arguments import bind_arguments
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.options import FallbackChoice, Precision, PrecisionChoice
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.cpu.memory_check import check_dense
from mobopt.runtimes.cpu.precision import HalfInterpreter, PrecisionLoss
from mobopt.runtimes.half_ranges import HALVES
from mobopt.samples.agreement import compare

if TYPE_CHECKING:
    from mobopt.runtimes.vulkan.plan_report import PlanReport


@dataclass(frozen=True)
class PrecisionReport:
    """What halves cost a model.

    Attributes:
        precision: ``fp16`` or ``bf16``.
        absolute: the largest difference of an output from float32's.
        relative: the same over the largest magnitude of that output.
        first_loss: on the CPU reference, the first node that loses over 1 %, or becomes infinite or not a number; None
            if none does.
    """

    precision: Precision
    absolute: float
    relative: float
    first_loss: PrecisionLoss | None


@dataclass(frozen=True)
class Execution:
    """What running a bundle gave, and how long it took."""

    device: str
    result: Any
    seconds: tuple[float, ...]
    """Of each call, after everything was prepared."""
    preparation_seconds: float
    report: PlanReport | None
    """None on the CPU reference."""
    precision: PrecisionReport | None = None
    """Of a precision other than float32."""

    @property
    def outputs(self) -> list[torch.Tensor]:
        """The tensors of the result, in order.

        Raises:
            InputError: one is a view of more elements than there is memory.
        """
        tensors = list(leaves_of(self.result, torch.Tensor))
        for tensor in tensors:
            check_dense(tensor)
        return tensors

    @property
    def median_seconds(self) -> float:
        """Median time of a call."""
        return statistics.median(self.seconds)


def run_bundle(
    path: Path,
    inputs: Sequence[Any],
    *,
    device: str | None = None,
    method: str = "forward",
    repeat: int = 1,
    fallback: FallbackChoice = "cpu",
    precision: Precision = "fp32",
    fp32_nodes: str | Iterable[str] = (),
    keep_clock: bool = False,
    before: Callable[[], object] = lambda: None,
) -> Execution:
    """Read a bundle and run a method of it.

    Args:
        path: a bundle, or a model before conversion, which is run as it is.
        inputs: the method's arguments.
        device: ``"cpu"``, or a Vulkan device's number or a part of its name; None for the best.
        method: which method.
        repeat: how many timed calls.
        fallback: whether operators without a GPU kernel run on the CPU or are an error.
        precision: ``fp16`` and ``bf16`` halve what lies in a device's memory, see :func:`mobopt.load`; on the CPU
            reference every result is rounded, as a phone's GPU may. Either is compared with the reference in float32.
        fp32_nodes: patterns of nodes that keep float32 on a device.
        keep_clock: whether an NVIDIA GPU's clock stays up between the calls.
        before: is called before each timed call, outside the measured time.

    Raises:
        MoboptError: the bundle, an input or the device can't be used.
    """
    choice = PrecisionChoice.of(precision, fp32_nodes)
    if choice.fp32_nodes and device == "cpu":
        raise InputError(
            f"the CPU reference in {precision} rounds every result; leave out fp32_nodes, or choose a device"
        )
    if keep_clock and device == "cpu":
        raise InputError("keep_clock holds the clock of an NVIDIA GPU up; leave it out, or choose a device")
    program = read_program(path, prefer="code" if choice.is_half else "bytecode")  # source has lines to name
    if method not in program.methods:
        raise InputError(f"{path} has no method {method!r}; it has {', '.join(program.methods)}")
    args = bind_arguments(program, method, inputs, {})
    if device == "cpu":
        if choice.is_half:
            return _run_in_halves(program, args, method, repeat, before, choice.precision)
        interpreter = Interpreter(program)
        result, seconds = timed_calls(lambda: interpreter.run(method, args), repeat, before)
        return Execution("CPU (reference interpreter)", result, seconds, 0.0, None)
    return _run_on_vulkan(program, args, device, method, repeat, fallback, before, choice, keep_clock)


def _run_in_halves(
    program: Program, args: list[Any], method: str, repeat: int, before: Callable[[], object], precision: Precision
) -> Execution:
    exact = _reference(program, args, method, repeat)
    interpreter = HalfInterpreter(program, HALVES[precision])
    result, seconds = timed_calls(lambda: interpreter.run(method, args), repeat, before)
    agreement = compare(result, exact)
    report = PrecisionReport(precision, agreement.absolute, agreement.relative, interpreter.first_loss)
    return Execution(f"CPU (reference interpreter, {precision})", result, seconds, 0.0, None, precision=report)


def _reference(program: Program, args: list[Any], method: str, calls: int) -> Any:
    """What the last of some calls returns, on the CPU in float32."""
    reference = Interpreter(program)
    for _ in range(calls if reference.model_state.names else 1):  # with state, the last call's result is another
        exact = reference.run(method, map_leaves(args, torch.Tensor, torch.Tensor.clone))
    return exact


def _run_on_vulkan(
    program: Program,
    args: list[Any],
    device: str | None,
    method: str,
    repeat: int,
    fallback: FallbackChoice,
    before: Callable[[], object],
    choice: PrecisionChoice,
    keep_clock: bool,
) -> Execution:
    from mobopt.runtimes.vulkan.program import VulkanProgram

    exact = _reference(program, args, method, repeat) if choice.is_half else None
    started = time.perf_counter()
    program = in_floats(program, heeds_reduced_range=False)  # a file for phones may have integers
    runtime = VulkanProgram(program, device, fallback, precision=choice, keep_clock=keep_clock)
    try:
        report = runtime.plan_report(args, method)
        preparation = time.perf_counter() - started
        result, seconds = timed_calls(lambda: runtime.run(method, args), repeat, before)
        loss = None
        if choice.is_half:
            agreement = compare(result, exact)
            loss = PrecisionReport(choice.precision, agreement.absolute, agreement.relative, None)
        return Execution(str(runtime.device.info), result, seconds, preparation, report, loss)
    finally:
        runtime.close()


def timed_calls(
    call: Callable[[], Any], repeat: int, before: Callable[[], object] = lambda: None
) -> tuple[Any, tuple[float, ...]]:
    """The last result of ``repeat`` calls, and the seconds that each took, without those of ``before``."""
    result, seconds = None, []
    for _ in range(repeat):
        before()
        started = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - started)
    return result, tuple(seconds)
