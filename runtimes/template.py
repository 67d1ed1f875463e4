"""Segments for any sizes that meet the guards, from what was traced for one example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch

from mobopt.ir import Graph, Node, Origin, Value
from mobopt.ir.dimensions import Expression
from mobopt.ir.guards import Guards
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.signature import InputSizes
from mobopt.ir.types import TensorType
from mobopt.runtimes.cpu.kernels import kernel
from mobopt.runtimes.recorder import FOLD_LIMIT_BYTES, zeros_without_memory
from mobopt.runtimes.segment import Segment
from mobopt.runtimes.symbolic import Deferred, Traced


@dataclass(frozen=True)
class _Slot:
    """A tensor of the graph."""

    index: int


@dataclass(frozen=True)
class _Number:
    """A number that depends on the inputs' sizes."""

    index: int


@dataclass(frozen=True, eq=False)
class _Made:
    """A tensor to be made; among its sizes there may be a :class:`_Number`."""

    dtype: torch.dtype
    sizes: tuple[Any, ...]
    name: str

    def value(self, numbers: Sequence[int]) -> Value:
        """The tensor, made by nobody yet."""
        sizes = tuple([numbers[size.index] if type(size) is _Number else size for size in self.sizes])
        return Value(self.name, TensorType(self.dtype, sizes))


@dataclass(frozen=True, eq=False)
class _Constant:
    """A constant; ``source`` says how it is computed, if it depends on sizes."""

    elements: torch.Tensor | None
    """None, if they depend on sizes."""
    source: Deferred | None
    """With slots in its arguments."""
    made: _Made


@dataclass(frozen=True, eq=False)
class _Call:
    """A node."""

    op: str
    args: tuple[Any, ...]
    outputs: tuple[_Made, ...]
    origin: Origin


