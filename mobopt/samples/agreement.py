"""How well two results agree, and how well a model and its optimised Program do."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mobopt.errors import MoboptError
from mobopt.frontends.source import Source
from mobopt.ir import Program
from mobopt.ir.arguments import bind_arguments
from mobopt.ops.effects import random_operators
from mobopt.ops.state import telling_calls
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.cpu.double import Float64Interpreter, JitteredInterpreter, in_double
from mobopt.runtimes.cpu.memory_check import check_dense
from mobopt.samples.example_inputs import GIVEN, ChosenInputs
from mobopt.samples.other_sizes import inputs_of_other_sizes

TIMES_ROUNDING = 4
"""How much farther from the result of float64 the optimised model may be than the model itself: sums in another order
round in another way."""
_JITTERED_RUNS = 8
"""With inputs and constants that are off by a rounding: a choice between two numbers falls the other way in some."""
_SEED = 0
RELATIVE_TOLERANCE = 1e-4
"""Of the largest magnitude of the expected output, for float32."""
TOLERANCES = {torch.float16: 1e-2, torch.bfloat16: 8e-2}
"""The same for results of halves, and for tensors that lie as such. A rounding to float16 is 5e-4 at most, and six nets
came to 2.7e-4 to 1.9e-3; one to bfloat16 is eight times that, and seven nets came to 2.3e-3 to 1.2e-2."""


@dataclass(frozen=True)
class Agreement:
    """The largest difference between two results."""

    absolute: float
    relative: float
    """``absolute`` over the largest magnitude of the tensor that it is in."""
    is_rounding: bool = False
    """Whether a larger difference is that of the model's precision: what float32 rounds makes as large ones."""
    tolerance: float = RELATIVE_TOLERANCE
    """What ``relative`` may be, by the dtype of that tensor."""

    @property
    def agrees(self) -> bool:
        """Whether the difference is within the tolerance, or one that the model's precision makes anyway."""
        return self.relative <= self.tolerance or self.is_rounding

    @property
    def share(self) -> float:
        """How much of the tolerance is taken."""
        return self.relative / self.tolerance


_NONE = Agreement(0.0, 0.0)
_TOTAL = Agreement(float("inf"), float("inf"))


def compare(actual: Any, expected: Any) -> Agreement:
    """Compare two results, also nests of tuples, lists and dictionaries; other structure or shapes: infinite."""
    pairs = list(_pairs(actual, expected))
    return max((_compare_leaves(*pair) for pair in pairs), key=lambda item: item.share, default=_NONE)


def _pairs(actual: Any, expected: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)) and len(actual) == len(expected):
        for left, right in zip(actual, expected, strict=True):
            yield from _pairs(left, right)
    elif isinstance(expected, dict) and isinstance(actual, dict) and actual.keys() == expected.keys():
        for key, right in expected.items():
            yield from _pairs(actual[key], right)
    else:
        yield actual, expected


def _compare_leaves(actual: Any, expected: Any) -> Agreement:
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        same = type(actual) is type(expected) and actual == expected
        return _NONE if same else _TOTAL
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return _TOTAL
    if expected.numel() == 0:
        return _NONE
    left, right = _in_float64(actual), _in_float64(expected)
    equal = (left == right) | (left.isnan() & right.isnan())
    difference = torch.where(equal, 0.0, (left - right).abs()).nan_to_num(nan=float("inf")).max().item()
    finite = right[right.isfinite()].abs()
    scale = finite.max().item() if finite.numel() else 0.0
    relative = difference / scale if scale else (0.0 if difference == 0 else float("inf"))
    return Agreement(difference, relative, tolerance=TOLERANCES.get(expected.dtype, RELATIVE_TOLERANCE))


