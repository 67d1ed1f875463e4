"""Which attributes of a Program its methods change, so that they are state and no constants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from mobopt.ir import Attribute, Graph, InsertionPoint, Origin, Program, Value
from mobopt.ops.aliases import SHARED_MEMORY, Aliases, Place, attribute_place, constant_place
from mobopt.ops.effects import written_inputs


def changed_attributes(program: Program) -> frozenset[str]:
    """Names of the attributes that some method assigns to or may write to in place, by whatever name it knows them."""
    changes = _Changes(program)
    return frozenset(name for name in program.attributes if attribute_place(name) in changes.places)


def telling_calls(program: Program) -> int:
    """How many calls of a method show what its state does: one without state; two if it is a single flag, which calls
    set to one constant; else three, for what the second leaves, the third reads."""
    changed = changed_attributes(program)
    if not changed:
        return 1
    return 2 if len(changed) == 1 and _is_flag(program, *changed) else 3


def _is_flag(program: Program, name: str) -> bool:
    """Whether methods only ever set an attribute to one number, or to None."""
    nodes = [node for graph in program.methods.values() for node in graph.walk()]
    given = [node.inputs[1] for node in nodes if node.op == "prim::SetAttr" and node.attributes["name"] == name]
    plain = all(value.is_constant and isinstance(value.constant, (bool, int, float, type(None))) for value in given)
    return plain and len({value.constant for value in given}) == 1


def settle_state(program: Program) -> None:
    """Make all that methods change attributes, and let nodes tell which attributes are views of one memory.

    Every Program goes through this as soon as it is made, for passes see graphs, and no tensors of attributes.
    """
    changes = _Changes(program)
    if changes.places:
        _lift_changed_constants(program, changes)
        _tell_shared_memory(program)


def _lift_changed_constants(program: Program, changes: _Changes) -> None:
    """Make attributes of the constants that methods may write to: what is written there outlives a call.

    A tensor that is no buffer becomes a constant where a model is traced, and torch keeps what is written to it.
    """
    names: dict[Place, str] = {}
    for graph in program.methods.values():
        for value in list(_constants(graph)):
            place = constant_place(value)
            if place in changes.places:
                if place not in names:
                    names[place] = _free_name(program, len(names))
                    is_tensor = isinstance(value.constant, torch.Tensor)
                    program.attributes[names[place]] = Attribute(value.type, value.constant, is_buffer=is_tensor)
                _read_attribute(graph, value, names[place])


def _tell_shared_memory(program: Program) -> None:
    owners: dict[str, str] = {}
    for group in _sharing_storage(program):
        names = [name for name in program.attributes if attribute_place(name) in group]
        owners.update((name, names[0]) for name in names[1:])
    for graph in program.methods.values():
        for node in graph.walk():
            if node.op == "prim::GetAttr" and node.attributes["name"] in owners:
                node.attributes[SHARED_MEMORY] = owners[node.attributes["name"]]


class _Changes:
    """The places of a Program that its methods change; ``places`` holds them."""

    def __init__(self, program: Program) -> None:
        self.places: set[Place] = set()
        groups: list[set[Place]] = []
        written: set[Place] = set()
        for graph in program.methods.values():
            if any(node.op == "prim::SetAttr" or written_inputs(node) for node in graph.walk()):
                aliases = Aliases(graph)
                self.places |= {attribute_place(name) for name in aliases.assigned_names()}
                written |= aliases.external_writes()
                groups += aliases.external_groups()
            groups += _told_by_nodes(graph)
        if written:
            self.places |= _reached(written, [*groups, *_sharing_storage(program)])


def _reached(start: set[Place], groups: Iterable[set[Place]]) -> set[Place]:
    """The places that may be the same memory as one of ``start``, by any chain of groups."""
    reached, left = set(start), list(groups)
    while touching := [group for group in left if not group.isdisjoint(reached)]:
        left = [group for group in left if group.isdisjoint(reached)]
        reached = reached.union(*touching)
    return reached


def _told_by_nodes(graph: Graph) -> Iterator[set[Place]]:
    """Attributes and the one whose memory they lie in, which may be gone from the Program since."""
    for node in graph.walk():
        if SHARED_MEMORY in node.attributes:
            yield {attribute_place(node.attributes["name"]), attribute_place(node.attributes[SHARED_MEMORY])}


def _sharing_storage(program: Program) -> Iterator[set[Place]]:
    """The attributes and constants whose tensors lie in one storage."""
    storages: dict[int, set[Place]] = {}
    places: list[tuple[Place, Any]] = [(attribute_place(name), item.value) for name, item in program.attributes.items()]
    for graph in program.methods.values():
        places += [(constant_place(value), value.constant) for value in _constants(graph)]
    for place, value in places:
        for tensor in _tensors(value):
            if tensor.layout == torch.strided and tensor.numel():
                storages.setdefault(tensor.untyped_storage().data_ptr(), set()).add(place)
    yield from (group for group in storages.values() if len(group) > 1)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _constants(graph: Graph) -> Iterator[Value]:
    """The constants of a graph, each once."""
    users = [*graph.walk(), graph.block.returns, *(block.returns for node in graph.walk() for block in node.blocks)]
    return iter(dict.fromkeys(value for user in users for value in user.inputs if value.is_constant))


def _read_attribute(graph: Graph, value: Value, name: str) -> None:
    readers = Origin.union(user.origin for user, _ in value.uses)
    attributes = {"name": name}
    node = graph.create(
        "prim::GetAttr", [graph.inputs[0]], [value.type], names=[value.name], attributes=attributes, origin=readers
    )
    InsertionPoint.start(graph.block).insert(node)
    value.replace_all_uses_with(node.output)


def _free_name(program: Program, number: int) -> str:
    while (name := f"_changed_constant_{number}") in program.attributes:
        number += 1
    return name
