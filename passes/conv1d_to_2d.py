"""A convolution over one dimension is one over two, of which the first is 1."""

from __future__ import annotations

from mobopt.ir import Graph, Node
from mobopt.passes.manager import After, GraphPass
from mobopt.passes.note_kinds import REWRITTEN_AS, STAYS
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import constants, insert_node, is_constant_tensor, replace_node


class Conv1dTo2d(GraphPass):
    """Rewrite conv1d as conv2d, which the mobile CPU kernels are made for.

    Given:
        %y = aten::conv1d(%x, %w, %b, [s], [p], [d], %g)
    Result:
        %x2 = aten::unsqueeze(%x, -2)
        %y2 = aten::conv2d(%x2, %w2, %b, [1, s], [0, p], [1, d], %g)
        %y = aten::squeeze(%y2, -2)
    """

    name = "conv1d_to_2d"
    after = (After("fold_batch_norm", "a squeeze would stand between the layer and its normalisation"),)

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Rewrite each conv1d with a constant weight."""
        changed = False
        for node in graph.walk():
            if node.qualified_op != "aten::conv1d":
                continue
            if not is_constant_tensor(node.inputs[1]) or constants(node.inputs[3:6]) is None:
                notes.add(STAYS, node, reason="its weight, stride, padding or dilation is not constant")
                continue
            notes.add(REWRITTEN_AS, node, operator="conv2d")
            _rewrite(graph, node)
            changed = True
        return changed


def _rewrite(graph: Graph, node: Node) -> None:
    x, weight, bias, stride, padding, dilation, groups = node.inputs
    row = graph.constant(-2)
    wide = insert_node(graph, node, "aten::unsqueeze", [x, row], name=x.name)
    kernel = graph.constant(weight.constant.unsqueeze(-2), name=weight.name)
    settings = [
        graph.constant([first, value.constant[0]]) for first, value in ((1, stride), (0, padding), (1, dilation))
    ]
    result = insert_node(graph, node, "aten::conv2d", [wide, kernel, bias, *settings, groups], name=node.output.name)
    replace_node(graph, node, "aten::squeeze", [result, row], overload="dim")
