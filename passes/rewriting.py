"""What rewrites have in common: asking about constants and uses, and putting a node in another's place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.schemas import schema_of
from mobopt.ir.types import TENSOR, Type
from mobopt.ops.effects import reads_metadata


def argument(node: Node, name: str) -> Value:
    """The input that the operator's schema calls ``name``."""
    names = [item.name for item in schema_of(node.qualified_op).arguments]
    return node.inputs[names.index(name)]


def constants(values: Sequence[Value]) -> list[Any] | None:
    """The constants that these values are, or None if one of them is not constant."""
    return [value.constant for value in values] if all(value.is_constant for value in values) else None


def is_constant_tensor(value: Value) -> bool:
    """Whether a value is a tensor that is known."""
    return value.is_constant and isinstance(value.constant, torch.Tensor)


def only_user(value: Value) -> Node | None:
    """The one node that reads a value's elements, once; None if they are read more often, or returned."""
    readers = [node for node, _ in value.uses if not reads_metadata(node)]
    return readers[0] if len(readers) == 1 and readers[0].op != "prim::Return" else None


def producer_of(value: Value, *ops: str) -> Node | None:
    """The node that makes a value, if it is one of these operators."""
    node = value.producer
    return node if node is not None and node.op in ops else None


def replace_node(
    graph: Graph,
    node: Node,
    op: str,
    inputs: Sequence[Value],
    *,
    overload: str = "",
    types: Sequence[Type] = (TENSOR,),
) -> Node:
    """Put a new node in the place of another, whose readers read the new one's outputs."""
    names = [value.name for value in node.outputs]
    new = graph.create(op, inputs, types, overload=overload, names=names, origin=node.origin).insert_before(node)
    for old, value in zip(node.outputs, new.outputs, strict=True):
        old.replace_all_uses_with(value)
    node.destroy()
    return new


def insert_node(
    graph: Graph,
    anchor: Node,
    op: str,
    inputs: Sequence[Value],
    *,
    overload: str = "",
    type: Type = TENSOR,
    name: str = "",
) -> Value:
    """Put a new node with one output before another, which also gives it its origin."""
    node = graph.create(op, inputs, [type], overload=overload, names=[name], origin=anchor.origin)
    return node.insert_before(anchor).output


def bypass_node(node: Node, value: Value) -> None:
    """Remove a node with one output; its readers read ``value`` instead."""
    node.output.replace_all_uses_with(value)
    node.destroy()


def tensor_key(tensor: torch.Tensor | None) -> tuple[Any, ...] | None:
    """Equal for two tensors that are the same memory seen in the same way."""
    if tensor is None:
        return None
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
