"""The register of rules, and what all of them use."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch

from mobopt.ir.dimensions import Dimension, Expression
from mobopt.ir.dtypes import SCALAR_TYPES
from mobopt.ir.guards import UndecidedError
from mobopt.ir.types import TensorType
from mobopt.ops.shapes.kinds import are_of_schema
from mobopt.ops.shapes.layouts import Layout, Lying, Order, Strides

_LOG = logging.getLogger("mobopt.shapes")

Result: TypeAlias = "TensorType | tuple[TensorType, ...] | list[TensorType]"
"""A tensor, what a schema of several results returns, or a list of tensors."""
Rule: TypeAlias = Callable[..., "TensorType | tuple[TensorType, ...] | list[TensorType]"]
_Rule = TypeVar("_Rule", bound=Rule)
Sizes: TypeAlias = "tuple[Dimension, ...]"

FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.float64})
INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
REALS = FLOATS | INTEGERS
"""Dtypes of real numbers, without bool."""
PLAIN = REALS | {torch.bool}
"""The dtypes that rules know."""
INDICES = frozenset({torch.int64, torch.int32})


class NoRuleError(Exception):
    """A rule can't tell what an operator makes of these arguments, or whether it takes them."""


_RULES: dict[str, Rule] = {}
_LAYOUTS: dict[str, Layout | None] = {}
"""Of operators whose results are new."""
_ORDERS: dict[str, Order] = {}
"""Of those whose first result may lie in another order than its operands do."""


def shape_rule(*operators: str, layout: Layout | None = None, order: Order | None = None) -> Callable[[_Rule], _Rule]:
    """Register a rule for operators by their qualified names; their results are new, and row-major where all operands
    are, but for the first, of which ``order`` tells. ``layout`` tells how they lie for others."""

    def register(rule: _Rule) -> _Rule:
        _LAYOUTS.update(dict.fromkeys(operators, layout))
        if order is not None:
            _ORDERS.update(dict.fromkeys(operators, order))
        return view_rule(*operators)(rule)

    return register


def view_rule(*operators: str) -> Callable[[_Rule], _Rule]:
    """Register a rule for operators whose results may share memory with an operand, or lie in another order."""

    def register(rule: _Rule) -> _Rule:
        for operator in operators:
            if operator in _RULES:
                raise ValueError(f"{operator} has two rules")
            _RULES[operator] = rule
        return rule

    return register


def infer(operator: str, args: Sequence[Any]) -> Result | None:
    """What an operator makes, or None where no rule tells: what the operator refuses is torch's to judge.

    A rule that fails on arguments of the right kinds is at fault. That is logged as a warning, and the answer is None:
    torch tells then, only slower.

    Args:
        operator: qualified name, such as ``aten::add.Tensor``.
        args: all arguments of its schema, in order; tensors as their types, sizes as dimensions.
    """
    rule = _RULES.get(operator)
    if rule is None:
        return None
    try:
        return rule(*args)
    except (NoRuleError, UndecidedError, ValueError, IndexError, ZeroDivisionError):
        return None  # sizes and numbers that the operator refuses
    except Exception as error:
        if are_of_schema(operator, args):  # judged late, for it costs time
            _LOG.warning("the rule of %s failed on %s: %r", operator, list(args), error)
        return None


def has_rule(operator: str) -> bool:
    """Whether there is a rule for an operator, by its qualified name."""
    return operator in _RULES


def makes_new(operator: str) -> bool:
    """Whether results of an operator with a rule are new tensors."""
    return operator in _LAYOUTS


def strides_of(operator: str, sizes: tuple[int, ...], operands: Sequence[Lying]) -> Strides | None:
    """How a result of an operator that :func:`makes_new` lies; None where no rule tells.

    Args:
        operator: qualified name.
        sizes: of the result.
        operands: sizes and strides of all tensors among the arguments, in order; not all of them lie row-major.
    """
    layout = _LAYOUTS[operator]
    return None if layout is None else layout(sizes, operands)


