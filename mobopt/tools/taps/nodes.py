"""Nodes that are appended before a place of a graph, one short call each."""

from __future__ import annotations

from typing import Any

from mobopt.ir import Graph, Node, Origin, Value
from mobopt.ir.types import TENSOR, Type


class NodeWriter:
    """Puts nodes with one output before an anchor; ``write("aten::add", x, 1)`` gives the output."""

    def __init__(self, graph: Graph, anchor: Node, origin: Origin) -> None:
        """Write before ``anchor``; the nodes get ``origin``."""
        self.graph = graph
        self._anchor = anchor
        self._origin = origin

    def __call__(self, op: str, *operands: Any, overload: str = "", type: Type = TENSOR, name: str = "") -> Value:
        """Append a node; operands that are no Values become constants."""
        inputs = [item if isinstance(item, Value) else self.graph.constant(item) for item in operands]
        names = [name] if name else []
        node = self.graph.create(op, inputs, [type], overload=overload, names=names, origin=self._origin)
        return node.insert_before(self._anchor).output

    def run(self, op: str, *operands: Value, overload: str) -> None:
        """Append a node without outputs."""
        self.graph.create(op, operands, [], overload=overload, origin=self._origin).insert_before(self._anchor)
