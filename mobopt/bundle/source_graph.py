"""Makes the nodes of a graph from source: operators with their overloads, conversions and constants.

Source of the rules: ``torch/csrc/jit/frontend/schema_matching.cpp`` of PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mobopt.bundle.result_types import result_types
from mobopt.bundle.source_files import MAX_TYPE_SIZE, type_size
from mobopt.errors import BundleError
from mobopt.ir import Block, Graph, Node, Value
from mobopt.ir.graph import type_of_constant
from mobopt.ir.schemas import Argument, accepts, resolve
from mobopt.ir.types import (
    ANY,
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    NONE,
    SCALAR,
    TENSOR,
    DictType,
    ListType,
    OptionalType,
    TupleType,
    Type,
)
from mobopt.ops import schemas as _operators_of_mobile_builds  # noqa: F401 (registers them)

MAX_STEPS = 1_000_000
"""Nodes, statements and expressions that one model may have, its functions inlined."""

_IMPLICIT: dict[tuple[Type, Type], str] = {
    (TENSOR, INT): "aten::IntImplicit",
    (TENSOR, FLOAT): "aten::FloatImplicit",
    (TENSOR, COMPLEX): "aten::ComplexImplicit",
    (TENSOR, SCALAR): "aten::ScalarImplicit",
    (TENSOR, BOOL): "aten::Bool",
    (INT, BOOL): "aten::Bool",
    (FLOAT, BOOL): "aten::Bool",
    (INT, FLOAT): "aten::Float",
    (SCALAR, INT): "aten::Int",
    (SCALAR, FLOAT): "aten::Float",
    (SCALAR, COMPLEX): "aten::Complex",
}
"""The operators that convert a value of one type to another without being asked."""


@dataclass
class Budget:
    """How many steps a model may still take, in all of its methods."""

    left: int = MAX_STEPS


class GraphWriter:
    """Appends to one graph, at the end of the block that is current."""

    def __init__(self, budget: Budget) -> None:
        self.graph = Graph()
        self.block = self.graph.block
        self.source = ""
        """Where the next nodes come from."""
        self._budget = budget
        self._pooled: dict[str, Value] = {}

    @contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        """Append to a nested block."""
        outer, self.block = self.block, block
        yield
        self.block = outer

    def node(
        self,
        op: str,
        inputs: Sequence[Value],
        types: Sequence[Type],
        *,
        overload: str = "",
        attributes: dict[str, Any] | None = None,
    ) -> Node:
        """Append a node with an output of each type."""
        self.spend(1)
        for kind in types:
            self.spend(self._type_size(kind))
        node = self.graph.create(op, inputs, types, overload=overload, attributes=attributes, source=self.source)
        return self.block.append(node)

    def spend(self, steps: int) -> None:
        """Count steps.

        Raises:
            BundleError: the model has too many.
        """
        self._budget.left -= steps
        if self._budget.left < 0:
            raise BundleError(
                f"{self.source}: the model's source has more than {MAX_STEPS} steps when its functions are inlined, "
                "mobopt's limit"
            )

    def _type_size(self, kind: Type) -> int:
        size = type_size(kind)
        if size > MAX_TYPE_SIZE:
            raise BundleError(f"{self.source}: a value's type has more than {MAX_TYPE_SIZE} parts, mobopt's limit")
        return size

    def constant(self, value: Any, type: Type | None = None) -> Value:
        """A constant."""
        return self.graph.constant(value, type)

    def pooled(self, name: str, value: Any) -> Value:
        """An entry of the model's constant table, one Value in the graph however often it is read."""
        if name not in self._pooled:
            self._pooled[name] = self.constant(value)
        return self._pooled[name]

    def operator(
        self, name: str, positional: Sequence[Value], keywords: Mapping[str, Value] | None = None
    ) -> tuple[Value, ...]:
        """Append an operator that a call in source names, and return its results.

        Raises:
            UnsupportedError: the operator is unknown, or no overload takes these arguments.
        """
        named = keywords or {}
        schema = resolve(name, [value.type for value in positional], {key: item.type for key, item in named.items()})
        inputs = [
            self._argument(argument, _given(index, argument, positional, named))
            for index, argument in enumerate(schema.arguments)
        ]
        inputs += positional[len(schema.arguments) :]
        node = self.node(name, inputs, result_types(schema, [value.type for value in inputs]), overload=schema.overload)
        return tuple(node.outputs)

    def convert(self, value: Value, expected: Type) -> Value | None:
        """A value as one of the expected type, by the implicit conversions of TorchScript; None if there is none."""
        kind = value.type
        if isinstance(expected, OptionalType) and kind != NONE and not isinstance(kind, OptionalType):
            return self.convert(value, expected.element)
        if accepts(expected, kind):
            return self._widened(value, expected)
        if (kind, expected) in _IMPLICIT:
            return self.operator(_IMPLICIT[kind, expected], [value])[0]
        if isinstance(kind, TupleType) and isinstance(expected, ListType):
            items = self.node("prim::TupleUnpack", [value], kind.elements).outputs
            return self.list_of(items, expected.element)
        return None

    def list_of(self, items: Sequence[Value], element: Type) -> Value | None:
        """A list of converted items; None if one of them can't be converted."""
        converted = [self.convert(item, element) for item in items]
        values = [item for item in converted if item is not None]
        if len(values) != len(converted):
            return None
        return self.node("prim::ListConstruct", values, [ListType(element)]).output

    def tuple_of(self, items: Sequence[Value]) -> Value:
        """A tuple."""
        kind = TupleType(tuple(item.type for item in items))
        return self.node("prim::TupleConstruct", items, [kind]).output

    def _widened(self, value: Value, expected: Type) -> Value:
        """None where something optional is expected gets that type, so that a variable which starts with it may
        change."""
        if value.is_constant and value.type == NONE and isinstance(expected, OptionalType):
            return self.constant(None, expected)
        return value

    def _argument(self, argument: Argument, value: Value | None) -> Value:
        """The input for an argument: its default, one element repeated, or what is given, converted."""
        if value is None:
            kind = argument.type if isinstance(argument.default, (list, dict)) else None
            return self.constant(argument.default, kind)
        expected = argument.type.element if isinstance(argument.type, OptionalType) else argument.type
        repeats = argument.fixed_length is not None and isinstance(expected, ListType)
        if repeats and not isinstance(value.type, (ListType, OptionalType)) and value.type not in (NONE, ANY):
            return self._repeated(value, argument)
        if accepts(argument.type, value.type):
            return value
        return self.convert(value, expected) or value

    def _repeated(self, value: Value, argument: Argument) -> Value:
        expected = argument.type.element if isinstance(argument.type, OptionalType) else argument.type
        assert isinstance(expected, ListType) and argument.fixed_length is not None
        return self.list_of([value] * argument.fixed_length, expected.element) or value