class Template:
    """A Segment whose sizes are open: it is made for sizes in a small part of the time that specialising takes."""

    def __init__(self, traced: Traced) -> None:
        """Take over what was traced.

        Args:
            traced: its segment's graph may be changed afterwards.
        """
        segment, graph = traced.segment, traced.segment.graph
        self._guards = traced.guards
        self._inputs = InputSizes(traced.inputs, traced.guards)
        self._sizes = traced.sizes
        self._numbers: dict[Any, tuple[_Number, Expression]] = {}
        self._slots: dict[Value, _Slot] = {}
        self._given = [self._made(value) for value in graph.inputs]
        read = [
            value for node in graph.block.nodes for value in (*node.inputs, *leaves_of(traced.args.get(node), Value))
        ]
        self._constants: list[_Constant] = []
        for value in _with_sources([*read, *graph.outputs], traced.deferred):
            self._constants.append(self._constant(value, traced.deferred.get(value)))
        self._calls = []
        for node in graph.block.nodes:
            args = self._encoded(traced.args.get(node, node.args))
            outputs = tuple(map(self._made, node.outputs))
            self._calls.append(_Call(node.qualified_op, args, outputs, node.origin))
        self._outputs = [self._slots[value].index for value in graph.outputs]
        self._result = self._encoded(traced.result)
        self._updates, self._writes = segment.updates, segment.writes
        self._evaluate = traced.guards.compile(expression for _, expression in self._numbers.values())
        made: list[_Made | _Constant] = [*self._given, *self._constants]
        self._slots_made = [*made, *chain(*(call.outputs for call in self._calls))]
        del self._sizes, self._slots

    def matching(self, sizes: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
        """The values of the symbols for inputs of these sizes, or None if another template is needed."""
        return self._inputs.matching_values(sizes)

    def segment(self, values: Sequence[int]) -> Segment | None:
        """The Segment for such values of the symbols, or None if none can be made."""
        numbers = self._evaluate(*values)
        constants = self._computed_constants(numbers)
        return None if constants is None else self._filled_with(numbers, constants)

    def outline(self, values: Sequence[int]) -> Segment:
        """As :meth:`segment`, without nodes: inputs and outputs alone."""
        numbers = self._evaluate(*values)
        needed = [*range(len(self._given)), *self._outputs]
        slots = {index: self._value_at(index, numbers) for index in dict.fromkeys(needed)}
        graph = Graph()
        for index in range(len(self._given)):
            graph.block.add_parameter(slots[index])
        return self._returning(graph, slots, numbers)

    def symbolic(self, values: Sequence[int], guards: Guards) -> tuple[Segment, list[Value]]:
        """The Segment with expressions as sizes.

        Args:
            values: of the symbols, which are the examples of those that are made.
            guards: without symbols; gets those of the template, and what is known of them.

        Returns:
            The Segment, and the constants in it that depend on sizes, which have no elements there: see
            :meth:`open_constants`.
        """
        known = zip(self._guards.symbols.values(), values, strict=True)
        symbols = {
            item.name: guards.symbol(item.name, item.lower, item.upper, example=value, origin=item.origin)
            for item, value in known
        }
        for condition in self._guards.conditions:
            known_condition = condition.expression.substitute(symbols)
            if isinstance(known_condition, Expression):
                guards.decide(known_condition, condition.relation)
        numbers: list[Any] = [expression.substitute(symbols) for _, expression in self._numbers.values()]
        constants = [
            made.made.value(numbers) if made.elements is None else Value.of_elements(made.elements)
            for made in self._constants
        ]
        depending = [value for value in constants if value.elements is None]
        return self._filled_with(numbers, constants), depending

    def open_constants(self, values: Sequence[int]) -> list[torch.Tensor] | None:
        """The constants that depend on sizes, in order; None if some can't be made."""
        if all(constant.source is None for constant in self._constants):
            return []
        constants = self._computed_constants(self._evaluate(*values))
        if constants is None:
            return None
        pairs = zip(constants, self._constants, strict=True)
        return [value.constant for value, made in pairs if made.source is not None]

    def _value_at(self, index: int, numbers: Sequence[Any]) -> Value:
        """An input, a constant or an output by itself."""
        made = self._slots_made[index]
        if isinstance(made, _Made):
            return made.value(numbers)
        assert made.elements is not None, "templates whose result is a constant that depends on sizes have no outlines"
        return Value.of_elements(made.elements)

    def _returning(self, graph: Graph, slots: Any, numbers: Sequence[Any]) -> Segment:
        graph.return_values(*(slots[index] for index in self._outputs))
        return Segment(graph, _filled(self._result, slots, numbers), updates=self._updates, writes=self._writes)

    def _computed_constants(self, numbers: Sequence[int]) -> list[Value] | None:
        """All constants, or None if some can't be made."""
        slots: list[Value | None] = [None] * len(self._given)
        made: list[Value] = []
        for constant in self._constants:
            elements = constant.elements if constant.source is None else _computed(constant.source, slots, numbers)
            if elements is None:
                return None
            made.append(Value.of_elements(elements))
            slots.append(made[-1])
        return made

    def _filled_with(self, numbers: Sequence[Any], constants: Sequence[Value]) -> Segment:
        given = [made.value(numbers) for made in self._given]
        graph = Graph()
        for value in given:
            graph.block.add_parameter(value)
        slots = [*given, *constants]
        for call in self._calls:
            outputs = [made.value(numbers) for made in call.outputs]
            graph.block.append(Node.call(call.op, _filled(call.args, slots, numbers), outputs, call.origin))
            slots += outputs
        return self._returning(graph, slots, numbers)

    def _made(self, value: Value) -> _Made:
        self._slots[value] = _Slot(len(self._slots))
        return _Made(value.dtype, self._encoded(self._sizes.get(value, value.sizes)), value.name)

    def _constant(self, value: Value, source: Deferred | None) -> _Constant:
        encoded = None if source is None else replace(source, args=self._encoded(source.args))
        return _Constant(value.elements if source is None else None, encoded, self._made(value))

    def _encoded(self, nest: Any) -> Any:
        """A nest with slots in place of tensors, and numbers' places in place of expressions."""
        return map_leaves(map_leaves(nest, Value, self._slots.__getitem__), Expression, self._number)

    def _number(self, expression: Expression) -> _Number:
        known = self._numbers.setdefault(expression.key, (_Number(len(self._numbers)), expression))
        return known[0]


def _with_sources(values: Sequence[Value], deferred: Mapping[Value, Deferred]) -> list[Value]:
    """The constants among values, with those that they are computed from, each after these."""
    found: dict[Value, None] = {}

    def add(value: Value) -> None:
        if value.elements is None or value in found:
            return
        if value in deferred:
            for source in leaves_of(deferred[value].args, Value):
                add(source)
        found[value] = None

    for value in values:
        add(value)
    return list(found)


def _filled(nest: Any, slots: Sequence[Value | None], numbers: Sequence[int]) -> Any:
    """A nest with what stands in the places that it names."""
    kind = type(nest)
    if kind is _Slot:
        return slots[nest.index]
    if kind is _Number:
        return numbers[nest.index]
    if kind is list:
        return [_filled(item, slots, numbers) for item in nest]
    if isinstance(nest, tuple):
        items = [_filled(item, slots, numbers) for item in nest]
        return kind(*items) if hasattr(nest, "_fields") else tuple(items)
    if kind is dict:
        return {key: _filled(item, slots, numbers) for key, item in nest.items()}
    return nest


def _computed(source: Deferred, slots: Sequence[Value | None], numbers: Sequence[int]) -> torch.Tensor | None:
    """A constant that depends on sizes; None if it is too large to be one, or the operator refuses."""
    args = _filled(source.args, slots, numbers)
    if not source.op:
        return zeros_without_memory(*args)
    try:
        result = kernel(source.op)(*map_leaves(args, Value, lambda value: value.elements))
    except Exception:  # a trace of this size says what is wrong
        return None
    made: torch.Tensor = list(leaves_of(result, torch.Tensor))[source.index]
    return made if made.untyped_storage().nbytes() <= FOLD_LIMIT_BYTES else None
