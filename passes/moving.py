"""Nodes that move values of any type between the CPU and the GPU."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import torch

from mobopt.ir import Block, Graph, Node, Origin, Value
from mobopt.ir.types import BOOL, INT, NONE, TENSOR, DictType, ListType, OptionalType, TupleType, Type
from mobopt.ops.effects import holds_tensors
from mobopt.ops.records import Trait, has_trait
from mobopt.passes.note_kinds import MOVED, NOT_MOVED
from mobopt.passes.notes import NoteBook


class Mover:
    """Writes the nodes that move a value of any type to a device.

    Tensors for which ``needs_order`` is true are made row-major first: PyTorch 2.6 reads those that are channels_last
    as if they were not (``get_gpu_memory_layout`` in ``ops/Convert.h``).
    """

    def __init__(
        self,
        graph: Graph,
        device: torch.device,
        suffix: str,
        notes: NoteBook,
        ordered: set[Node],
        needs_order: Callable[[Value], bool] = lambda value: False,
    ) -> None:
        self.graph = graph
        self.suffix = suffix
        self.notes = notes
        self.ordered = ordered
        self.needs_order = needs_order
        self.device = graph.constant(device, name="device")
        self.none = graph.constant(None)
        self.false = graph.constant(False)
        self.true = graph.constant(True)
        self.known: dict[Value, Value] = {}
        """Tensors moved already, by the original."""
        self.everywhere: dict[Value, Value] = {}
        """Tensors moved where they are made, by the original."""
        self.rebuilt: list[Node] = []
        """Nodes of containers that are made anew, outer ones first."""

    def returned(self, value: Value, anchor: Node) -> Value:
        """A returned value on the device; containers that are made only to be returned are made of moved values."""
        node = value.producer
        made_here = node is not None and node.block is anchor.block and len(value.uses) == 1
        if node is None or not made_here or not has_trait(node.op, Trait.CONSTRUCTS):
            return self.moved(value, anchor)
        self.rebuilt.append(node)
        moved = [self.returned(item, anchor) for item in node.inputs]
        return self.node(node.op, moved, value.type, anchor, value)

    def moved(self, value: Value, anchor: Node) -> Value:
        """The value on the device, by nodes before ``anchor``; the value itself if no tensor can be in it."""
        kind = value.type
        if not holds_tensors(kind) or kind == NONE:
            return value
        if kind == TENSOR:
            return self.moved_tensor(value, anchor)
        if isinstance(kind, OptionalType):
            return self.moved_optional(value, kind, anchor)
        if isinstance(kind, TupleType):
            return self.moved_tuple(value, kind, anchor)
        if isinstance(kind, ListType):
            return self.moved_list(value, kind, anchor)
        if isinstance(kind, DictType):
            return self.moved_dict(value, kind, anchor)
        self.notes.add(NOT_MOVED, value, device=str(self.device.constant), type=str(kind))
        return value

    def moved_tensor(self, value: Value, anchor: Node) -> Value:
        """A tensor, moved once."""
        if value not in self.known or anchor.block is not self.graph.block:
            moved = self.transfer(value, anchor)
            if anchor.block is not self.graph.block:
                return moved
            self.notes.add(MOVED, value, device=str(self.device.constant))
            self.known[value] = moved
        return self.known[value]

    def moved_once(self, value: Value) -> Value:
        """A tensor, moved right after it is made; a constant at the start of the method."""
        if value not in self.everywhere:
            self.notes.add(MOVED, value, device=str(self.device.constant))
            self.everywhere[value] = self.transfer(value, self._after(value))
        return self.everywhere[value]

    def transfer(self, value: Value, anchor: Node) -> Value:
        """The operator that moves a tensor, before ``anchor``."""
        source = value
        if self.needs_order(value):
            contiguous = [value, self.graph.constant(0)]
            node = self.create("aten::contiguous", contiguous, [TENSOR], anchor, f"{value.name}.contiguous")
            self.ordered.add(node.insert_before(anchor))
            source = node.output
        inputs = [source, self.device, self.none, self.false, self.false]
        copy = self.node("aten::to", inputs, TENSOR, anchor, value, overload="prim_Device")
        copy.facts = value.facts
        return copy

    def _after(self, value: Value) -> Node:
        """The node before which something stands right after the definition of a value."""
        node = value.producer
        block = self.graph.block if value.is_constant else value.owner if node is None else node.block
        assert block is not None
        return (block.nodes.first if node is None else node.next) or block.returns

    def moved_optional(self, value: Value, kind: OptionalType, anchor: Node) -> Value:
        """``if value is not None: moved(value) else: value``."""
        present = self.node("aten::__isnot__", [value, self.none], BOOL, anchor)
        branch = self.create("prim::If", [present], [kind], anchor, self.name(value))
        some, other = branch.add_block(), branch.add_block()
        inner = self.node("prim::unchecked_cast", [value], kind.element, some.returns, value)
        some.returns.set_inputs([self.moved(inner, some.returns)])
        other.returns.set_inputs([value])
        return branch.insert_before(anchor).output

    def moved_tuple(self, value: Value, kind: TupleType, anchor: Node) -> Value:
        """Each element of a tuple."""
        unpack = self.create("prim::TupleUnpack", [value], kind.elements, anchor).insert_before(anchor)
        return self.node(
            "prim::TupleConstruct", [self.moved(item, anchor) for item in unpack.outputs], kind, anchor, value
        )

    def moved_list(self, value: Value, kind: ListType, anchor: Node) -> Value:
        """A new list, filled in a loop."""
        result = self.node("prim::ListConstruct", [], kind, anchor, value)
        length = self.node("aten::len", [value], INT, anchor, overload="t")
        body = self.loop(length, anchor)
        item = self.node("aten::__getitem__", [value, body.parameters[0]], kind.element, body.returns, overload="t")
        moved = self.moved(item, body.returns)
        self.node("aten::append", [result, moved], kind, body.returns, overload="t")
        return result

    def moved_dict(self, value: Value, kind: DictType, anchor: Node) -> Value:
        """A new dictionary with the same keys."""
        overload = str(kind.key)
        result = self.node("prim::DictConstruct", [], kind, anchor, value)
        keys = self.node("aten::keys", [value], ListType(kind.key), anchor, overload=overload)
        length = self.node("aten::len", [keys], INT, anchor, overload="t")
        body = self.loop(length, anchor)
        end = body.returns
        key = self.node("aten::__getitem__", [keys, body.parameters[0]], kind.key, end, overload="t")
        item = self.node("aten::__getitem__", [value, key], kind.value, end, overload=f"Dict_{overload}")
        moved = self.moved(item, end)
        put = self.create("aten::_set_item", [result, key, moved], [], end, overload=overload)
        put.insert_before(end)
        return result

    def loop(self, length: Value, anchor: Node) -> Block:
        """The body of a loop over ``range(length)``."""
        node = self.create("prim::Loop", [length, self.true], [], anchor).insert_before(anchor)
        body = node.add_block()
        body.add_parameter(self.graph.value(INT, "i"))
        body.returns.set_inputs([self.true])
        return body

    def node(
        self, op: str, inputs: list[Value], kind: Type, anchor: Node, moved: Value | None = None, overload: str = ""
    ) -> Value:
        """A new node with one output before ``anchor``."""
        name = "" if moved is None else self.name(moved)
        return self.create(op, inputs, [kind], anchor, name, overload).insert_before(anchor).output

    def create(
        self, op: str, inputs: list[Value], types: Sequence[Type], anchor: Node, name: str = "", overload: str = ""
    ) -> Node:
        """A new node, which comes from what made its inputs, or from what is to read them."""
        makers = Origin.union(value.producer.origin for value in inputs if value.producer is not None)
        origin = makers if makers.nodes else anchor.origin
        return self.graph.create(op, inputs, types, overload=overload, names=[name] if name else [], origin=origin)

    def name(self, value: Value) -> str:
        """A name for what becomes of a value."""
        return f"{value.name}.{self.suffix}"


def before_order(value: Value, ordered: Container[Node]) -> Value:
    """The tensor before it was made row-major to be moved."""
    node = value.producer
    return node.inputs[0] if node is not None and node in ordered else value
