"""What inputs a method takes that was made from examples: sizes, ranges of sizes, dtypes, values that are fixed.

A graph that was exported holds for such inputs only, and would give wrong numbers for others without a word. So the
rules stand in ``Program.metadata["input_rules"]``, by method, and :func:`mobopt.ir.arguments.bind_arguments` asks
them.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch

from mobopt.errors import GraphError, InputError
from mobopt.ir.dimensions import Dimension, Expression, symbol
from mobopt.ir.guards import LARGEST_SIZE, Guards
from mobopt.ir.nests import leaves_of
from mobopt.ir.types import TensorType

_REMEDY = "export the model with dynamic_shapes for other sizes"


@dataclass(frozen=True)
class Fixed:
    """A value that is part of the model: the graph was made for it."""

    value: Any


Rule = TensorType | Expression | Fixed | list["Rule"] | dict[Any, "Rule"]
"""Of an input: a tensor, an integer by its symbol, a fixed value, or a container of inputs."""


class InputRules:
    """The rules of one method.

    Attributes:
        inputs: a rule for each input, by its name, in order; the sizes of tensors have symbols.
        guards: the symbols with their ranges.
        conditions: what must hold besides, on sizes of inputs.
    """

    def __init__(self, inputs: Mapping[str, Rule], guards: Guards, conditions: Sequence[Condition] = ()) -> None:
        self.inputs = dict(inputs)
        self.guards = guards
        self.conditions = tuple(conditions)
        self._plain = {name: (rule.dtype, rule.sizes) for name, rule in self.inputs.items() if _is_plain(rule)}
        """Dtypes and sizes of tensors whose sizes have no symbols: to compare others would be to decide them."""

    def ranges(self) -> list[list[tuple[int, int] | None]]:
        """For each tensor among the inputs, of each dimension the least and the largest size; None where it has one
        size, or no largest."""
        return [
            [self._range(size) for size in rule.sizes] for rule in leaves_of(list(self.inputs.values()), TensorType)
        ]

    def _range(self, size: Dimension) -> tuple[int, int] | None:
        known = self.guards.symbols.get(str(size)) if isinstance(size, Expression) else None
        return None if known is None or known.upper == LARGEST_SIZE else (known.lower, known.upper)

    def check(self, arguments: Sequence[Any]) -> None:
        """Refuse arguments that the graph was not made for.

        Raises:
            InputError: naming the input, its value and what the model takes.
        """
        found = _Found(self.guards)
        for (name, rule), value in zip(self.inputs.items(), arguments, strict=True):
            if isinstance(value, torch.Tensor) and self._plain.get(name) == (value.dtype, value.shape):
                continue
            _check(found, f"the input {name!r}", rule, value)
        found.finish()
        named = dict(zip(self.inputs, arguments, strict=True))
        for condition in self.conditions:
            if not condition.holds(named):
                raise InputError(
                    f"the inputs break a condition that the model was exported with, {condition}; {_REMEDY}"
                )


def _is_plain(rule: Rule) -> TypeGuard[TensorType]:
    return isinstance(rule, TensorType) and rule.sizes is not None and all(type(size) is int for size in rule.sizes)


class _Found:
    """Sizes that were seen, and what they say of symbols."""

    def __init__(self, guards: Guards) -> None:
        self._guards = guards
        self._values: dict[str, int] = {}
        self._open: list[tuple[str, Expression, int]] = []

    def see(self, what: str, expected: Dimension, size: int) -> None:
        """Compare a size with what is expected of it, now or, where symbols are not known yet, at the end."""
        if isinstance(expected, Expression):
            name = str(expected)
            known = self._guards.symbols.get(name)
            if known is None:
                self._open.append((what, expected, size))
            elif self._values.setdefault(name, size) != size:
                raise InputError(f"{what} is {size}, and {name} is {self._values[name]} in an earlier input")
            elif not known.lower <= size <= known.upper:
                raise InputError(f"{what} is {size}, and the model takes {known.lower} to {known.upper}; {_REMEDY}")
        elif expected != size:
            raise InputError(f"{what} is {size}, and the model was exported for {expected}; {_REMEDY}")

    def finish(self) -> None:
        """Compare what was left open."""
        for what, expected, size in self._open:
            unknown = [name for name in expected.symbols() if name not in self._values]
            if len(unknown) == 1:
                self._solve(unknown[0], what, expected, size)
            elif not unknown and expected.substitute(self._values) != size:
                raise InputError(f"{what} is {size}, and the model takes {expected}: {self._told(expected)}; {_REMEDY}")

    def _solve(self, name: str, what: str, expected: Expression, size: int) -> None:
        """Find a symbol from an expression that is linear in it."""
        zero, one = (expected.substitute({**self._values, name: value}) for value in (0, 1))
        if not isinstance(zero, int) or not isinstance(one, int) or one == zero:
            return
        value, rest = divmod(size - zero, one - zero)
        if rest or expected.substitute({**self._values, name: value}) != size:
            raise InputError(f"{what} is {size}, and the model takes {expected}, with any {name}; {_REMEDY}")
        self.see(f"{name} in {what}", symbol(self._guards, name), value)

    def _told(self, expected: Expression) -> str:
        return ", ".join(f"{name} is {self._values[name]}" for name in sorted(expected.symbols()))


def _check(found: _Found, what: str, rule: Rule, value: Any) -> None:
    match rule:
        case TensorType():
            _check_tensor(found, what, rule, value)
        case Fixed(expected):
            if type(value) is not type(expected) or value != expected:
                shown = "a tensor" if isinstance(value, torch.Tensor) else repr(value)
                raise InputError(f"{what} is {shown}, and the model was exported for {expected!r}; export it again")
        case Expression():
            if type(value) is not int:
                raise InputError(f"{what} is {value!r}, and the model takes an integer")
            found.see(what, rule, value)
        case _:
            for place, inner, item in _items(what, rule, value):
                _check(found, place, inner, item)


def _check_tensor(found: _Found, what: str, rule: TensorType, value: Any) -> None:
    sizes = getattr(value, "shape", getattr(value, "sizes", None))
    dtype = getattr(value, "dtype", None)
    if sizes is None or not isinstance(dtype, torch.dtype):
        raise InputError(f"{what} is a {type(value).__name__}, and the model takes a tensor")
    if dtype != rule.dtype:
        raise InputError(f"{what} is of {dtype}, and the model was exported for {rule.dtype}; convert it")
    if len(sizes) != rule.rank:
        raise InputError(f"{what} has {len(sizes)} dimensions, and the model was exported for {rule.rank}; {_REMEDY}")
    for dim, (expected, size) in enumerate(zip(rule.sizes, sizes, strict=True)):
        found.see(f"dimension {dim} of {what}", expected, int(size))


def _items(what: str, rule: list[Rule] | dict[Any, Rule], value: Any) -> Iterator[tuple[str, Rule, Any]]:
    keys = list(rule) if isinstance(rule, dict) else list(range(len(rule)))
    is_alike = isinstance(value, dict) if isinstance(rule, dict) else isinstance(value, (list, tuple))
    if not is_alike or len(value) != len(keys) or (isinstance(rule, dict) and set(value) != set(keys)):
        kind = "a dictionary of" if isinstance(rule, dict) else "a list or tuple of"
        raise InputError(f"{what} is a {type(value).__name__}, and the model takes {kind} {len(keys)} elements")
    for key in keys:
        yield f"{what}[{key!r}]", rule[key], value[key]


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "max": max, "min": min, "torch.sym_max": max, "torch.sym_min": min, "torch.sym_float": float,
    "math.ceil": math.ceil, "math.floor": math.floor, "math.trunc": math.trunc, "math.sqrt": math.sqrt,
}  # fmt: skip
"""By the names that torch's releases write; 2.15 has ``torch.sym_max`` and ``torch.sym_min``."""
_ROOT = "L"
"""What conditions call the inputs."""


