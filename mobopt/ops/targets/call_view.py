"""What the rows see of a call: its arguments by name, its outputs, and what is known of its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar

import torch

from mobopt.ir import Node, Value
from mobopt.ir.facts import UNKNOWN, TensorFacts, facts_of_constant
from mobopt.ir.guards import UnknownFactError
from mobopt.ops.effects import listed_items
from mobopt.ops.schemas import schema_of

Reason = TypeVar("Reason")


class CallView:
    """A node, or the plain operator that a packed one stands for, as conditions read it.

    Args:
        node: the call.
        limit: largest extent of an image on the device.
        arguments: by name, where they are not those of the node.
    """

    __slots__ = ("_arguments", "_node", "_read", "limit")

    def __init__(self, node: Node, limit: int, arguments: Mapping[str, Any] | None = None) -> None:
        self.limit = limit
        self._node = node
        self._arguments = (
            dict(zip(_argument_names(node.qualified_op), node.inputs, strict=False)) if arguments is None else arguments
        )
        self._read: dict[str, Any] = {}

    def argument(self, name: str) -> Any:
        """The facts of a tensor, the facts of each tensor of a list, or a plain value.

        Raises:
            UnknownFactError: it is known only when the model runs.
        """
        if name not in self._read:
            self._read[name] = self._seen(self._arguments[name], name)
        return self._read[name]

    @property
    def outputs(self) -> list[TensorFacts]:
        """The facts of each result."""
        return [value.facts for value in self._node.outputs]

    def is_computed(self, name: str) -> bool:
        """Whether an argument is a number, or a list of some, that is known only when the model runs."""
        return _is_computed(self._arguments.get(name))

    def producer(self, name: str) -> str:
        """The operator that makes an argument, in the form for numbers if it takes one in a tensor; empty if none."""
        value = self._arguments[name]
        node = value.producer if isinstance(value, Value) else None
        if node is None:
            return ""
        takes_number = node.overload == "Tensor" and len(node.inputs) > 1 and _is_number(node.inputs[1])
        return f"{node.op}.Scalar" if takes_number else node.qualified_op

    def bounds(self, name: str) -> tuple[float, float]:
        """The least and the largest that an element of an argument can be, by the operator that makes it."""
        return _bounds(self._arguments[name])

    def has_dtype(self, name: str) -> bool:
        """Whether one of the call's tensors is known to be of a dtype."""
        return any(facts.known_dtype == name for facts in self._tensors())

    def misfit(self, check: Callable[[TensorFacts], Reason | None]) -> Reason | None:
        """The first that a check has against one of the call's tensors; None if none, as far as is known."""
        return next((reason for facts in self._tensors() if (reason := check(facts)) is not None), None)

    def _tensors(self) -> Iterator[TensorFacts]:
        """Operands and results, as far as anything is known of them; weights in contexts and numbers apart."""
        for value in self._node.inputs:
            if value.is_constant and isinstance(value.constant, torch.Tensor) and not _is_number(value):
                yield facts_of_constant(value.constant)
            yield from (item.facts for item in listed_items(value) or (value,) if item.facts is not UNKNOWN)
        yield from (value.facts for value in self._node.outputs if value.facts is not UNKNOWN)

    def _seen(self, value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            return facts_of_constant(value)
        if not isinstance(value, Value):
            return value
        if value.is_constant:
            return _constant(value.constant)
        if _is_tensor(value):
            return value.facts
        items = listed_items(value)
        if items is not None:
            return [self._seen(item, name) for item in items]
        raise UnknownFactError(f"its {name} is not known")


@cache
def _argument_names(operator: str) -> tuple[str, ...]:
    return tuple(argument.name for argument in schema_of(operator).arguments)


def _constant(constant: Any) -> Any:
    if isinstance(constant, torch.Tensor):
        return facts_of_constant(constant)
    return [_constant(item) for item in constant] if isinstance(constant, list) else constant


def _is_computed(value: Any) -> bool:
    if not isinstance(value, Value) or value.is_constant or _is_tensor(value):
        return False
    items = listed_items(value)
    return items is None or any(map(_is_computed, items))


_RANGES = {"relu6": (0, 6), "sigmoid": (0, 1), "hardsigmoid": (0, 1), "softmax": (0, 1), "tanh": (-1, 1)}
"""Least and largest results of operators."""


def _bounds(value: Any) -> tuple[float, float]:
    node = value.producer if isinstance(value, Value) else None
    name = "" if node is None else node.qualified_op.partition(".int")[0].removeprefix("aten::").removesuffix("_")
    if node is not None and name in ("clamp", "hardtanh") and all(item.is_constant for item in node.inputs[1:3]):
        low, high = (item.constant for item in node.inputs[1:3])
        return (-math.inf if low is None else low, math.inf if high is None else high)
    return _RANGES.get(name, (-math.inf, math.inf))


def _is_number(value: Value) -> bool:
    """Whether a value is a constant tensor without dimensions, which no runtime moves to the GPU."""
    return value.is_constant and isinstance(value.constant, torch.Tensor) and value.constant.dim() == 0


def _is_tensor(value: Value) -> bool:
    return str(value.type) == "Tensor"
