"""Calls of operators, made by hand, on which rows of targets are tried: a node, and what is known of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mobopt.ir import Node, Value
from mobopt.ir.facts import TensorFacts
from mobopt.ir.types import FLOAT, TENSOR, ListType, Type
from mobopt.ops.effects import listed_items
from mobopt.ops.schemas import schema_of
from mobopt.ops.targets import Finding, Target, judge
from mobopt.ops.targets.call_view import CallView
from mobopt.ops.targets.table import IMAGE_LIMIT


@dataclass(frozen=True)
class Computed:
    """A tensor that is made when the model runs.

    Attributes:
        sizes: of its dimensions; None: not known.
        dtype: its name.
        by: the operator that makes it; none makes an input.
        numbers: constants that this operator takes beside its tensor.
    """

    sizes: tuple[int, ...] | None
    dtype: str = "float32"
    by: str = ""
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True)
class Stored:
    """A constant tensor."""

    sizes: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class RowCall:
    """A call, and what a target does with it: a verdict, with the name of the row's rewrite behind a colon."""

    target: str
    operator: str
    expected: str
    arguments: Mapping[str, Any]
    result: Computed

    def finding(self) -> Finding:
        """What the rows say."""
        backend, release = self.target.split()
        return judge(self._node(), Target(backend, release))

    def view(self, facts_known: bool = True) -> CallView:
        """What conditions see of it, or would see without an example."""
        return CallView(self._node(facts_known), IMAGE_LIMIT)

    def _node(self, facts_known: bool = True) -> Node:
        declared = schema_of(self.operator).arguments
        assert set(self.arguments) <= {argument.name for argument in declared}, self
        given = [self.arguments.get(argument.name, argument.default) for argument in declared]
        inputs = [_value(item, argument.type) for item, argument in zip(given, declared, strict=True)]
        op, _, overload = self.operator.partition(".")
        node = Node(op, inputs, [_tensor(self.result)], overload=overload)
        if not facts_known:
            for value in (*node.outputs, *(item for given in inputs for item in listed_items(given) or (given,))):
                value.facts = TensorFacts()
        return node

    def __str__(self) -> str:
        return f"{self.operator} on {self.target}: {self.expected}"


UNKNOWN = object()
"""A number that is computed when the model runs."""


def call(target: str, operator: str, expected: str, /, *, result: Computed | None = None, **arguments: Any) -> RowCall:
    """A call by the names of its arguments; those that are left out have their defaults."""
    return RowCall(target, operator, expected, arguments, result or Computed(None))


def tensor(*sizes: int, dtype: str = "float32", by: str = "", numbers: tuple[float, ...] = ()) -> Computed:
    """A tensor of known sizes."""
    return Computed(sizes, dtype, by, numbers)


def stored(*sizes: int, dtype: str = "float32") -> Stored:
    """A constant."""
    return Stored(sizes, dtype)


def _value(item: Any, kind: Type) -> Value:
    if isinstance(item, Computed):
        return _tensor(item)
    if isinstance(item, Stored):
        return Value("constant", TENSOR, torch.empty(item.sizes, dtype=getattr(torch, item.dtype)))
    if item is UNKNOWN:
        return Value("computed", kind)
    if isinstance(item, list) and any(isinstance(part, (Computed, Stored)) or part is UNKNOWN for part in item):
        parts = [_value(part, FLOAT) for part in item]
        return Node("prim::ListConstruct", parts, [Value("list", ListType(TENSOR))]).output
    return Value("constant", kind, item)


def _tensor(item: Computed) -> Value:
    made = Value("tensor", TENSOR)
    if item.by:
        op, _, overload = item.by.partition(".")
        numbers = [Value("number", FLOAT, number) for number in item.numbers]
        Node(op, [Value("input", TENSOR), *numbers], [made], overload=overload)
    if item.sizes is not None:
        made.facts = TensorFacts(item.dtype, item.sizes)
    return made