def _given(index: int, argument: Argument, positional: Sequence[Value], named: Mapping[str, Value]) -> Value | None:
    return positional[index] if index < len(positional) else named.get(argument.name)


def common_type(left: Type, right: Type) -> Type | None:
    """The type of a variable that has one of two types; None if there is none."""
    if left == right or ANY in (left, right):
        return left if left == right else ANY
    for wide, narrow in ((left, right), (right, left)):
        if accepts(wide, narrow):
            return wide
    if NONE in (left, right):
        return OptionalType(right if left == NONE else left)
    if isinstance(left, OptionalType) or isinstance(right, OptionalType):
        inner = common_type(*(item.element if isinstance(item, OptionalType) else item for item in (left, right)))
        return None if inner is None else OptionalType(inner)
    if isinstance(left, TupleType) and isinstance(right, TupleType) and len(left.elements) == len(right.elements):
        items = [common_type(a, b) for a, b in zip(left.elements, right.elements, strict=True)]
        return TupleType(tuple(item for item in items if item is not None)) if None not in items else None
    return None


def constant_type(value: Any, declared: Type) -> Type | None:
    """The type of an attribute's value if the declared type allows it, else None."""
    if isinstance(value, dict) and not value:
        return declared if isinstance(declared, DictType) else None
    return declared if accepts(declared, type_of_constant(value)) else None