def order_of(operator: str, args: Sequence[Any]) -> Sequence[int] | None:
    """In which order the dimensions of the first result of an operator that :func:`makes_new` lie, innermost first,
    where all operands lie row-major; None if it does so too. The other results do.

    Args:
        operator: qualified name.
        args: all arguments of its schema, in order.
    """
    order = _ORDERS.get(operator)
    return None if order is None else order(args)


def operators_with_rules() -> list[str]:
    """Qualified names of all operators that have a rule, sorted."""
    return sorted(_RULES)


def require(condition: object) -> None:
    """Leave what doesn't meet a condition to torch.

    Raises:
        NoRuleError: the condition is false.
    """
    if not condition:
        raise NoRuleError


def dtype_of(value: int | torch.dtype | None, default: torch.dtype) -> torch.dtype:
    """The dtype that an argument asks for: a number in TorchScript."""
    if value is None:
        return default
    found = value if isinstance(value, torch.dtype) else SCALAR_TYPES[value]
    require(found in PLAIN)
    return found


def axis(dim: int, rank: int) -> int:
    """A dimension counted from the front; of a number (rank 0) there is dimension 0 for most operators."""
    limit = max(rank, 1)
    require(-limit <= dim < limit)
    return dim % limit


def axes(dims: int | Iterable[int] | None, rank: int, empty_is_all: bool = True) -> list[int]:
    """Dimensions counted from the front; None, and mostly no dimension, stand for all."""
    if dims is None:
        return list(range(rank))
    found = [axis(dim, rank) for dim in ([dims] if isinstance(dims, int) else dims)]
    require(len(set(found)) == len(found))
    if not found and empty_is_all:
        return list(range(rank))
    return found


def numbers(values: Any, count: int, default: Sequence[int] = ()) -> list[Any]:
    """A list argument of ``count`` numbers, of which one may stand for all, and none for the default."""
    items = list(values) if isinstance(values, (list, tuple)) else [values]
    if not items:
        items = list(default)
    if len(items) == 1:
        items *= count
    require(len(items) == count)
    return items


def is_same(a: Dimension, b: Dimension) -> bool:
    """Whether two sizes are equal as they are written, without a decision."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return a.key == b.key


def broadcast(*shapes: Sizes) -> Sizes:
    """The sizes that all of these are expanded to.

    Raises:
        NoRuleError: there are none.
    """
    result = shapes[0]
    for shape in shapes[1:]:
        result = _broadcast(result, shape)
    return result


def _broadcast(a: Sizes, b: Sizes) -> Sizes:
    if a is b:
        return a
    if len(a) < len(b):
        a, b = b, a
    lead = len(a) - len(b)
    return (*a[:lead], *(_size(x, y) for x, y in zip(a[lead:], b, strict=True)))


def _size(x: Dimension, y: Dimension) -> Dimension:
    """What two sizes are expanded to; equal sizes are the likely case, and need the fewest guards."""
    if isinstance(x, int) and isinstance(y, int):
        require(x == y or x == 1 or y == 1)
        return y if x == 1 else x
    if isinstance(y, int) and y == 1:
        return x
    if isinstance(x, int) and x == 1:
        return y
    if x == y:
        return x if isinstance(x, int) else y
    if x == 1:
        return y
    require(y == 1)
    return x


def product(sizes: Iterable[Dimension]) -> Dimension:
    """The number of elements."""
    return math.prod(sizes)


def equal(a: Sequence[Dimension], b: Sequence[Dimension]) -> bool:
    """Whether sizes are equal, in number and each; symbols are decided."""
    return len(a) == len(b) and all(x == y for x, y in zip(a, b, strict=True))


def is_minus_one(size: Any) -> bool:
    """Whether a size is the number that says: as it comes."""
    return isinstance(size, int) and size == -1


def concrete(size: Dimension) -> int:
    """The number that a size is for the examples; a guard says so, if it is an expression."""
    return int(size) if isinstance(size, Expression) else size
