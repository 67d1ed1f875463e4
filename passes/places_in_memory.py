"""``as_strided`` counts places in memory: it gets what lies alike in the model and on the phone, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mobopt.ir import Graph, Node, Program, Value
from mobopt.ir.nests import map_leaves
from mobopt.ir.types import TENSOR
from mobopt.ops.aliases import Aliases
from mobopt.ops.records import Trait, has_trait
from mobopt.ops.shapes.layouts import outermost_first
from mobopt.ops.state import telling_calls
from mobopt.passes.facts import Examples
from mobopt.passes.manager import After, Pass
from mobopt.passes.note_kinds import PLACES_DIFFER, READS_MEMORY
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import insert_node
from mobopt.runtimes.cpu import Interpreter

_VIEWS = ("aten::as_strided", "aten::as_strided_copy")


@dataclass(frozen=True)
class PlacesInMemory(Pass):
    """Give ``as_strided`` the memory that its argument is a view of, row by row.

    Given (%y lies row by row):
        %t : Tensor = aten::transpose(%y, %zero, %one)
        %z : Tensor = aten::as_strided(%t, %sizes, %strides, %none)
    Result:
        %y.rows : Tensor = aten::contiguous(%y, %zero)
        %z : Tensor = aten::as_strided(%y.rows, %sizes, %strides, %zero)

    A copy from the GPU lies row by row, whatever the strides of the tensor were in the model. How it lies there is seen
    in a run of the example inputs; without them, and where memory is written to, nothing is changed, and noted.
    """

    name = "places_in_memory"
    after = (After("functionalize", "memory that is written to is not copied"),)
    examples: Examples = field(default_factory=Examples)

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Rewrite in every method."""
        if not any(_counts_places(node) for graph in program.methods.values() for node in graph.walk()):
            return False
        watcher = _Watcher(program)
        for method, arguments in self.examples.arguments.items():
            if method in program.methods:
                for _ in range(telling_calls(program)):
                    watcher.run(method, map_leaves(list(arguments), torch.Tensor, torch.Tensor.clone))
        changed = False
        for graph in program.methods.values():
            for node in list(graph.walk()):
                if node.op in _VIEWS:
                    changed |= _rewrite(graph, node, watcher, notes)
                elif _counts_places(node) and not watcher.lies_in_rows(node.inputs[0]):
                    notes.add(PLACES_DIFFER, node, reason=watcher.reason(node.inputs[0]))
        return changed


def _counts_places(node: Node) -> bool:
    """Whether what a node gives depends on where elements lie in memory."""
    return has_trait(node.qualified_op, Trait.COUNTS_PLACES) or _asks(node)


def _asks(node: Node) -> bool:
    """Whether a node asks how a tensor lies."""
    return all(has_trait(node.qualified_op, trait) for trait in (Trait.READS_METADATA_ONLY, Trait.READS_STRIDES))


def _rewrite(graph: Graph, node: Node, watcher: _Watcher, notes: NoteBook) -> bool:
    """Rewrite one ``as_strided``, if its argument lies in another way; whether that was done."""
    tensor, _, strides, offset = node.inputs
    if watcher.lies_in_rows(tensor):
        return _keep_rows(graph, node)
    memory = watcher.memory_of(tensor)
    reason = watcher.reason(tensor) if memory is None else ""
    aliases = Aliases(graph)
    if aliases.writers(tensor) or aliases.writers(node.output):
        reason = "memory of it is written to in place"
    if any(_asks_for_strides(value) for value in (strides, offset)):
        reason = "it asks for the strides too"
    if memory is None or reason:
        notes.add(PLACES_DIFFER, node, reason=reason)
        return False
    rows = memory.value
    if not memory.lies_in_rows:
        order = graph.constant(memory.order)
        rows = insert_node(graph, node, "aten::permute", [rows, order], name=f"{rows.name}.turned")
    rows = insert_node(graph, node, "aten::contiguous", [rows, graph.constant(0)], name=f"{memory.value.name}.rows")
    notes.add(READS_MEMORY, node, memory=memory.value)
    node.replace_input(0, rows)
    if offset.is_constant and offset.constant is None:
        node.replace_input(3, graph.constant(watcher.offset_of(tensor)))
    return True


