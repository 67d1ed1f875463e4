"""Which tensors lie as halves in a line of a model that is in halves itself: those that are halves in the model.

See :mod:`mobopt.runtimes.vulkan.compile.widening` for what the line is by then. What the model has in float32 stays so:
angles of rotations, statistics, whatever its author took out of half precision. What only moves elements of halves may
lie as halves whatever its dtype is, since nothing is lost; what passes have made since is what its operands are.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.half_ranges import HALVES
from mobopt.runtimes.vulkan.compile.precision import (
    DECLARED,
    ON_CPU,
    SCALES,
    Choice,
    Halved,
    Halving,
    lying_as_declared,
    moves,
    nodes_of,
    scales_of,
)
from mobopt.runtimes.vulkan.compile.widening import declared_dtype


class DeclaredHalves:
    """The choice for one straight line; like :class:`~mobopt.runtimes.vulkan.compile.precision.Halving`, without a
    precision that anybody asked for."""

    def __init__(self, half: torch.dtype) -> None:
        """Take the type of halves."""
        self.elements = half

    def begin(self, graph: Graph) -> None:
        """Nothing: what lies as halves is known."""

    def watch(self, graph: Graph) -> None:
        """Nothing: the model's author has seen what halves hold."""

    def names(self, node: Node) -> bool:
        """False: nobody wants float32 of a node."""
        return False

    def is_unfit(self, node: Node) -> bool:
        """False: see :meth:`watch`."""
        return False

    def choose(
        self,
        graph: Graph,
        on_host: Container[Node],
        in_place: Mapping[Value, Value],
        has_units: bool,
        declared: Mapping[Value, torch.dtype],
    ) -> Halved:
        """What lies as halves, of a line whose nodes are fused; see :meth:`Halving.choose`."""
        precision = next(name for name, elements in HALVES.items() if elements == self.elements)
        forced = lying_as_declared(graph, declared, in_place, self.elements)
        line = _Line(Choice(precision), forced, [value for value in graph.inputs if value not in forced])
        for node in graph.block.nodes:
            line.consider(node, node in on_host)
        halved = line.choice.halved(graph, are_operands_halves=False)
        values = halved.values | forced
        nodes = frozenset(node for node in graph.block.nodes if self._has_half_weights(node, values))
        return replace(halved, values=values, nodes=nodes)

    def _has_half_weights(self, node: Node, values: Container[Value]) -> bool:
        """Whether a node's weights are halves in the model, or were made of some."""
        read = (value for part in nodes_of(node) for value in part.inputs)
        weights = [value for value in read if value.elements is not None and value.dtype == torch.float32]
        dtypes = {declared_dtype(value) for value in weights if value.rank >= 2}
        are_made = None in dtypes and all(value in values for value in node.outputs)
        return torch.float32 not in dtypes and (self.elements in dtypes or are_made)


class _Line:
    """The choice on the way through a line."""

    def __init__(self, choice: Choice, forced: set[Value], inputs: Iterable[Value]) -> None:
        self.choice, self.forced = choice, forced
        self._single = set(inputs)

    def consider(self, node: Node, is_on_host: bool) -> None:
        """What one node makes of its operands."""
        parts = nodes_of(node)
        read = [value for part in parts for value in part.inputs if value.dtype == torch.float32]
        read = [value for value in read if value.producer not in parts]
        made = [value for value in node.outputs if value.dtype == torch.float32]
        if is_on_host:
            for value in (*read, *made):
                self._keep(value, ON_CPU)
            return
        for value in made:
            self.choice.make(value, node)
        if len(parts) == 1 and moves(parts[0]) and self._keeps_elements(parts[0], made):
            self._move(read, made)
            return
        is_single = any(value in self._single or _is_single_constant(value) for value in read)
        for value in made:
            dtype = declared_dtype(value)
            if dtype == torch.float32 or (dtype is None and is_single):
                self._keep(value, DECLARED)
        for value in scales_of(node):
            self._keep(value, SCALES)

    def _keeps_elements(self, node: Node, made: list[Value]) -> bool:
        """Whether what a node moves may lie as its operands do: the model has halves, or what it widens are some."""
        if any(map(_is_single_constant, node.inputs)):
            return False
        if not any(declared_dtype(value) == torch.float32 for value in made):
            return True
        are_halves = all(value.dtype == torch.float32 and value not in self._single for value in node.inputs)
        return are_halves and not has_trait(node.qualified_op, Trait.PADDING)

    def _move(self, read: list[Value], made: list[Value]) -> None:
        """What only moves elements is like what they are of."""
        if any(value in self._single for value in read):
            self._single.update(made)
        self.choice.tie([value for value in (*read, *made) if value.elements is None and value not in self.forced])

    def _keep(self, value: Value, reason: str) -> None:
        if value not in self.forced:
            self._single.add(value)
            self.choice.keep(value, reason)


def _is_single_constant(value: Value) -> bool:
    return value.elements is not None and value.rank > 0 and declared_dtype(value) == torch.float32


HalfChoice = Halving | DeclaredHalves
"""What chooses what lies as halves."""
