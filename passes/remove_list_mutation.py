"""Lists that are built step by step become lists that are built at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mobopt.ir import Block, Graph, Node, Value
from mobopt.ops.effects import schema_of_node
from mobopt.passes.manager import GraphPass
from mobopt.passes.note_kinds import BUILT_AT_ONCE
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import producer_of


class RemoveListMutation(GraphPass):
    """Follow what happens to a list as long as all of it is known.

    Given:
        %found : Tensor[] = prim::ListConstruct(%a)
        %1 : Tensor[] = aten::append(%found, %b)
        %last : Tensor = aten::__getitem__(%found, %minus_one)
        %c : Tensor = aten::relu(%last)
        %x : Tensor = aten::cat(%found, %one)
        %2 : Tensor[] = aten::append(%found, %c)
        %y : Tensor = aten::cat(%found, %one)
    Result:
        %c : Tensor = aten::relu(%b)
        %found : Tensor[] = prim::ListConstruct(%a, %b)
        %x : Tensor = aten::cat(%found, %one)
        %found.1 : Tensor[] = prim::ListConstruct(%a, %b, %c)
        %y : Tensor = aten::cat(%found.1, %one)

    A script fills lists so, and whoever reads the list wants to know what is in it; what looks at it between two
    changes gets a list of its own. PyTorch's pass of this name (``torch/csrc/jit/passes/remove_mutation.cpp``) does so
    for ``append`` and items that are set.
    """

    name = "remove_list_mutation"

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Follow every list that is made here."""
        changed = False
        for node in [node for node in graph.walk() if node.op == "prim::ListConstruct"]:
            changed |= _follow(graph, node, notes)
        return changed


def _follow(graph: Graph, made: Node, notes: NoteBook) -> bool:
    """Carry out what is done to a list until something happens that is not known; whether the list changed."""
    block, value = made.block, made.output
    if block is None or not any(user.op in _CHANGES for user, _ in value.uses):
        return False
    renamed = _use_one_name(value)
    items = list(made.inputs)
    users = _users_in_order(value, block)
    reads: list[tuple[Node, list[Value]]] = []
    known = 0  # users up to the last that was carried out
    for index, user in enumerate(users):
        if user.block is block and _carry_out(user, value, items):
            known = index + 1
        elif user.block is block and _only_reads(user, value):
            reads.append((user, list(items)))
        else:
            break
    if not known:
        return renamed
    readers = {user for user, _ in reads}
    for reader, held in reads:
        if users.index(reader) < known:
            _replace(value, reader, _list_before(graph, reader, made, held))
    for user in users[:known]:
        if user not in readers:
            user.destroy()
    if value.uses:
        value.replace_all_uses_with(_list_before(graph, users[known], made, items))
    notes.add(BUILT_AT_ONCE, made, items=len(items))
    made.destroy()
    return True


def _list_before(graph: Graph, reader: Node, made: Node, items: Sequence[Value]) -> Value:
    """The list with other items, made where it is read."""
    value = made.output
    whole = graph.create("prim::ListConstruct", items, [value.type], names=[value.name], origin=made.origin)
    return whole.insert_before(reader).output


def _replace(value: Value, reader: Node, other: Value) -> None:
    for index, item in enumerate(reader.inputs):
        if item is value:
            reader.replace_input(index, other)


def _only_reads(node: Node, value: Value) -> bool:
    """Whether a node looks at the list, and neither changes nor keeps it, so that an equal one will do."""
    schema = schema_of_node(node)
    if schema is None or schema.is_variadic or schema.is_mutating or node.blocks:
        return False
    taken = [argument for argument, item in zip(schema.arguments, node.inputs, strict=False) if item is value]
    return len(taken) == node.inputs.count(value) and not any(argument.aliases for argument in taken)


def _use_one_name(value: Value) -> bool:
    """Operators that give the list back give it under its first name."""
    changed = False
    for user, index in value.uses:
        if index == 0 and user.op in _GIVE_BACK and user.outputs and user.output.uses:
            user.output.replace_all_uses_with(value)
            _use_one_name(value)
            changed = True
    return changed


def _carry_out(node: Node, value: Value, items: list[Value]) -> bool:
    """Do to the items what a node does to the list, and give its result; false if that is not known."""
    step = _STEPS.get(node.op)
    return step is not None and node.inputs[0] is value and node.inputs.count(value) == 1 and step(node, items)


def _users_in_order(value: Value, block: Block) -> list[Node]:
    """Nodes of the block that use the value, themselves or in a block of theirs; the block's own returns come last."""
    users = {_ancestor(user, block) for user, _ in value.uses}
    return [node for node in (*block.nodes, block.returns) if node in users]


def _ancestor(node: Node, block: Block) -> Node:
    while node.block is not block and node is not block.returns:
        owner = node.block
        assert owner is not None and owner.node is not None
        node = owner.node
    return node


def _append(node: Node, items: list[Value]) -> bool:
    items.append(node.inputs[1])
    return True


def _extend(node: Node, items: list[Value]) -> bool:
    other = producer_of(node.inputs[1], "prim::ListConstruct")
    if other is None or len(other.output.uses) != 1:
        return False
    items.extend(other.inputs)
    return True


def _insert(node: Node, items: list[Value]) -> bool:
    if not node.inputs[1].is_constant:
        return False
    items.insert(node.inputs[1].constant, node.inputs[2])
    return True


def _set_item(node: Node, items: list[Value]) -> bool:
    index = _index(node, items)
    if index is None:
        return False
    items[index] = node.inputs[2]
    return True


def _pop(node: Node, items: list[Value]) -> bool:
    index = _index(node, items)
    if index is None:
        return False
    node.output.replace_all_uses_with(items.pop(index))
    return True


def _get_item(node: Node, items: list[Value]) -> bool:
    index = _index(node, items)
    if index is None:
        return False
    node.output.replace_all_uses_with(items[index])
    return True


def _index(node: Node, items: list[Value]) -> int | None:
    """The item that a node names, if it is known and there."""
    value = node.inputs[1]
    if not value.is_constant or not -len(items) <= value.constant < len(items):
        return None
    index: int = value.constant
    return index


_GIVE_BACK = frozenset({"aten::append", "aten::add_", "aten::_set_item"})
"""Operators whose result is the list that they change."""
_STEPS: dict[str, Callable[[Node, list[Value]], bool]] = {
    "aten::append": _append,
    "aten::extend": _extend,
    "aten::add_": _extend,
    "aten::insert": _insert,
    "aten::_set_item": _set_item,
    "aten::pop": _pop,
    "aten::__getitem__": _get_item,
}
_CHANGES = frozenset(_STEPS) - {"aten::__getitem__"}
