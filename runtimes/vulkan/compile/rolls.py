"""Finds rolls that were written as slices which change places, as ``torch.onnx`` writes ``torch.roll``."""

from __future__ import annotations

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import destroy_unread, replace_call
from mobopt.ops.records import Trait, has_trait

_SLICE = "aten::slice.Tensor"


def find_rolls(graph: Graph) -> None:
    """Put a roll in the place of what joins the end of a tensor and its beginning.

    Given:
        %e : Float(2, 5, 8) = aten::slice.Tensor(%x, 1, 2, 9223372036854775807, 1)
        %b : Float(2, 2, 8) = aten::slice.Tensor(%x, 1, 0, 2, 1)
        %y : Float(2, 7, 8) = aten::cat([%e, %b], 1)
    Result:
        %y : Float(2, 7, 8) = aten::roll(%x, [-2], [1])
    """
    for node in list(graph.block.nodes):
        parts: list[Value] = list(node["tensors"]) if has_trait(node.qualified_op, Trait.CONCATENATION) else []
        ends = [part.producer for part in parts]
        found = _rolled(node, *ends) if len(ends) == 2 else None
        if found is None:
            continue
        source, dim, shift = found
        replace_call(node, "aten::roll", (source, [shift], [dim]))
        for end in ends:
            destroy_unread(end)


def _rolled(node: Node, end: Node | None, begin: Node | None) -> tuple[Value, int, int] | None:
    """The tensor, the dimension and by how much it is rolled, if its end and its beginning are joined."""
    if end is None or begin is None or not end.qualified_op == begin.qualified_op == _SLICE:
        return None
    source: Value = end.args[0]
    if begin.args[0] is not source or node.output.type != source.type:
        return None
    dim = node["dim"] % source.rank
    if any(part["dim"] % source.rank != dim or part["step"] != 1 for part in (end, begin)):
        return None
    at, size = end["start"], source.sizes[dim]
    if not isinstance(at, int) or begin["end"] != at or begin["start"] not in (None, 0) or size == 0:
        return None
    first = begin.output.sizes[dim]
    return (source, dim, -at) if first == at % size and end.output.sizes[dim] == size - first else None