def _in_float64(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor; of complex numbers, both parts."""
    check_dense(tensor)
    tensor = tensor.detach()
    return torch.view_as_real(tensor.to(torch.complex128).resolve_conj()) if tensor.is_complex() else tensor.double()


def agreement_of(source: Source, program: Program, inputs: ChosenInputs) -> Agreement:
    """How well a model and its optimised Program agree, on the CPU, where least; with state, over several calls. Where
    inputs may have other sizes, two of these count as well, if the model takes them.

    Raises:
        InputError: the model can't be run on the inputs.
    """
    is_bounded = inputs.origin != GIVEN
    found = [_agreement_of(source, program, *item, is_bounded) for item in inputs.by_method.items()]
    for method, arguments in inputs.by_method.items():
        for others in inputs_of_other_sizes(source.program, method, arguments, inputs.bounds):
            if _takes(source, method, others, is_bounded):
                found.append(_agreement_of(source, program, method, others, is_bounded))
    return max(found, key=lambda item: item.share)


def _takes(source: Source, method: str, inputs: Sequence[Any], is_bounded: bool) -> bool:
    """Whether a model can be run on inputs of sizes that it was declared to take; ranges may be too wide."""
    try:
        _result(source.caller(method, is_bounded), inputs)
    except Exception:  # whatever a model raises for sizes that it was not written for
        return False
    return True


def _agreement_of(source: Source, program: Program, method: str, inputs: Sequence[Any], is_bounded: bool) -> Agreement:
    interpreter = Interpreter(program)
    return agreement_of_calls(
        source,
        method,
        inputs,
        lambda arguments: interpreter.run(method, bind_arguments(program, method, arguments, {})),
        telling_calls(program),
        is_bounded,
    )


def agreement_of_calls(
    source: Source,
    method: str,
    inputs: Sequence[Any],
    call: Callable[[list[Any]], Any],
    calls: int = 1,
    is_bounded: bool = False,
) -> Agreement:
    """How well a method of a model agrees with what a function gives; with state, over several calls.

    Args:
        source: the model.
        method: the method's name.
        inputs: its arguments.
        call: gives a result for arguments, which it may change.
        calls: how many show what the function remembers; what the model does is known.
        is_bounded: whether the model is given up if its loops go round for long, as nobody gave the inputs.

    Raises:
        InputError: the model can't be run on the inputs.
    """
    own = source.caller(method, is_bounded)
    calls = max(calls, telling_calls(source.program))
    results, expected = [], []
    for _ in range(calls):
        expected.append(_result(own, inputs))
        results.append(_result(call, inputs))
    agreement = compare(results, expected)
    if agreement.agrees or calls > 1:
        return agreement
    return replace(agreement, is_rounding=_is_rounding(source.program, method, inputs, results[0], expected[0]))


def _result(call: Callable[[list[Any]], Any], inputs: Sequence[Any]) -> Any:
    """A copy of what a call gives for copies, as a model may change its inputs, and what it returns may change with its
    state; with the same random numbers for all."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_SEED)
        return copy.deepcopy(call(copy.deepcopy(list(inputs))))


def _is_rounding(program: Program, method: str, inputs: Sequence[Any], result: Any, expected: Any) -> bool:
    """Whether the result is about as near to what float64 gives as single precision is, which is not near."""
    if random_operators(program.methods[method].walk()):
        return False  # those of float64 are others
    try:
        exact = in_double(_run(Float64Interpreter(program), method, inputs))
        distance = compare(in_double(expected), exact).relative
        found = compare(in_double(result), exact).relative
        for seed in range(_JITTERED_RUNS):
            if found <= TIMES_ROUNDING * distance:
                break
            jittered = in_double(_run(JitteredInterpreter(program, seed), method, inputs))
            distance = max(distance, compare(jittered, exact).relative)
    except MoboptError:  # the model asks for single precision
        return False
    return distance > RELATIVE_TOLERANCE / TIMES_ROUNDING and found <= TIMES_ROUNDING * distance


def _run(interpreter: Interpreter, method: str, inputs: Sequence[Any]) -> Any:
    bound = bind_arguments(interpreter.program, method, copy.deepcopy(list(inputs)), {})
    return interpreter.run(method, bound)
