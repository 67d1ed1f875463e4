"""Finds indices that may count from the end, so that what reads them lets them, too.

ONNX's Gather takes such indices and torch's ``embedding`` and ``index_select`` don't, so they are made to count from
the front first; ``index`` takes them as they are.
"""

from __future__ import annotations

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import destroy_unread, replace_call


def read_from_end(graph: Graph) -> None:
    """Let an index choose rows itself, where embeddings were given what counts from the front.

    Given:
        %l : Bool(13) = aten::lt.Scalar(%i, 0)
        %s : Long(13) = aten::add.Scalar(%i, 97, 1)
        %f : Long(13) = aten::where.self(%l, %s, %i)
        %y : Float(13, 8) = aten::embedding(%w, %f, -1, False, False)
    Result:
        %y : Float(13, 8) = aten::index.Tensor(%w, [%i])

    ``w`` has 97 rows, and nothing makes it: what makes weights of few bits floats reads their rows alone.
    """
    for node in list(graph.block.nodes):
        chosen = _chosen(node)
        if chosen is None:
            continue
        source, dim, wrapped = chosen
        indices = _as_given(wrapped, source.sizes[dim])
        if indices is not None:
            replace_call(node, "aten::index.Tensor", (source, [*[None] * dim, indices]))
            destroy_unread(wrapped.producer)


def _chosen(node: Node) -> tuple[Value, int, Value] | None:
    """From what, along which dimension and by which indices a node chooses."""
    if node.qualified_op == "aten::embedding":
        source, dim, indices = node["weight"], 0, node["indices"]
    elif node.qualified_op == "aten::index_select" and node.args[0].rank:
        source, dim, indices = node.args[0], node["dim"] % node.args[0].rank, node["index"]
    else:
        return None
    return (source, dim, indices) if source.producer is None else None


def _as_given(indices: Value, size: int) -> Value | None:
    """What was made to count from the front of ``size`` elements, if that is all that was done."""
    where = indices.producer
    if where is None or where.qualified_op != "aten::where.self":
        return None
    condition, moved, given = where.args
    is_negative, total = condition.producer, moved.producer
    if is_negative is None or is_negative.qualified_op != "aten::lt.Scalar" or total is None:
        return None
    if total.qualified_op != "aten::add.Scalar" or is_negative.args[0] is not given or total.args[0] is not given:
        return None
    is_wrap = is_negative.args[1] == 0 and total.args[1] == size and total["alpha"] == 1
    return given if is_wrap and given.type == indices.type else None
