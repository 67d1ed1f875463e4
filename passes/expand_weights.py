"""Weights of few bits become floats, for targets that have no such weights."""

from __future__ import annotations

from mobopt.ir import Graph, Value
from mobopt.ops.quantized import DEQUANTIZE, dequantized
from mobopt.passes.manager import GraphPass
from mobopt.passes.note_kinds import EXPANDED
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import bypass_node, constants


class ExpandWeights(GraphPass):
    """Compute the floats that constant integers of few bits stand for.

    Given:
        %w = mobopt::dequantize(%integers, %scales, None, [1, 32], 4, 768)
    Result:
        %w : Tensor = prim::Constant[value=<Tensor float32 [768, 768]>]()
    """

    name = "expand_weights"

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Rewrite node by node."""
        changed = False
        for node in graph.walk():
            given = constants(node.inputs) if node.qualified_op == DEQUANTIZE else None
            if given is not None:
                notes.add(EXPANDED, node)
                attribute = node.inputs[0].attribute
                bypass_node(node, Value(node.output.name, node.output.type, dequantized(*given), attribute))
                changed = True
        return changed
