"""Two runs side by side, layer by layer: where they begin to differ, and which layers make the error themselves.

Both sides become straight lines of nodes that know where in the model they come from. Values are matched, then computed
on both sides and reduced to a few numbers as they come: those of one batch of layers at a time are kept, so memory is
bounded. Each layer is also run alone on the values of the reference, which tells its own error from what it was given.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from mobopt.errors import InputError
from mobopt.frontends.open_source import whole_source_of
from mobopt.frontends.source import Source
from mobopt.ir import Program
from mobopt.ir.arguments import bind_arguments
from mobopt.options import Precision, PrecisionChoice
from mobopt.passes.pipelines import PassPipeline
from mobopt.runtimes.half_ranges import HALVES, check_patterns
from mobopt.samples.agreement import RELATIVE_TOLERANCE, TOLERANCES
from mobopt.samples.example_inputs import ChosenInputs, ExampleInputs, choose_inputs
from mobopt.tools.comparison_results import Comparison
from mobopt.tools.comparison_sides import CPU, VULKAN, Runner, Side, runner_of
from mobopt.tools.comparison_work import ComparisonWork, tensors_of
from mobopt.tools.differences import difference


def compare(
    a: object,
    b: object = None,
    *,
    device_a: str = CPU,
    device_b: str | None = None,
    passes_a: PassPipeline | None = None,
    passes_b: PassPipeline | None = None,
    method: str = "forward",
    example_inputs: ExampleInputs | None = None,
    float64: bool = False,
    fused: bool = True,
    tolerance: float | None = None,
    precision: Precision = "fp32",
    fp32_nodes: str | Iterable[str] = (),
    precision_a: Precision = "fp32",
    show: Callable[[str], None] = lambda step: None,
) -> Comparison:
    """Compare two runs of a model, or of two models that should do the same, layer by layer.

    Args:
        a: the reference: an nn.Module with example inputs, a ScriptModule, an ExportedProgram, an ONNX model or the
            path of a file, also one that is optimised for any backend.
        b: the other one, likewise; None for ``a`` too.
        device_a: where the reference runs: ``"cpu"``, ``"vulkan"`` for the best device, a device's number or a part of
            its name.
        device_b: where the other one runs; without it, on the best Vulkan device, or on the CPU if it is another model
            than the reference, or goes through passes.
        passes_a: passes that the reference goes through first.
        passes_b: passes that the other one goes through first.
        method: the method that is run.
        example_inputs: its arguments, or arguments of several methods by name; without them, those bundled with the
            reference, of shapes traced or declared, or guessed.
        float64: whether the reference is computed in float64.
        fused: False: a device makes every value by itself, without fusions.
        tolerance: the error that is let pass, over the largest magnitude of the reference's value; without it 1e-4, and
            1e-2 of fp16, 8e-2 of bf16, of the coarser of both precisions, and of weights in halves.
        precision: of the other one: on a device see :func:`mobopt.load`; on the CPU every result is rounded.
        fp32_nodes: patterns of its nodes that keep float32, on a device.
        precision_a: of the reference, likewise.
        show: is told each step.

    Returns:
        The layers with their errors and verdicts.

    Raises:
        InputError: the models can't be compared: other inputs or outputs, no inputs that they take, no common layer.
        MoboptError: a model or a device can't be used.
    """
    choices = PrecisionChoice.of(precision_a), PrecisionChoice.of(precision, fp32_nodes)
    tolerance_of(tolerance, (), *choices)  # a bad one is refused before anything is read
    if device_b is None:
        device_b = VULKAN if b is None and passes_b is None else CPU
    started = time.perf_counter()
    show("reading")
    sources = opened(a, b, example_inputs)
    tolerance = tolerance_of(tolerance, sources, *choices)
    inputs = choose_inputs(sources[0], example_inputs)
    args = arguments_of(sources, method, inputs)
    sides = (
        replace(Side.of(sources[0], device_a, passes_a, inputs), precision=choices[0]),
        replace(Side.of(sources[1], device_b, passes_b, inputs), precision=choices[1]),
    )
    check_patterns(sides[1].program, choices[1].fp32_nodes)
    runners = (
        runner_of(sides[0], method, is_double=float64, is_fused=fused),
        runner_of(sides[1], method, is_fused=fused),
    )
    baseline = runner_of(sides[0], method) if float64 else None
    work = ComparisonWork(runners, args, tolerance, baseline, show)
    outputs = work.outputs()
    layers = work.layers()
    return Comparison(
        _in_words(sides[0], runners[0]),
        _in_words(sides[1], runners[1]),
        str(inputs.of([method])),
        method,
        tolerance,
        tuple(layers),
        tuple(outputs),
        tuple(work.unmatched()),
        work.unseen,
        tuple(_remarks(sources[0], sides[0], method, args, work, has_outputs_only=len(layers) <= len(outputs))),
        time.perf_counter() - started,
    )


def tolerance_of(given: float | None, sources: Iterable[Source], *choices: PrecisionChoice) -> float:
    """The error that is let pass, given or that of the coarsest of some precisions, and of the weights of models.

    Raises:
        InputError: it is no number from 0 on.
    """
    dtypes = {HALVES[choice.precision] for choice in choices if choice.is_half}
    dtypes |= {dtype for source in sources for dtype in _dtypes_of_weights(source.program)}
    usual = max((TOLERANCES[dtype] for dtype in dtypes if dtype in TOLERANCES), default=RELATIVE_TOLERANCE)
    tolerance = usual if given is None else given
    if not 0 <= tolerance < math.inf:
        raise InputError(f"the tolerance is {tolerance}; give a number from 0 on, such as 1e-4")
    return tolerance


def _dtypes_of_weights(program: Program) -> set[torch.dtype]:
    values = (value for graph in program.methods.values() for node in graph.walk() for value in node.inputs)
    constants = (value.constant for value in values if value.is_constant)
    return {constant.dtype for constant in constants if isinstance(constant, torch.Tensor) and constant.dim() > 1}


def opened(a: object, b: object, example_inputs: ExampleInputs | None) -> tuple[Source, Source]:
    """Both models."""
    first = whole_source_of(a, example_inputs)
    return first, first if b is None else whole_source_of(b, example_inputs)


def arguments_of(sources: tuple[Source, Source], method: str, inputs: ChosenInputs) -> list[Any]:
    """The arguments that both models are run on.

    Raises:
        InputError: none are known, or a model does not take them.
    """
    arguments = inputs.by_method.get(method)
    for source in sources:
        if method not in source.program.methods:
            names = ", ".join(source.program.methods)
            raise InputError(f"{source.name} has no method {method!r}; its methods are {names}; choose with --method")
    if arguments is None:
        raise InputError(
            f"no inputs are known that {sources[0].name} takes in {method}; give them with --input x.npy or "
            "--random 1,3,224,224"
        )
    bound: list[Any] = []
    for source in sources:
        try:
            bound.append(bind_arguments(source.program, method, arguments, {}))
        except InputError as error:
            raise InputError(f"{source.name} does not take the inputs of {sources[0].name}: {error}") from None
    return list(bound[0])


def _in_words(side: Side, runner: Runner) -> str:
    passes = f", passes {side.passes}" if side.passes else ""
    return f"{side.name} on {runner.where}{passes}"


def _remarks(
    source: Source, side: Side, method: str, args: Sequence[Any], work: ComparisonWork, *, has_outputs_only: bool
) -> Iterator[str]:
    """What else a reader should know."""
    if work.is_of_other_model and work.unmatched() and has_outputs_only:
        yield "no layer between inputs and outputs is common to both: they may be two different models"
    elif work.is_of_other_model:
        yield "no origins are common to both models: layers were matched by making, source line, order and reader"
    if len(work.runners[0].lines) != len(work.runners[1].lines):
        yield (
            f"the model looks at elements {len(work.runners[0].lines) - 1} times on one side and "
            f"{len(work.runners[1].lines) - 1} times on the other: a branch or a loop went another way"
        )
    for name, runner in zip("AB", work.runners, strict=True):
        for fallback in runner.fallbacks:
            yield f"{name} runs on the CPU: {fallback}"
    if side.device == CPU and not side.passes and not side.precision.is_half:
        own = source.caller(method)(copy.deepcopy(list(args)))
        pairs = list(zip(tensors_of(work.results[0]), tensors_of(own), strict=True))
        worst = max((difference(theirs, mine).error for mine, theirs in pairs), default=0.0)
        if worst > work.tolerance and work.baseline is None:
            yield f"the reference's graph gives another result than the model itself, by {worst:.1e} of its scale"
