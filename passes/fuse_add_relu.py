"""An addition and the relu after it are one operator on the CPU."""

from __future__ import annotations

import torch

from mobopt.ir import Graph, Node, Value, describe
from mobopt.ops.aliases import Aliases
from mobopt.ops.effects import schema_of_node
from mobopt.passes.manager import After, GraphPass
from mobopt.passes.note_kinds import FUSED_WITH, NOT_FUSED_WITH
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import is_constant_tensor, only_user

_FUSED = {
    ("aten::add", "aten::relu"): "aten::_add_relu",
    ("aten::add", "aten::relu_"): "aten::_add_relu",
    ("aten::add_", "aten::relu_"): "aten::_add_relu_",
}
_HALF = (torch.float16, torch.bfloat16)
_HALF_NUMBERS = (5, 15)
"""The same as TorchScript's operators name them."""


class FuseAddRelu(GraphPass):
    """Fuse relu into the addition whose only reader it is.

    Given:
        %a : Tensor = aten::add(%x, %y, %one)
        %b : Tensor = aten::relu(%a)
    Result:
        %b : Tensor = aten::_add_relu(%x, %y, %one)

    ``relu`` after ``add_`` is left, as in PyTorch's own pass: its result must not share the sum's memory. So are both
    where the sum may be seen between the two, and in models that compute in half precision, which PyTorch's kernel of
    the fused operator does not take.
    """

    name = "fuse_add_relu"
    after = (After("remove_dropout", "dropout may stand between the two"),)

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Fuse each pair."""
        pairs = [(node, relu) for node in graph.walk() if (relu := _relu_after(node)) is not None]
        if not pairs:
            return False
        aliases, half = Aliases(graph), _computes_in_half(graph)
        changed = False
        for addition, relu in pairs:
            reason = half or _refusal(addition, relu, aliases)
            if reason:
                notes.add(NOT_FUSED_WITH, addition, other=relu, reason=reason)
                continue
            notes.add(FUSED_WITH, addition, other=relu)
            addition.op = _FUSED[addition.op, relu.op]
            relu.output.replace_all_uses_with(addition.output)
            relu.destroy()
            changed = True
        return changed


def _relu_after(node: Node) -> Node | None:
    """The relu that reads an addition."""
    if node.op not in ("aten::add", "aten::add_") or node.overload != "Tensor":
        return None
    return next((user for user, _ in node.output.uses if user.op in ("aten::relu", "aten::relu_")), None)


def _refusal(addition: Node, relu: Node, aliases: Aliases) -> str:
    """Why the two can't be fused; empty if they can."""
    if only_user(addition.output) is not relu:
        return "the sum is read elsewhere too"
    if (addition.op, relu.op) not in _FUSED:
        return "the one is in place and the other is not"
    block = addition.block
    if block is None or block is not relu.block:
        return "they do not run equally often"
    if addition.op == "aten::add_":
        between = [node for node in block.nodes if addition.is_before(node) and node.is_before(relu)]
        seen = set(aliases.members(addition.output))
        reader = next((node for node in between if _reads(node, seen)), None)
        if reader is not None:
            return f"{describe(reader)} may read the sum before"
    return ""


def _reads(node: Node, values: set[Value]) -> bool:
    """Whether a node, or one nested in it, reads one of these values."""
    nested = (inner for block in node.blocks for inner in [*block.nodes, block.returns])
    return not values.isdisjoint(node.inputs) or any(_reads(inner, values) for inner in nested)


def _computes_in_half(graph: Graph) -> str:
    """What shows that tensors may be in half precision; empty if nothing does."""
    for node in graph.walk():
        for value in node.inputs:
            if is_constant_tensor(value) and value.constant.dtype in _HALF:
                return f"%{value.name} is in half precision, which the fused operator does not take"
        schema = schema_of_node(node)
        names = [] if schema is None else [argument.name for argument in schema.arguments]
        dtype = node.inputs[names.index("dtype")] if "dtype" in names else None
        if dtype is not None and dtype.is_constant and dtype.constant in _HALF_NUMBERS:
            return f"{describe(node)} makes half precision, which the fused operator does not take"
    return ""
