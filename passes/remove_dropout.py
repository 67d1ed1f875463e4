"""Dropout in evaluation mode does nothing."""

from __future__ import annotations

from mobopt.ir import Graph
from mobopt.ops.records import Trait, has_trait
from mobopt.passes.manager import GraphPass
from mobopt.passes.note_kinds import REMOVED, STAYS
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import argument, bypass_node


class RemoveDropout(GraphPass):
    """Remove dropout that does not train.

    Given:
        %train : bool = prim::Constant[value=0]()
        %y : Tensor = aten::dropout(%x, %p, %train)
    Result:
        %x
    """

    name = "remove_dropout"

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Remove every dropout whose ``train`` is the constant False."""
        changed = False
        for node in graph.walk():
            if not has_trait(node.qualified_op, Trait.DROPOUT):
                continue
            train = argument(node, "train")
            if not train.is_constant:
                notes.add(STAYS, node, reason="whether it trains is not known before the model runs")
            elif train.constant:
                notes.add(STAYS, node, reason="it is asked to train even in evaluation mode")
            else:
                notes.add(REMOVED, node, reason="it does nothing in evaluation mode")
                bypass_node(node, node.inputs[0])
                changed = True
        return changed
