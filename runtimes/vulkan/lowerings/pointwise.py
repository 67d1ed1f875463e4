"""Pointwise operators: every functional overload on tensors of what :mod:`pointwise_expressions` defines."""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import cache
from typing import Any

import torch

from mobopt.ir import Node, Value
from mobopt.ir.rewriting import passing_call
from mobopt.ir.types import TENSOR
from mobopt.ops.records import Trait, has_trait
from mobopt.ops.schemas import Schema, schemas_of
from mobopt.runtimes.vulkan.engine.tensor import WORD_INTEGERS, DeviceTensor
from mobopt.runtimes.vulkan.kernels.copies import copied
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute_result
from mobopt.runtimes.vulkan.kernels.pointwise_program import Kind, ProgramBuilder, Term, kind_of
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes
from mobopt.runtimes.vulkan.lowerings.pointwise_expressions import EXPRESSIONS, Expression, common_dtype
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.runtimes.vulkan.lowerings.wanted_layout import wanted_of

_OTHER_MEANINGS = {"aten::max", "aten::min", "aten::max.dim", "aten::min.dim", "aten::where"}
"""Operators that share a name with a pointwise one."""

_HALVES = (torch.float16, torch.bfloat16)

_KEEP_PRECISION = {
    *("mul", "multiply", "div", "divide", "true_divide", "floor_divide", "lerp", "addcmul", "addcdiv", "threshold"),
    *("to", "_to_copy", "elu", "celu", "selu", "softplus", "leaky_relu", "gelu"),
}
"""Operators on halves whose numbers torch's CPU kernels take as float32; others round them to halves first."""

_COMBINATIONS = ("addcmul", "addcdiv")
"""Those of them that round tensors without dimensions nevertheless."""

_DIVISIONS = ("floor_divide", "div", "divide", "remainder", "fmod")


def expression_of(operator: str) -> Expression | None:
    """The expression of an operator, or None if it isn't pointwise."""
    name, _, overload = operator.partition(".")
    if operator in _OTHER_MEANINGS:
        return None
    expression = EXPRESSIONS.get(name)
    return expression if expression and overload in _overloads(name) else None


def _name(operator: str) -> str:
    """``add`` of ``aten::add.Tensor``."""
    return operator.removeprefix("aten::").partition(".")[0]


def value_of(builder: ProgramBuilder, call: Node) -> Term:
    """Append a pointwise call's instructions; the result is still to be stored as the output's dtype."""
    expression = expression_of(call.qualified_op)
    assert expression is not None
    if any(ref.dtype in _HALVES for ref in call.inputs):
        args = _with_halves(builder, call)
    elif any(ref.rank == 0 for ref in call.inputs):
        args = _with_narrow_integers(builder, call)
    else:
        return expression(builder, call)
    with passing_call(call.qualified_op, args, [Value("", call.output.type)], call.origin) as rounded:
        return expression(builder, rounded)


def _with_halves(builder: ProgramBuilder, call: Node) -> tuple[Any, ...]:
    """The arguments of a call, rounded to halves where torch does so before it computes: integers that meet halves, and
    what has no dimensions, but for a few operators that keep its precision."""
    common = call.output.dtype if call.output.dtype != torch.bool else common_dtype(*call.args[:2])
    keeps = _name(call.qualified_op) in _KEEP_PRECISION

    def operand(value: Any) -> Any:
        if isinstance(value, float):
            return value if keeps else float(torch.tensor(value, dtype=common))
        if not isinstance(value, Value) or value.dtype in (common, torch.bool):
            return value
        if value.dtype.is_floating_point and keeps and _name(call.qualified_op) not in _COMBINATIONS:
            return value
        return _converted(builder, value, common)

    return tuple(map(operand, call.args)) if common in _HALVES else call.args


def _with_narrow_integers(builder: ProgramBuilder, call: Node) -> tuple[Any, ...]:
    """The arguments of a call; what has no dimensions has no say in the dtype of integers, and is wrapped around to it
    before torch computes."""
    common = integers_of(call)

    def operand(value: Any) -> Any:
        if not isinstance(value, Value) or value.rank or common is None or _holds(common, value.dtype):
            return value
        return _converted(builder, value, common)

    return tuple(map(operand, call.args))


