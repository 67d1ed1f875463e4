"""What a graph is at one moment, so that what was found of it then is believed only while it is the same."""

from __future__ import annotations

import operator
from typing import Any

from mobopt.ir.graph import Block, Graph, Node


class Snapshot:
    """Every object that a graph consists of, in order; nodes, values and their attributes may change in place.

    Nothing that changes a graph has to tell: whoever has kept something about it compares. That is a walk over the
    graph without a look at what operators do.
    """

    __slots__ = ("_objects",)

    def __init__(self, graph: Graph) -> None:
        self._objects: list[Any] = []
        self._add(graph.block)

    def is_same(self, other: Snapshot) -> bool:
        """Whether nothing has changed between the two; both hold on to what they saw, so no address is given anew."""
        mine, others = self._objects, other._objects
        return len(mine) == len(others) and all(map(operator.is_, mine, others))

    def _add(self, block: Block) -> None:
        objects = self._objects
        for value in block.parameters:
            objects += value, value.type
        for node in block.nodes:
            self._add_node(node)
        objects += block, *block.outputs

    def _add_node(self, node: Node) -> None:
        objects = self._objects
        objects += node, node.op, node.overload
        objects += node.inputs
        for value in node.outputs:
            objects += value, value.type, value.is_used
        for pair in node.attributes.items():
            objects += pair
        for inner in node.blocks:
            self._add(inner)
