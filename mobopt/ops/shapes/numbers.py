"""Operators that ask for sizes, and arithmetic on sizes: what they give where sizes are expressions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from mobopt.ir.dimensions import Dimension, Expression, floor_divide, maximum, minimum, remainder
from mobopt.ir.types import TensorType
from mobopt.ops.shapes.rules import NoRuleError, axis, equal, require

Rule = Callable[..., Any]
_RULES: dict[str, Rule] = {}


def number_rule(*operators: str) -> Callable[[Rule], Rule]:
    """Register a function for operators by their qualified names. It takes what the operator takes, with types in place
    of tensors, and gives what the operator gives."""

    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(operators, rule))
        return rule

    return register


def tells_numbers(op: str) -> bool:
    """Whether there is a rule for an operator that gives numbers."""
    return op in _RULES


def infer_numbers(op: str, args: Sequence[Any]) -> Any:
    """What an operator that gives numbers gives; sizes among them may be expressions.

    Args:
        op: qualified name, of which :func:`tells_numbers` is true.
        args: all arguments of its schema, in order; tensors as their types.

    Raises:
        NoRuleError: the rule can't tell.
    """
    try:
        return _RULES[op](*args)
    except (TypeError, ValueError, IndexError, ZeroDivisionError) as error:
        raise NoRuleError from error


@number_rule("aten::size", "aten::sym_size")
def all_sizes(x: TensorType) -> list[Dimension]:
    """Of all dimensions."""
    return list(x.sizes)


@number_rule("aten::size.int", "aten::sym_size.int")
def one_size(x: TensorType, dim: int) -> Dimension:
    """Of one dimension."""
    require(x.rank)
    return x.sizes[axis(dim, x.rank)]


@number_rule("aten::numel", "aten::sym_numel")
def count(x: TensorType) -> Dimension:
    """All elements."""
    return x.numel


@number_rule("aten::len.Tensor")
def length(x: TensorType) -> Dimension:
    """The first size."""
    require(x.rank)
    return x.sizes[0]


@number_rule("aten::is_same_size")
def same_sizes(x: TensorType, other: TensorType) -> bool:
    """Whether two tensors have the same sizes."""
    return equal(x.sizes, other.sizes)


@number_rule("prim::nbytes", "prim::is_contiguous")
def untold(*_: Any) -> Any:
    """What depends on sizes in ways that are not worth a rule.

    Raises:
        NoRuleError: always.
    """
    raise NoRuleError


number_rule("aten::add.int", "aten::add")(operator.add)
number_rule("aten::sub.int", "aten::sub")(operator.sub)
number_rule("aten::mul.int", "aten::mul")(operator.mul)
number_rule("aten::neg.int", "aten::neg")(operator.neg)
number_rule("aten::floordiv.int", "aten::floordiv")(operator.floordiv)
number_rule("aten::remainder.int", "aten::remainder")(operator.mod)
number_rule("aten::eq.int", "aten::eq")(operator.eq)
number_rule("aten::ne.int", "aten::ne")(operator.ne)
number_rule("aten::lt.int", "aten::lt")(operator.lt)
number_rule("aten::le.int", "aten::le")(operator.le)
number_rule("aten::gt.int", "aten::gt")(operator.gt)
number_rule("aten::ge.int", "aten::ge")(operator.ge)
number_rule("prim::min.int")(minimum)
number_rule("prim::max.int")(maximum)


@number_rule("aten::Int.Scalar", "aten::IntImplicit")
def itself(value: Dimension) -> Dimension:
    """A size is an integer."""
    return value


@number_rule("aten::__round_to_zero_floordiv", "aten::__round_to_zero_floordiv.int")
def rounded_to_zero(a: Dimension, b: Dimension) -> Dimension:
    """As C divides; of sizes that are not negative."""
    require(a >= 0 and b > 0)
    return a // b


# Traced models keep sizes in tensors of one integer.

_OF_TENSORS: dict[str, Rule] = {}


def held_rule(*operators: str) -> Callable[[Rule], Rule]:
    """Register a function for operators on tensors without dimensions that hold one integer: it takes the integers, and
    gives the number that the operator gives, or that the tensor holds which it makes."""

    def register(rule: Rule) -> Rule:
        _OF_TENSORS.update(dict.fromkeys(operators, rule))
        return rule

    return register


def infer_held(op: str, args: Sequence[Any]) -> Dimension | None:
    """The number that an operator gives, or that is held by the tensor that it makes; None where no rule tells.

    Args:
        op: qualified name.
        args: all arguments of its schema, in order; tensors as the numbers that they hold.
    """
    rule = _OF_TENSORS.get(op)
    try:
        return None if rule is None else rule(*args)
    except (NoRuleError, TypeError, ValueError, ZeroDivisionError):
        return None


@held_rule("prim::NumToTensor.Scalar", "aten::Int.Tensor", "aten::IntImplicit", "aten::ScalarImplicit", "aten::item")
def held(value: Dimension) -> Dimension:
    """The same number."""
    require(isinstance(value, (int, Expression)))
    return value


@held_rule("aten::add.Tensor", "aten::add.Scalar")
def held_sum(a: Dimension, b: Dimension, factor: Any) -> Dimension:
    """``a + b * factor``"""
    total: Dimension = a + b * factor
    return total


@held_rule("aten::sub.Tensor", "aten::sub.Scalar")
def held_difference(a: Dimension, b: Dimension, factor: Any) -> Dimension:
    """``a - b * factor``"""
    total: Dimension = a - b * factor
    return total


@held_rule("aten::mul.Tensor", "aten::mul.Scalar")
def held_product(a: Dimension, b: Dimension) -> Dimension:
    """``a * b``"""
    return a * b


@held_rule("aten::floor_divide", "aten::floor_divide.Scalar")
def held_quotient(a: Dimension, b: Dimension) -> Dimension:
    """Rounded down."""
    return floor_divide(a, b)


@held_rule("aten::div.Tensor_mode", "aten::div.Scalar_mode")
def held_rounded_quotient(a: Dimension, b: Dimension, mode: str | None) -> Dimension:
    """Rounded as ``mode`` says."""
    require(mode == "floor" or (mode == "trunc" and a >= 0 and b > 0))
    return floor_divide(a, b)


@held_rule("aten::remainder.Tensor", "aten::remainder.Scalar")
def held_remainder(a: Dimension, b: Dimension) -> Dimension:
    """Of a quotient that is rounded down."""
    return remainder(a, b)
