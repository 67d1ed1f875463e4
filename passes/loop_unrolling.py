"""Short loops whose trip count is known become straight lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mobopt.ir import Block, Graph, Node, Value
from mobopt.ir.facts import SIZES, UNKNOWN
from mobopt.ir.program import copy_node
from mobopt.passes.manager import GraphPass
from mobopt.passes.note_kinds import NOT_UNROLLED, UNROLLED
from mobopt.passes.notes import NoteBook


@dataclass(frozen=True)
class LoopUnrolling(GraphPass):
    """Write out loops that run a small, constant number of times.

    Given:
        %y : Tensor = prim::Loop(%two, %true, %x)
          block0(%i : int, %a : Tensor):
            %b : Tensor = aten::relu(%a)
            -> (%true, %b)
    Result:
        %b.1 : Tensor = aten::relu(%x)
        %b.2 : Tensor = aten::relu(%b.1)
    """

    name = "loop_unrolling"
    max_trips: int = 16
    max_nodes: int = 256
    """Nodes of the body times trips."""

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Unroll inner loops before outer ones."""
        changed = False
        for node in reversed(list(graph.walk())):
            if node.op != "prim::Loop" or not _counts(node):
                continue
            trips = max(0, node.inputs[0].constant) if node.inputs[1].constant else 0
            size = trips * sum(1 for _ in node.blocks[0].walk())
            if trips > self.max_trips or size > self.max_nodes:
                notes.add(NOT_UNROLLED, node, trips=trips, nodes=size)
                continue
            notes.add(UNROLLED, node, trips=trips)
            _unroll(graph, node, trips)
            changed = True
        return changed


def _counts(node: Node) -> bool:
    """Whether the trip count, the first condition and the body's condition are all known."""
    going_on = node.blocks[0].outputs[0]
    known = node.inputs[0].is_constant and node.inputs[1].is_constant and going_on.is_constant
    return known and bool(going_on.constant)


def _unroll(graph: Graph, node: Node, trips: int) -> None:
    carried = list(node.inputs[2:])
    for trip in range(trips):
        carried = _copy_body(graph, node.blocks[0], node, [graph.constant(trip), *carried])
    for output, value in zip(node.outputs, carried, strict=True):
        output.replace_all_uses_with(value)
    node.destroy()


def _copy_body(graph: Graph, body: Block, anchor: Node, arguments: list[Value]) -> list[Value]:
    """Copy a loop's body before ``anchor``; what it carries to the next trip."""
    values = dict(zip(body.parameters, arguments, strict=True))
    values.update({value: value for value in _constants(body)})
    for inner in body.nodes:
        copy = copy_node(inner, values)
        _rename(graph, copy)
        copy.insert_before(anchor)
    return [values.get(value, value) for value in body.outputs[1:]]


def _constants(block: Block) -> Iterator[Value]:
    """Constants that a block's nodes read, nested ones too; all copies read the same ones."""
    for node in [*block.nodes, block.returns]:
        yield from (value for value in node.inputs if value.is_constant)
        for nested in node.blocks:
            yield from _constants(nested)


def _rename(graph: Graph, node: Node) -> None:
    for block in node.blocks:
        for value in block.parameters:
            value.name = graph.unique_name(value.name)
        for inner in block.nodes:
            _rename(graph, inner)
    for value in node.outputs:
        value.name = graph.unique_name(value.name)
        if value.facts.lasting != SIZES:  # of all trips together
            value.facts = UNKNOWN
