"""Every tensor that a method returns is copied out of Metal's temporary memory."""

from __future__ import annotations

from mobopt.ir import Graph, Node, Value
from mobopt.ir.types import TENSOR
from mobopt.ops.effects import holds_tensors
from mobopt.ops.records import Trait, has_trait
from mobopt.passes.manager import GraphPass
from mobopt.passes.note_kinds import COPIED_TO_HOST, RETURNED_WITHOUT_COPIES
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import insert_node

_COPY = "metal::copy_to_host"


class CopyToHost(GraphPass):
    """Insert ``metal::copy_to_host`` before each tensor that is returned, also in tuples, lists and dictionaries.

    Given:
        %y : Tensor = metal_prepack::conv2d_run(%x, %c)
        return (%y)
    Result:
        %y : Tensor = metal_prepack::conv2d_run(%x, %c)
        %y.host : Tensor = metal::copy_to_host(%y)
        return (%y.host)

    PyTorch's pass did this in 1.7 and 1.8 (for tensors that are returned by themselves); from 1.13 on it does not, for
    ``.cpu()`` copies. A tensor that the caller gave, a constant or an attribute is returned as it is.
    """

    name = "copy_to_host"

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Insert copies before the end of a method."""
        copier = _Copier(graph, notes)
        returns = graph.block.returns
        for index, value in enumerate(returns.inputs):
            returns.replace_input(index, copier.copied(value))
        for node in reversed(copier.rebuilt):
            node.destroy()
        return copier.changed


class _Copier:
    """Writes the copies of one graph, one for each tensor."""

    def __init__(self, graph: Graph, notes: NoteBook) -> None:
        self.graph = graph
        self.notes = notes
        self.changed = False
        self.known: dict[Value, Value] = {}
        self.rebuilt: list[Node] = []
        """Containers that are made anew, inner ones first."""

    def copied(self, value: Value) -> Value:
        """What is returned instead of a value."""
        node = value.producer
        if node is None or value.is_constant or not holds_tensors(value.type) or node.op in (_COPY, "prim::GetAttr"):
            return value
        if value.type == TENSOR:
            return self.copied_tensor(value)
        if has_trait(node.op, Trait.CONSTRUCTS) and node.block is self.graph.block and len(value.uses) == 1:
            return self.copied_container(node)
        self.notes.add(RETURNED_WITHOUT_COPIES, value, operator=node.op)
        return value

    def copied_tensor(self, value: Value) -> Value:
        """A tensor's copy, made once."""
        if value not in self.known:
            end = self.graph.block.returns
            self.known[value] = insert_node(self.graph, end, _COPY, [value], name=f"{value.name}.host")
            self.notes.add(COPIED_TO_HOST, value)
            self.changed = True
        return self.known[value]

    def copied_container(self, node: Node) -> Value:
        """A container that is made to be returned, of copies; the same one where nothing in it is copied."""
        items = [self.copied(item) for item in node.inputs]
        if items == list(node.inputs):
            return node.output
        self.rebuilt.append(node)
        new = self.graph.create(node.op, items, [node.output.type], names=[node.output.name], origin=node.origin)
        return new.insert_before(self.graph.block.returns).output
