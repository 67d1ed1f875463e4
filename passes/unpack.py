"""Packed weights become plain ones, and the operators of mobile builds that read them those of every PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mobopt.errors import UnsupportedError
from mobopt.ir import Attribute, Graph, InsertionPoint, Node, Program, Value
from mobopt.ir.schemas import schema_of
from mobopt.ir.types import TENSOR, ListType
from mobopt.ops.contexts import Conv1dPackedContext, GruPackedContext, PackedContext, QuantizedContext
from mobopt.ops.schemas import PACKING_OPERATORS
from mobopt.ops.unpacked_calls import unpacked_call
from mobopt.passes.manager import After, Pass
from mobopt.passes.note_kinds import FLAG_DROPPED, UNPACKED
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import insert_node, replace_node
from mobopt.runtimes.cpu.packed_common import pair

_FLAGS = ("optimized_for_vulkan", "optimized_for_metal", "mobile_optimized", "requires_backend_transfers")
"""Attributes by which PyTorch's own passes, and ours, say what a file is for."""
_DEFAULTS = {"cudnn_enable": False, "cudnn_enabled": False}
"""Arguments of plain operators that packed ones do without."""
_PAIRS = ("stride", "padding", "output_padding", "dilation")


@dataclass(frozen=True)
class Unpack(Pass):
    """Put plain weights and operators in the place of packed ones.

    Given:
        %c : vulkan.Conv2dPackedContext = prim::GetAttr[name="packed"](%self)
        %y : Tensor = vulkan_prepack::run_conv2d_context(%x, %c)
    Result:
        %y.1 : Tensor = aten::conv2d(%x, %weight, %bias, [1, 1], [0, 0], [1, 1], 1)
        %y : Tensor = aten::clamp(%y.1, 0, 6)

    What marks a file as optimised for a backend is dropped.
    """

    name = "unpack"
    after = (After("fold_prepack", "it unpacks contexts, and no operators that make them"),)

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Unpack in every method, then drop the contexts and the flags that nothing reads."""
        layers = _Layers(program.attributes)
        changed = [_rewrite_graph(graph, layers, notes) for graph in program.methods.values()]
        return _drop_attributes(program, notes) or any(changed)


def _rewrite_graph(graph: Graph, layers: _Layers, notes: NoteBook) -> bool:
    changed = False
    for node in graph.walk():
        call = unpacked_call(node, layers.attributes)
        if call is not None:
            layers.unpack(graph, node, call, notes)
            changed = True
        elif node.op in PACKING_OPERATORS:
            raise UnsupportedError(
                f"{node.op}{_place(node)} packs weights that the model computes, which can't be unpacked"
            )
    return changed


def _place(node: Node) -> str:
    return f" at {node.source}" if node.source else ""


@dataclass
class _Layers:
    """Writes the plain layers; what several nodes read of one context is one tensor."""

    attributes: Mapping[str, Attribute]
    tensors: dict[tuple[int, str], tuple[PackedContext, Any]] = field(default_factory=dict)
    """By the identity of a context, which is kept, and field."""

    def unpack(self, graph: Graph, node: Node, call: tuple[str, dict[str, Any]], notes: NoteBook) -> None:
        """Put the plain operator, and its clamp, in the place of a node."""
        op, given = call
        context = self._context_of(node)
        base, _, overload = op.partition(".")
        inputs = [
            self._value(graph, node, context, argument.name, given.get(argument.name, _DEFAULTS.get(argument.name)))
            for argument in schema_of(op).arguments
        ]
        notes.add(UNPACKED, node, operator=base)
        new = replace_node(graph, node, base, inputs, overload=overload, types=[value.type for value in node.outputs])
        bounds = (given.get("output_min"), given.get("output_max"))
        if bounds != (None, None):
            _clamp(graph, new, bounds)

    def _context_of(self, node: Node) -> PackedContext:
        value = node.inputs[-1]
        found = value.constant if value.is_constant else None
        if value.producer is not None:
            found = self.attributes[value.producer.attributes["name"]].value
        assert isinstance(found, PackedContext)
        if isinstance(found, QuantizedContext):
            raise UnsupportedError(f"{node.op}{_place(node)} has quantised weights, which can't be unpacked")
        return found

    def _value(self, graph: Graph, node: Node, context: PackedContext, name: str, item: Any) -> Value:
        """One argument of the plain operator."""
        if isinstance(item, Value):
            return item
        if name == "hx":
            return _listed(graph, node, item)
        if isinstance(context, GruPackedContext) and name == "params":
            return _listed(graph, node, [graph.constant(weight) for weight in context.layer_parameters])
        if isinstance(item, torch.Tensor):
            return graph.constant(self._kept(context, name, item.contiguous))
        if name in _PAIRS and not isinstance(context, Conv1dPackedContext):
            item = pair(item)
        return graph.constant(item)

    def _kept(self, context: PackedContext, name: str, make: Callable[[], Any]) -> Any:
        key = (id(context), name)
        if key not in self.tensors:
            self.tensors[key] = context, make()
        return self.tensors[key][1]


def _listed(graph: Graph, node: Node, items: Sequence[Value]) -> Value:
    return insert_node(graph, node, "prim::ListConstruct", items, type=ListType(TENSOR))


def _clamp(graph: Graph, layer: Node, bounds: tuple[Any, Any]) -> None:
    """Clamp what a layer makes, for all of its readers."""
    result, readers = layer.output, layer.output.uses
    op = "aten::relu" if bounds == (0, None) else "aten::clamp"
    limits = [] if op == "aten::relu" else [graph.constant(bound) for bound in bounds]
    clamp = graph.create(op, [result, *limits], [TENSOR], names=[result.name], origin=layer.origin)
    InsertionPoint.after(layer).insert(clamp)
    for reader, index in readers:
        reader.replace_input(index, clamp.output)


def _drop_attributes(program: Program, notes: NoteBook) -> bool:
    """Drop contexts, and what files say of themselves, unless a method reads or assigns to it."""
    for graph in program.methods.values():
        for node in graph.walk():
            if node.op == "prim::GetAttr" and not node.output.uses:
                node.destroy()
    used = {node.attributes.get("name") for graph in program.methods.values() for node in graph.walk()}
    flags = [name for name in _FLAGS if name in program.attributes and name not in used]
    contexts = [name for name, item in program.attributes.items() if isinstance(item.value, PackedContext)]
    if read := [name for name in contexts if name in used]:
        raise UnsupportedError(f"the model hands on the packed weights {read[0]!r} as a value, which can't be unpacked")
    for name in flags:
        notes.add(FLAG_DROPPED, name)
    for name in (*flags, *contexts):
        del program.attributes[name]
    return bool(flags or contexts)
