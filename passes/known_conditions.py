"""What a passed check tells is used afterwards."""

from __future__ import annotations

from mobopt.ir import Block, Graph, Node, Value
from mobopt.passes.manager import GraphPass
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import producer_of


class KnownConditions(GraphPass):
    """After a check that raises, its condition is known; inside a branch, the branch's condition is.

    Given:
        %wrong : bool = aten::ne(%rank, %four)
         = prim::If(%wrong)
          block0():
             = prim::RaiseException(%message, %none)
            -> ()
          block1():
            -> ()
        %flat : bool = aten::lt(%rank, %two)
    Result:
        the same, but
        %flat : bool = aten::lt(%four, %two)
    """

    name = "known_conditions"

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Use what each branch tells, in order."""
        changed = False
        for node in graph.walk():
            if node.op != "prim::If" or node.inputs[0].is_constant or node.block is None:
                continue
            condition = node.inputs[0]
            for block, outcome in zip(node.blocks, (True, False), strict=True):
                changed |= _assume(graph, condition, outcome, [use for use in condition.uses if _is_in(use[0], block)])
                if any(inner.op == "prim::RaiseException" for inner in block.nodes):
                    changed |= _assume_after(graph, node, condition, not outcome)
        return changed


def _assume_after(graph: Graph, node: Node, condition: Value, outcome: bool) -> bool:
    """Use that a condition has had this outcome in all that follows a node."""
    changed = _assume(graph, condition, outcome, _uses_after(condition, node))
    comparison = producer_of(condition, "aten::eq", "aten::ne")
    if comparison is None or (comparison.op == "aten::eq") is not outcome or comparison.overload != "int":
        return changed
    for value, other in (comparison.inputs, comparison.inputs[::-1]):
        if other.is_constant and not value.is_constant:
            for user, index in _uses_after(value, node):
                user.replace_input(index, other)
                changed = True
    return changed


def _assume(graph: Graph, condition: Value, outcome: bool, uses: list[tuple[Node, int]]) -> bool:
    if not uses:
        return False
    known = graph.constant(outcome, name=condition.name)
    for user, index in uses:
        user.replace_input(index, known)
    return True


def _uses_after(value: Value, node: Node) -> list[tuple[Node, int]]:
    """Uses by nodes that run only after ``node`` in its block, and by what is nested in them."""
    block = node.block
    assert block is not None
    found = []
    for user, index in value.uses:
        ancestor = _ancestor_in(user, block)
        if ancestor is not None and node.is_before(ancestor):
            found.append((user, index))
    return found


def _ancestor_in(node: Node, block: Block) -> Node | None:
    """The node of a block that is this node or holds it."""
    current: Node | None = node
    while current is not None and current.block is not block:
        current = current.block.node if current.block is not None else None
    return current


def _is_in(node: Node, block: Block) -> bool:
    return _ancestor_in(node, block) is not None
