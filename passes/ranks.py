"""How many dimensions a tensor has, where the graph says so."""

from __future__ import annotations

from collections.abc import Sequence

from mobopt.ir import Node, Value
from mobopt.ir.types import TENSOR
from mobopt.ops.records import Like, record_of
from mobopt.passes.rewriting import argument, constants, is_constant_tensor


def known_rank(value: Value, seen: dict[Value, Value] | None = None) -> int | None:
    """Number of dimensions of a tensor, or None if only its input tells; ``seen`` as for :func:`rank_root`."""
    root = rank_root(value, seen)
    if is_constant_tensor(root):
        rank: int = root.constant.dim()
        return rank
    node = root.producer
    if node is None or root is not node.outputs[0]:
        return None
    rule = record_of(node.qualified_op).rank
    if isinstance(rule, str):
        return _list_length(argument(node, rule))
    if node.op == "aten::flatten" and constants(node.inputs[1:]) == [1, -1]:
        return 2  # a tensor of fewer dimensions has no dimension 1, so it is refused there
    return rule if isinstance(rule, int) else None


def rank_root(value: Value, seen: dict[Value, Value] | None = None) -> Value:
    """The first value on the way back that surely has as many dimensions; the value itself if there is none.

    ``seen`` holds what is found on the way, since ways join again (branches that are concatenated).
    """
    seen = {} if seen is None else seen
    start = value
    while value not in seen:
        node = value.producer
        if node is None or value is not node.outputs[0]:
            break
        operands = _operands(node)
        if len(operands) == 1:
            value = operands[0]
            continue
        roots = {rank_root(operand, seen) for operand in operands}
        if len(roots) != 1:
            break
        value = roots.pop()
    seen[start] = seen.get(value, value)
    return seen[start]


def batched_rank(value: Value) -> int | None:
    """Number of dimensions of what a convolution gives for a batch; None if the value is not made so.

    torch takes it for certain (``torch/csrc/jit/passes/peephole.cpp``), although convolutions take a single sample too.
    """
    while value.producer is not None and value is value.producer.outputs[0]:
        node = value.producer
        record = record_of(node.qualified_op)
        if record.channels == Like.WEIGHT and record.spatial is not None:
            return record.spatial + 2
        operands = _operands(node)
        if record.rank not in (Like.FIRST, Like.ROWS) or not operands:
            return None
        value = operands[0]
    return None


def _operands(node: Node) -> Sequence[Value]:
    """The values of whose ranks the first result has the largest, so that equal ranks give the same rank."""
    match record_of(node.qualified_op).rank:
        case Like.FIRST:
            return node.inputs[:1]
        case Like.ROWS:
            weight = argument(node, "weight")
            return () if is_constant_tensor(weight) and weight.constant.dim() < 2 else node.inputs[:1]
        case Like.OPERANDS:
            return [value for value in node.inputs if value.type == TENSOR]
        case Like.PARTS:
            packed = node.inputs[0].producer
            return packed.inputs if packed is not None and packed.op == "prim::ListConstruct" else ()
    return ()


def _list_length(value: Value) -> int | None:
    if value.is_constant and isinstance(value.constant, list):
        return len(value.constant)
    producer = value.producer
    return len(producer.inputs) if producer is not None and producer.op == "prim::ListConstruct" else None