class Condition:
    """A condition on sizes of inputs in Python's notation: ``L['x'].size()[0] <= 2 * L['y'].size()[1]``.

    It is read as data; names, attributes and calls beyond these few forms are refused.
    """

    def __init__(self, text: str) -> None:
        """Read a condition.

        Raises:
            GraphError: it has other forms than arithmetic and comparisons of sizes.
        """
        self._text = text
        try:
            tree = ast.parse(text.strip(), mode="eval").body
            self._value = _reader(tree)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the parser's stack
            raise GraphError(f"can't read the condition {text[:200]!r}: {error}") from None

    def holds(self, inputs: Mapping[str, Any]) -> bool:
        """Whether it is true of these inputs."""
        try:
            return bool(self._value(inputs))
        except (ArithmeticError, LookupError, TypeError):
            return False

    def __str__(self) -> str:
        return self._text


_Reader = Callable[[Mapping[str, Any]], Any]


def _reader(node: ast.expr) -> _Reader:
    match node:
        case ast.Constant(value=int() | float() as number):
            return lambda inputs: number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _joined(_BINARY[type(op)], _reader(left), _reader(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _BINARY:
            return _joined(_BINARY[type(op)], _reader(left), _reader(right))
        case ast.BinOp(
            left=left, op=ast.Pow(), right=ast.Constant(value=(0.5 | 2) as power)
        ):  # others may take any time
            base = _reader(left)
            return lambda inputs: base(inputs) ** power
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _reader(operand)
            return lambda inputs: -inner(inputs)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _reader(operand)
            return lambda inputs: not inner(inputs)
        case ast.BoolOp(op=ast.And(), values=values):
            parts = [_reader(value) for value in values]
            return lambda inputs: all(part(inputs) for part in parts)
        case ast.BoolOp(op=ast.Or(), values=values):
            parts = [_reader(value) for value in values]
            return lambda inputs: any(part(inputs) for part in parts)
        case ast.Call(func=called, args=[_, *_] as args, keywords=[]) if ast.unparse(called) in _FUNCTIONS:
            function, parts = _FUNCTIONS[ast.unparse(called)], [_reader(arg) for arg in args]
            return lambda inputs: function(*(part(inputs) for part in parts))
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=place, attr="size"), args=[], keywords=[]),
            slice=ast.Constant(value=int() as dim),
        ):
            found = _place(place)
            return lambda inputs: int(found(inputs).shape[dim])
        case ast.Subscript():
            return _place(node)
    raise ValueError(f"{ast.unparse(node)[:100]} is no arithmetic of sizes")


def _joined(function: Callable[[Any, Any], Any], left: _Reader, right: _Reader) -> _Reader:
    return lambda inputs: function(left(inputs), right(inputs))


def _place(node: ast.expr) -> _Reader:
    """An input, or an element of one."""
    match node:
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str() as key)) if name == _ROOT:
            return lambda inputs: inputs[key]
        case ast.Subscript(
            value=ast.Subscript(value=ast.Name(id=root), slice=ast.Constant(value=str() as key)),
            slice=ast.Constant(value=int() as number),
        ) if root == _ROOT:  # of ``*key`` each is an input by itself
            return lambda inputs: inputs[key][number] if key in inputs else inputs[f"{key}_{number}"]
        case ast.Subscript(value=inner, slice=ast.Constant(value=str() | int() as element)):
            outer = _place(inner)
            return lambda inputs: outer(inputs)[element]
    raise ValueError(f"{ast.unparse(node)[:100]} is no input")
