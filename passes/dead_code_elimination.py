"""What nobody can see is removed."""

from __future__ import annotations

from mobopt.ir import Block, Graph, Node, Value
from mobopt.ops.aliases import Aliases
from mobopt.ops.effects import has_side_effects, written_inputs
from mobopt.passes.constant_propagation import remove_if_output
from mobopt.passes.manager import GraphPass
from mobopt.passes.notes import NoteBook


class DeadCodeElimination(GraphPass):
    """Remove nodes whose outputs nobody reads; what raises, prints or assigns attributes stays.

    Given:
        %n : int = aten::dim(%x)
        %y : Tensor = aten::relu(%x)
        return (%y)
    Result:
        %y : Tensor = aten::relu(%x)
        return (%y)

    A write is dead too if nothing that is read may be the same memory (a list that is filled and never looked at).
    """

    name = "dead_code_elimination"

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Find what is needed, remove the rest."""
        return _sweep(graph.block, _Needed(graph))


class _Needed:
    """Nodes and values that a graph's results and effects need."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: set[Node] = set()
        self.values: set[Value] = set()
        aliases = Aliases(graph)
        waiting: list[Node] = []
        for node in graph.walk():
            written = written_inputs(node)
            if any(aliases.is_external(value) for value in written) or (not node.blocks and has_side_effects(node)):
                self._need([node])
            elif written:
                waiting.append(node)
        self._need(list(graph.outputs))
        while found := [node for node in waiting if self._is_seen(node, aliases)]:
            self._need(list(found))
            waiting = [node for node in waiting if node not in self.nodes]

    def _is_seen(self, node: Node, aliases: Aliases) -> bool:
        """Whether something needed may read what a node writes."""
        return any(member in self.values for value in written_inputs(node) for member in aliases.members(value))

    def _need(self, items: list[Node | Value]) -> None:
        """Mark nodes and values, and everything that they need in turn."""
        while items:
            item = items.pop()
            if isinstance(item, Node) and item not in self.nodes:
                self.nodes.add(item)
                items += _needs_of_node(item)
            elif isinstance(item, Value) and item not in self.values:
                self.values.add(item)
                items += _needs_of_value(item)


def _needs_of_node(node: Node) -> list[Node | Value]:
    """What a node reads, or what decides about its blocks, and the node whose block it stands in."""
    needs: list[Node | Value] = list(node.inputs)
    if node.op == "prim::If":
        needs = [node.inputs[0]]
    elif node.op == "prim::Loop":
        needs = [node.inputs[0], node.inputs[1], node.blocks[0].outputs[0]]
    holder = node.block.node if node.block is not None else None
    return needs if holder is None else [*needs, holder]


def _needs_of_value(value: Value) -> list[Node | Value]:
    """What makes a value; for one that crosses a block's border, the same place on the other side."""
    node = value.producer
    if node is None:
        holder = value.owner.node if value.owner is not None else None
        if value.owner is None or holder is None:
            return []
        index = value.owner.parameters.index(value) - 1
        return [holder, holder.outputs[index]] if index >= 0 else [holder]
    if not node.blocks:
        return [node]
    index = node.outputs.index(value)
    if node.op == "prim::If":
        return [node, *(block.outputs[index] for block in node.blocks)]
    body = node.blocks[0]
    return [node, node.inputs[index + 2], body.parameters[index + 1], body.outputs[index + 1]]


def _sweep(block: Block, needed: _Needed) -> bool:
    """Remove what is not needed, last first; readers of a dead value are dead and gone by then."""
    changed = False
    for node in reversed(block.nodes):
        if node not in needed.nodes:
            node.destroy()
            changed = True
            continue
        dead = [index for index, value in enumerate(node.outputs) if value not in needed.values] if node.blocks else []
        for index in reversed(dead):
            _drop_output(node, index)
        for nested in node.blocks:
            changed |= _sweep(nested, needed)
        if node.op == "prim::Loop":
            for index in reversed(dead):
                del node.blocks[0].parameters[index + 1]
        changed |= bool(dead)
    return changed


def _drop_output(node: Node, index: int) -> None:
    """Make a branch or a loop return one value less."""
    if node.op == "prim::If":
        remove_if_output(node, index)
        return
    body = node.blocks[0]
    body.returns.set_inputs([value for at, value in enumerate(body.outputs) if at != index + 1])
    node.remove_output(index)
    node.set_inputs([value for at, value in enumerate(node.inputs) if at != index + 2])