def _holds(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether integers of one dtype hold all of another's."""
    if other == torch.bool:
        return True
    here, there = torch.iinfo(dtype), torch.iinfo(other)
    return here.min <= there.min and there.max <= here.max


def _converted(builder: ProgramBuilder, value: Value, dtype: torch.dtype) -> Value:
    """A tensor as it is once it has been stored in a dtype."""
    result = Value.of_tensor(dtype, value.sizes)
    builder.define(result, builder.stored_as(builder.tensor(value), dtype))
    return result


@cache
def _overloads(name: str) -> frozenset[str]:
    return frozenset(schema.overload for schema in _tensor_schemas(name))


def _tensor_schemas(name: str) -> Iterator[Schema]:
    """Overloads that take a tensor, return one, and write to none."""
    for schema in schemas_of(name):
        takes = any(argument.type == TENSOR for argument in schema.arguments)
        if takes and schema.returns == (TENSOR,) and not schema.is_mutating:
            yield schema


def _operators() -> Iterator[str]:
    for name in EXPRESSIONS:
        if has_trait(name, Trait.IDENTITY):
            continue  # for fusion only: on its own it is a view or a copy (see ``views.py``)
        for schema in _tensor_schemas(name):
            if schema.qualified_name not in _OTHER_MEANINGS:
                yield schema.qualified_name


def check_pointwise(call: Node) -> str | None:
    """As :func:`check_dtypes`; integers are not divided by zero, nor raised to negative numbers, and the next float is
    one of float32."""
    if _name(call.qualified_op) == "nextafter" and call.output.dtype in _HALVES:
        return f"the next float is looked for in float32, not in {call.output.dtype}"
    if _name(call.qualified_op) in _DIVISIONS and not call.output.dtype.is_floating_point and call.args[1] == 0:
        return "an integer is divided by zero, which torch refuses"
    if call.qualified_op == "aten::pow.Tensor_Scalar" and integers_of(call) and call.args[1] < 0:
        return "an integer is raised to a negative power, which torch refuses"
    return check_dtypes(call)


def needs_longs(call: Node, long: Container[Value]) -> bool:
    """Whether a pointwise call computes with integers of 64 bits, where the tensors ``long`` have such: because of
    them, or because of a number."""
    if any(ref in long for ref in (*call.inputs, *call.outputs)):
        return True
    low, high = WORD_INTEGERS
    return integers_of(call) == torch.int64 and any(
        isinstance(number, int) and not low <= number <= high for number in call.args
    )


def integers_of(call: Node) -> torch.dtype | None:
    """The dtype in which a pointwise call computes integers; None if it computes floats or bools."""
    if any(ref.dtype.is_floating_point for ref in call.inputs):
        return None
    dtype = call.output.dtype if call.output.dtype != torch.bool else common_dtype(*call.args[:2])
    return dtype if kind_of(dtype) == Kind.INTEGER else None


@lowers(*_operators(), check=check_pointwise, exact=True, long=True)
def pointwise(plan: Plan, call: Node) -> DeviceTensor:
    """One pointwise operator as one dispatch, but for functions of integers of 64 bits: they become floats before."""
    builder = ProgramBuilder(is_long=needs_longs(call, plan.long))
    result = value_of(builder, call)
    if builder.is_long and not builder.fits:
        builder = ProgramBuilder()
        with passing_call(
            call.qualified_op, _as_floats(plan, call), [Value("", call.output.type)], call.origin
        ) as same:
            result = value_of(builder, same)
    return compute_result(plan, builder, result, call.output, wanted_of(call.output))


def _as_floats(plan: Plan, call: Node) -> tuple[Any, ...]:
    """The arguments of a call that computes floats, with such in place of integers of 64 bits."""

    def operand(value: Any) -> Any:
        if not (isinstance(value, Value) and plan.tensor(value).is_long):
            return value
        twin = Value.of_tensor(torch.float32, value.sizes)
        plan.place(twin, copied(plan, plan.tensor(value), dtype=torch.float32))
        return twin

    return tuple(map(operand, call.args))
