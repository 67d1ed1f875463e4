"""An addition and the relu after it are one operator on the CPU."""

from __future__ import annotations

from mobopt.ir import Graph, Node
from mobopt.passes.manager import GraphPass, NoteBook, describe
from mobopt.passes.rewriting import only_user

_FUSED = {
    ("aten::add", "aten::relu"): "aten::_add_relu",
    ("aten::add", "aten::relu_"): "aten::_add_relu",
    ("aten::add_", "aten::relu_"): "aten::_add_relu_",
}


class FuseAddRelu(GraphPass):
    """Fuse relu into the addition whose only reader it is.

    Given:
        %a : Tensor = aten::add(%x, %y, %one)
        %b : Tensor = aten::relu(%a)
    Result:
        %b : Tensor = aten::_add_relu(%x, %y, %one)

    ``relu`` after ``add_`` is left, as in PyTorch's own pass: its result must not share the sum's memory.
    """

    name = "fuse_add_relu"

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Fuse each pair."""
        changed = False
        for node in graph.walk():
            if node.op in ("aten::add", "aten::add_") and node.overload == "Tensor" and node.block is not None:
                changed |= _fuse(node, notes)
        return changed


def _fuse(addition: Node, notes: NoteBook) -> bool:
    relus = [user for user, _ in addition.output.uses if user.op in ("aten::relu", "aten::relu_")]
    if not relus:
        return False
    relu = relus[0]
    fused = _FUSED.get((addition.op, relu.op))
    if only_user(addition.output) is not relu:
        notes.refused(addition, f"not fused with {describe(relu)}: the sum is read elsewhere too")
        return False
    if fused is None:
        notes.refused(addition, f"not fused with {describe(relu)}: the one is in place and the other is not")
        return False
    notes.done(addition, f"fused with {describe(relu)}")
    addition.op = fused
    relu.output.replace_all_uses_with(addition.output)
    relu.destroy()
    return True