def _keep_rows(graph: Graph, node: Node) -> bool:
    """See that what an ``as_strided`` takes by places still lies row by row when operators have been rewritten."""
    tensor = node.inputs[0]
    aliases = Aliases(graph)
    if tensor.is_constant or tensor.producer is None or tensor.producer.op == "aten::contiguous":
        return False
    if aliases.writers(tensor) or aliases.writers(node.output):
        return False
    rows = insert_node(graph, node, "aten::contiguous", [tensor, graph.constant(0)], name=f"{tensor.name}.rows")
    node.replace_input(0, rows)
    return True


def _asks_for_strides(value: Value) -> bool:
    """Whether a number, or a list of them, follows from how a tensor lies."""
    waiting, seen = [value], {value}
    while waiting:
        node = waiting.pop().producer
        if node is None:
            continue
        if _asks(node):
            return True
        new = [item for item in node.inputs if item.type != TENSOR and item not in seen]
        seen.update(new)
        waiting.extend(new)
    return False


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies."""

    storage: int
    offset: int
    order: tuple[int, ...] | None
    """Its dimensions, outermost first, if it is the whole of its memory, without gaps."""


@dataclass(frozen=True)
class _Memory:
    """A tensor that is the whole of a memory, and its dimensions, outermost first."""

    value: Value
    order: list[int]

    @property
    def lies_in_rows(self) -> bool:
        """Whether it lies row by row."""
        return self.order == sorted(self.order)


class _Watcher(Interpreter):
    """Runs a program and writes down where its tensors lie."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._places: dict[Value, _Place | None] = {}
        """None: at several in turn."""

    def bind(self, values: Sequence[Value], results: Sequence[Any], environment: dict[Value, Any]) -> None:
        """Look at where values lie."""
        for value, result in zip(values, results, strict=True):
            if isinstance(result, torch.Tensor) and result.layout == torch.strided and not result.is_nested:
                place = _place(result)
                known = self._places.get(value, place)
                is_same = known is not None and (known.offset, known.order) == (place.offset, place.order)
                self._places[value] = place if is_same else None
        super().bind(values, results, environment)

    def lies_in_rows(self, value: Value) -> bool:
        """Whether a tensor is the whole of its memory, row by row; constants and inputs come as they are."""
        if value.is_constant or (value.producer is None and value.owner is not None and value.owner.node is None):
            return True
        place = self._places.get(value)
        return place is not None and place.order is not None and list(place.order) == sorted(place.order)

    def memory_of(self, value: Value) -> _Memory | None:
        """What a tensor is a view of, if it was seen always to be the same; one that lies in rows, if there is one."""
        whole = [
            _Memory(item, list(place.order))
            for item in self._views(value)
            if (place := self._places[item]) is not None and place.order is not None
        ]
        return next((memory for memory in whole if memory.lies_in_rows), whole[0] if whole else None)

    def offset_of(self, value: Value) -> int:
        """How many elements lie before a tensor's first one."""
        place = self._places[value]
        assert place is not None
        return place.offset

    def reason(self, value: Value) -> str:
        """Why nothing is done about it."""
        if value not in self._places:
            return "no run of example inputs shows how they lie; give example inputs that come there"
        return "they don't always lie in the same way, or no operator gives the whole of their memory"

    def _views(self, value: Value) -> Iterator[Value]:
        """A tensor, and those in the same memory that it is made of."""
        place = self._places.get(value)
        while place is not None:
            yield value
            operands = () if value.producer is None or value.producer.blocks else value.producer.inputs
            found = ((item, self._places.get(item)) for item in operands)
            storage = place.storage
            value, place = next(
                ((item, at) for item, at in found if at is not None and at.storage == storage), (value, None)
            )


def _place(tensor: torch.Tensor) -> _Place:
    order = outermost_first(tensor.stride())
    storage, size = tensor.untyped_storage(), tensor.element_size()
    is_whole = tensor.numel() * size == storage.nbytes() and tensor.permute(order).is_contiguous()
    if tensor.is_contiguous() and is_whole:
        order.sort()
    return _Place(storage.data_ptr(), int(tensor.storage_offset()), tuple(order) if is_whole else None)
