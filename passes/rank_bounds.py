"""How few and how many dimensions a tensor may have, by the operator that made it."""

from __future__ import annotations

from mobopt.ir import Graph, Node, Value
from mobopt.ir.types import TENSOR
from mobopt.ops.records import Like, record_of
from mobopt.passes.note_kinds import RANK_CHECK_KNOWN
from mobopt.passes.notes import NoteBook
from mobopt.passes.ranks import known_rank
from mobopt.passes.rewriting import producer_of

Bounds = tuple[int, int | None]
"""Lowest and highest rank; None where there is no highest."""

_COMPARISONS = {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge", "eq": "eq", "ne": "ne"}
"""Each comparison, and what it is with its sides swapped."""


def rank_bounds(value: Value, known: dict[Value, Bounds] | None = None) -> Bounds:
    """The fewest and the most dimensions that a tensor may have.

    Args:
        value: the tensor.
        known: what is found on the way, since ways join again.
    """
    known = {} if known is None else known
    if value not in known:
        known[value] = _bounds(value, known)
    return known[value]


def _bounds(value: Value, known: dict[Value, Bounds]) -> Bounds:
    rank = known_rank(value)
    if rank is not None:
        return rank, rank
    node = value.producer
    if node is None or value is not node.outputs[0]:
        return 0, None
    record = record_of(node.qualified_op)
    if record.spatial is not None:
        return record.spatial + 1, record.spatial + 2
    if node.op == "aten::batch_norm":
        low, high = rank_bounds(node.inputs[0], known)
        return max(low, 2), 5 if high is None else min(high, 5)
    if record.rank == Like.FIRST:
        return rank_bounds(node.inputs[0], known)
    if record.rank != Like.OPERANDS:
        return 0, None
    operands = [rank_bounds(item, known) for item in node.inputs if item.type == TENSOR]
    highs = [high for _, high in operands]
    return max(low for low, _ in operands), None if None in highs else max(high for high in highs if high is not None)


def fold_rank_checks(graph: Graph, notes: NoteBook) -> bool:
    """Replace each comparison of a tensor's number of dimensions by its outcome, where the bounds tell it.

    Scripted models ask such questions often: ``adaptive_avg_pool2d`` checks that its input has more than two.
    """
    changed = False
    known: dict[Value, Bounds] = {}
    for node in list(graph.walk()):
        outcome = _outcome(node, known)
        if outcome is not None:
            notes.add(RANK_CHECK_KNOWN, node, outcome=outcome)
            node.output.replace_all_uses_with(graph.constant(outcome, name=node.output.name))
            node.destroy()
            changed = True
    return changed


def _outcome(node: Node, known: dict[Value, Bounds]) -> bool | None:
    comparison = node.op.removeprefix("aten::")
    if comparison not in _COMPARISONS or node.overload != "int":
        return None
    left, right = node.inputs
    if left.is_constant:
        comparison, left, right = _COMPARISONS[comparison], right, left
    dim = producer_of(left, "aten::dim")
    if dim is None or not right.is_constant:
        return None
    return _compared(comparison, rank_bounds(dim.inputs[0], known), right.constant)


def _compared(comparison: str, bounds: Bounds, number: int) -> bool | None:
    """What a comparison with a number gives for all ranks within bounds; None if not the same for all."""
    low, high = bounds
    above, below = low > number, high is not None and high < number
    if comparison in ("eq", "ne"):
        if above or below:
            return comparison == "ne"
        return (comparison == "eq") if low == high == number else None
    if comparison in ("gt", "le"):
        at_most = high is not None and high <= number
        return (comparison == "gt") if above else (comparison == "le") if at_most else None
    at_least = low >= number
    return (comparison == "ge") if at_least else (comparison == "lt") if below else None
