"""Pointwise operators, in place and not: every overload on tensors of what :mod:`pointwise_expressions` defines."""

from __future__ import annotations

from collections.abc import Iterator

from mobopt.errors import UnsupportedError
from mobopt.ir.types import TENSOR
from mobopt.ops.schemas import Schema, schemas_of
from mobopt.runtimes.call import Call
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes
from mobopt.runtimes.vulkan.lowerings.pointwise_expressions import EXPRESSIONS, Expression
from mobopt.runtimes.vulkan.plan import Plan
from mobopt.runtimes.vulkan.pointwise_kernel import compute_into, compute_result
from mobopt.runtimes.vulkan.pointwise_program import ProgramBuilder
from mobopt.runtimes.vulkan.registry import lowers
from mobopt.runtimes.vulkan.tensor import DeviceTensor, StorageKind

_OTHER_MEANINGS = {"aten::max", "aten::min", "aten::max.dim", "aten::min.dim", "aten::where"}
"""Operators that share a name with a pointwise one."""

_VIEWS = {"alias", "detach", "clone", "contiguous", "to", "_to_copy", "type_as", "cpu"}
"""Expressions for fusion only: on their own they are views or copies (see ``views.py``)."""


def expression_of(operator: str) -> Expression | None:
    """The expression of an operator, in place or not, or None if it isn't pointwise."""
    name, _, overload = operator.partition(".")
    if operator in _OTHER_MEANINGS:
        return None
    in_place = name.endswith("_") and not name.endswith("__")
    expression = EXPRESSIONS.get(name.removesuffix("_") if in_place else name)
    return expression if expression and any(s.overload == overload for s in _tensor_schemas(name)) else None


def is_in_place(operator: str) -> bool:
    """Whether the operator writes into its first argument, by torch's naming rule."""
    name = operator.partition(".")[0]
    return name.endswith("_") and not name.endswith("__")


def _tensor_schemas(name: str) -> Iterator[Schema]:
    """Overloads that take a tensor, return one, and don't write into an ``out`` argument."""
    for schema in schemas_of(name):
        takes = any(argument.type == TENSOR for argument in schema.arguments)
        has_out = any(argument.is_written and argument.keyword_only for argument in schema.arguments)
        if takes and schema.returns == (TENSOR,) and not has_out:
            yield schema


def _operators() -> Iterator[str]:
    for name in EXPRESSIONS:
        if name.removeprefix("aten::") in _VIEWS:
            continue
        for candidate in (name, f"{name}_"):
            for schema in _tensor_schemas(candidate):
                if schema.qualified_name not in _OTHER_MEANINGS:
                    yield schema.qualified_name


def written_tensor(plan: Plan, call: Call) -> DeviceTensor:
    """The tensor that an in-place call writes.

    Raises:
        UnsupportedError: it is a constant, which other calls share.
    """
    target = plan.tensor(call.args[0])
    if target.storage.kind == StorageKind.CONSTANT:
        raise UnsupportedError(f"{call.op} writes into a constant of the model; make it an input or write into a copy")
    return target


@lowers(*_operators(), check=check_dtypes)
def pointwise(plan: Plan, call: Call) -> DeviceTensor:
    """One pointwise operator as one dispatch."""
    expression = expression_of(call.op)
    assert expression is not None
    builder = ProgramBuilder()
    result = expression(builder, call)
    if not is_in_place(call.op):
        return compute_result(plan, builder, result, call.output)
    target = written_tensor(plan, call)
    compute_into(plan, builder, result, target)
    return target
