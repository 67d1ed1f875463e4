"""Everything lies on the CPU, where a plain file is run first: transfers between devices are taken out."""

from __future__ import annotations

import torch

from mobopt.ir import Graph, Node
from mobopt.ops.aliases import Aliases
from mobopt.ops.records import Trait, has_trait
from mobopt.passes.manager import GraphPass
from mobopt.passes.note_kinds import DEVICE_IS_CPU, TRANSFER_IS_COPY, TRANSFER_REMOVED
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import bypass_node, insert_node

_CPU = torch.device("cpu")
_PLAIN_DEVICES = ("cpu", "meta")


class RemoveTransfers(GraphPass):
    """Remove what moves tensors between devices, and name the CPU where another device was named.

    Given:
        %x.vulkan : Tensor = aten::to(%x, "vulkan", None, False, False)
        %y : Tensor = aten::relu(%x.vulkan)
        %y.cpu : Tensor = aten::to(%y, "cpu", None, False, False)
    Result:
        %y : Tensor = aten::relu(%x)

    A transfer whose memory is written to in place becomes a copy, as the transfer was one.
    """

    name = "remove_transfers"

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Remove in one method."""
        transfers = [node for node in graph.walk() if _is_transfer(node)]
        aliases = Aliases(graph) if transfers else None
        for node in transfers:
            source = node.inputs[0]
            if aliases is not None and aliases.writers(node.output):
                notes.add(TRANSFER_IS_COPY, node)
                source = insert_node(graph, node, "aten::clone", [source, graph.constant(None)], name=node.output.name)
            else:
                notes.add(TRANSFER_REMOVED, node)
            bypass_node(node, source)
        return _name_the_cpu(graph, notes) or bool(transfers)


def _is_transfer(node: Node) -> bool:
    if has_trait(node.qualified_op, Trait.TRANSFER):
        return True
    if node.qualified_op != "aten::to.prim_Device":
        return False
    _, device, dtype, _, copy = node.inputs
    known = device.is_constant and dtype.is_constant and dtype.constant is None
    return known and device.constant is not None and copy.is_constant and not copy.constant


def _name_the_cpu(graph: Graph, notes: NoteBook) -> bool:
    """Have what makes tensors make them on the CPU."""
    changed = False
    for node in graph.walk():
        for index, value in enumerate(node.inputs):
            device = value.constant if value.is_constant else None
            if isinstance(device, torch.device) and device.type not in _PLAIN_DEVICES:
                notes.add(DEVICE_IS_CPU, node, device=str(device))
                node.replace_input(index, graph.constant(_CPU))
                changed = True
    return changed
