"""The same computation on the same values is done once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from mobopt.ir import Block, Graph, Node, Value
from mobopt.ops.aliases import Aliases
from mobopt.ops.effects import is_pure
from mobopt.passes.manager import GraphPass
from mobopt.passes.note_kinds import SAME_AS
from mobopt.passes.notes import NoteBook

_MOST_BYTES = 2**16
"""Of tensors that are compared: masks, places, tables of angles, which each layer of a model may have for itself."""


class CommonSubexpressionElimination(GraphPass):
    """Remove pure nodes that repeat an earlier one, of the same block or of a block around it.

    Two tensors that are both returned, or kept in the model's state, stay two.

    Given:
        %a : Tensor = aten::relu(%x)
        %b : Tensor = aten::relu(%x)
        %c : Tensor = aten::add(%a, %b, %one)
    Result:
        %a : Tensor = aten::relu(%x)
        %c : Tensor = aten::add(%a, %a, %one)
    """

    name = "common_subexpression_elimination"

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Remove repetitions, outer blocks first."""
        assigned = {node.attributes.get("name") for node in graph.walk() if node.op == "prim::SetAttr"}
        return _rewrite_block(graph.block, {}, Aliases(graph), assigned, notes)


def _rewrite_block(
    block: Block, seen: dict[Hashable, Node], aliases: Aliases, assigned: set[Any], notes: NoteBook
) -> bool:
    changed = False
    for node in list(block.nodes):
        for nested in node.blocks:
            changed |= _rewrite_block(nested, dict(seen), aliases, assigned, notes)
        if not _is_repeatable(node, aliases, assigned):
            continue
        key = _key(node)
        first = seen.setdefault(key, node)
        if first is node or _are_told_apart(first, node, aliases):
            continue
        if node.op.startswith("aten::"):
            notes.add(SAME_AS, node, other=first.outputs[0])
        for old, new in zip(node.outputs, first.outputs, strict=True):
            old.replace_all_uses_with(new)
        node.destroy()
        changed = True
    return changed


def _are_told_apart(first: Node, second: Node, aliases: Aliases) -> bool:
    """Whether what both make outlives the call, so that a write to one must not be seen in the other."""
    return any(map(aliases.outlives, first.outputs)) and any(map(aliases.outlives, second.outputs))


def _is_repeatable(node: Node, aliases: Aliases, assigned: set[Any]) -> bool:
    if not node.outputs or node.op == "prim::Uninitialized":
        return False
    reads_fixed_attribute = node.op == "prim::GetAttr" and node.attributes.get("name") not in assigned
    if not (reads_fixed_attribute or is_pure(node)):
        return False
    return not any(aliases.writers(value) for value in (*node.inputs, *node.outputs))


def _key(node: Node) -> Hashable:
    inputs = tuple(map(_value_key, node.inputs))
    types = tuple(str(value.type) for value in node.outputs)
    return node.qualified_op, inputs, repr(sorted(node.attributes.items())), types


def _value_key(value: Value) -> Hashable:
    """Equal for the same value; constants are the same if they are equal, large tensors if they are identical."""
    if not value.is_constant:
        return id(value)
    known = value.constant
    if type(known) is torch.Tensor and known.numel() * known.element_size() <= _MOST_BYTES:
        return _contents(known)
    if isinstance(known, (int, float, str, torch.device, type(None))):
        return type(known).__name__, repr(known)
    plain = isinstance(known, (list, tuple)) and all(isinstance(item, (int, float, str)) for item in known)
    return (str(value.type), repr(known)) if plain else id(known)


def _contents(tensor: torch.Tensor) -> Hashable:
    """Equal for tensors of equal bits, types and layouts; identities where there are no plain bits."""
    if tensor.is_quantized or tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return id(tensor)
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    bits = dense.view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), bits
