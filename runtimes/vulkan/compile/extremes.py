"""Finds the least and the greatest of one tensor, by which layers round their inputs in each call."""

from __future__ import annotations

import math

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import destroy_unread, made_only_for, replace_call
from mobopt.ir.schemas import argument_names

_LEAST, _GREATEST = frozenset({"aten::min", "aten::amin"}), frozenset({"aten::max", "aten::amax"})
_Walk = tuple[Value, int | None, bool]
"""A tensor, the dimension over which it is walked (None: all), and whether the result has that still."""


def join_extremes(graph: Graph) -> None:
    """Let one node find the least and the greatest of a tensor of floats.

    Given:
        %low : Float() = aten::min(%x)
        %high : Float() = aten::max(%x)
    Result:
        %low : Float(), %high : Float() = aten::aminmax(%x, None, False)

    And one find the greatest magnitude, which is what a norm of that order is.

    Given:
        %m : Float(7, 64) = aten::abs(%x)
        %y : Float(7, 1) = aten::amax(%m, [-1], True)
    Result:
        %y : Float(7, 1) = aten::linalg_vector_norm(%x, inf, [-1], True, None)
    """
    least: dict[_Walk, Node] = {}
    greatest: dict[_Walk, Node] = {}
    for node in list(graph.block.nodes):
        if _read_as_it_is(node):
            continue
        own, others = (least, greatest) if node.qualified_op in _LEAST else (greatest, least)
        walk = _walk_of(node) if node.qualified_op in _LEAST | _GREATEST else None
        if walk is None:
            continue
        own.setdefault(walk, node)
        if own[walk] is node and walk in others:
            _join(walk, least[walk], greatest[walk])


def _read_as_it_is(node: Node) -> bool:
    """Let a node that finds the greatest magnitude read the tensor itself; False if it is none."""
    if node.qualified_op != "aten::amax" or not node.output.dtype.is_floating_point:
        return False
    maker = made_only_for(node.args[0], node)
    if maker is None or maker.qualified_op != "aten::abs" or maker.args[0].dtype != node.output.dtype:
        return False
    replace_call(
        node, "aten::linalg_vector_norm", (maker.args[0], math.inf, node["dim"] or None, node["keepdim"], None)
    )
    destroy_unread(maker)
    return True


def _walk_of(node: Node) -> _Walk | None:
    """What a node walks, if one operator can find both for it."""
    x: Value = node.args[0]
    if not x.dtype.is_floating_point:
        return None
    if "dim" not in argument_names(node.qualified_op):
        return x, None, False
    dims = sorted({dim % x.rank for dim in node["dim"]}) if x.rank else []
    if not dims or len(dims) == x.rank:
        return x, None, node["keepdim"]
    return (x, dims[0], node["keepdim"]) if len(dims) == 1 else None


def _join(walk: _Walk, least: Node, greatest: Node) -> None:
    """Put one node in the place of the first of two."""
    first = least if least.block is not None and least.block.nodes.is_before(least, greatest) else greatest
    outputs = [Value("", node.output.type) for node in (least, greatest)]
    both = Node.call("aten::aminmax", walk, outputs, least.origin | greatest.origin).insert_before(first)
    for node, output in zip((least, greatest), both.outputs, strict=True):
        node.output.replace_all_uses_with(output)
        destroy_unread(node)
