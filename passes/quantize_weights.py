"""Weights of layers become integers of few bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch

from mobopt.errors import InputError
from mobopt.ir import Graph, Node, Program, Value
from mobopt.ir.dtypes import SCALAR_NUMBERS
from mobopt.ops.quantized import DEQUANTIZE, Quantized, quantized, relative_error
from mobopt.ops.records import Like, record_of
from mobopt.options import Quantization
from mobopt.passes.manager import After, Pass
from mobopt.passes.note_kinds import QUANTIZED, QUANTIZED_POORLY, STAYS
from mobopt.passes.notes import Note, NoteBook
from mobopt.passes.rewriting import argument, insert_node, is_constant_tensor, tensor_key

_LARGE_ERRORS = {8: 0.03, 4: 0.15}
"""What a weight may lose before it is named, by bits: a few times what normally distributed ones lose."""
_NAMED = 8
"""Layers that a message has room for."""
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_LEAST = 16
"""Fewer elements to a scale would save nothing."""


@dataclass(frozen=True)
class QuantizeWeights(Pass):
    """Round the weights of linear layers, convolutions and embeddings to integers, with a scale for each block.

    Given:
        %y = aten::linear(%x, %w, %b)
    Result:
        %w.1 = mobopt::dequantize(%integers, %scales, None, [1, 32], 4, 768)
        %y = aten::linear(%x, %w.1, %b)

    Integers of 8 bits have a scale for each output channel, or each row of an embedding. With the scheme
    ``int4_weights`` linear layers have 4 bits and a scale for each group of the inner dimension; other layers have 8.
    Weights of a model in halves have scales in float32; what stands for them is converted to the model's dtype.
    """

    name = "quantize_weights"
    after = (
        After("canonicalize", "it knows only the forms that this makes"),
        After("fold_batch_norm", "normalisations are folded into plain weights"),
    )
    quantization: Quantization = field(default_factory=Quantization)

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Rewrite every layer; a weight that several have is rounded once.

        Raises:
            InputError: a pattern of what is to stay matches no layer.
        """
        layers = [(graph, node) for graph in program.methods.values() for node in layers_with_weights(graph)]
        self._check_patterns(list(dict.fromkeys(layer_name(node) for _, node in layers)))
        known: dict[object, tuple[torch.Tensor, Quantized]] = {}
        changed = False
        for graph, node in layers:
            reason = self._refusal(node)
            if reason:
                notes.add(STAYS, node, reason=reason)
                continue
            weight = _weight_of(node)
            bits, blocks = self._form(node)
            key = (tensor_key(weight.constant), bits, blocks)
            if key not in known:
                known[key] = weight.constant, quantized(weight.constant, bits, blocks)
            note_rounding(notes, node, *known[key])
            self._replace(graph, node, known[key][1])
            changed = True
        return changed

    def _check_patterns(self, names: list[str]) -> None:
        for pattern in self.quantization.keep:
            if not any(fnmatchcase(name, pattern) for name in names):
                close = get_close_matches(pattern, names, n=1, cutoff=0.3)
                hint = f"did you mean {close[0]}?" if close else f"layers are {', '.join(names[:10]) or 'none'}"
                raise InputError(f"no layer matches {pattern!r}, which is to keep its weight; {hint}")

    def _refusal(self, node: Node) -> str:
        """Why a layer keeps its weight; empty if it does not."""
        reason = self._unfit(node)
        if not reason:
            _, blocks = self._form(node)
            if torch.Size(blocks).numel() < _LEAST:
                return f"a scale would be for {torch.Size(blocks).numel()} elements, which saves nothing"
        return reason

    def _unfit(self, node: Node) -> str:
        """Why a layer's weight can't become integers, or is not to; empty if it may."""
        name, weight = layer_name(node), _weight_of(node)
        for pattern in self.quantization.keep:
            if fnmatchcase(name, pattern):
                return f"{name} is to keep its weight, by {pattern!r}"
        if not is_constant_tensor(weight):
            return "its weight is not constant"
        tensor = weight.constant
        if tensor.dtype not in _FLOATS:
            return f"its weight is {str(tensor.dtype).removeprefix('torch.')}"
        if not tensor.isfinite().all():
            return "its weight is not finite"
        return ""

    def _form(self, node: Node) -> tuple[int, tuple[int, ...]]:
        """Bits of a layer's integers, and how many elements share a scale."""
        sizes = tuple(_weight_of(node).constant.shape)
        if record_of(node.qualified_op).channels == Like.TRANSPOSED_WEIGHT:
            return 8, (sizes[0] // argument(node, "groups").constant, 1, *sizes[2:])
        if node.op == "aten::linear" and self.quantization.scheme == "int4_weights" and len(sizes) == 2:
            return 4, (1, min(self.quantization.group, sizes[1]))
        return 8, (1, *sizes[1:])

    def _replace(self, graph: Graph, node: Node, stored: Quantized) -> None:
        """Let a layer read what a quantised weight stands for."""
        weight = _weight_of(node)
        tensors = (("integers", stored.values), ("scales", stored.scales))
        inputs = [graph.constant(tensor, name=f"{weight.name}.{name}") for name, tensor in tensors]
        inputs[0].attribute = weight.attribute
        inputs += [graph.constant(item) for item in (None, list(stored.block_size), stored.bits, stored.columns)]
        floats = insert_node(graph, node, DEQUANTIZE, inputs, name=weight.name)
        if weight.constant.dtype != torch.float32:
            floats = converted(graph, node, floats, weight.constant.dtype)
        place = _weight_place(node)
        assert place is not None
        node.replace_input(place, floats)


def converted(graph: Graph, node: Node, floats: Value, dtype: torch.dtype) -> Value:
    """Floats of another dtype, before a node: models in halves have weights and inputs in halves. Layers of one input,
    met in their order, share one."""
    for user, _ in floats.uses:
        is_such = user.qualified_op == "aten::to.dtype" and user.inputs[1].is_constant and user.block is node.block
        if is_such and user.inputs[1].constant == SCALAR_NUMBERS[dtype] and user.is_before(node):
            return user.output
    inputs = [floats, *map(graph.constant, (SCALAR_NUMBERS[dtype], False, False, None))]
    return insert_node(graph, node, "aten::to", inputs, overload="dtype", name=floats.name)


def _weight_place(node: Node) -> int | None:
    """Which input of a layer is its weight; None for what is no layer."""
    record = record_of(node.qualified_op)
    if record.channels in (Like.WEIGHT, Like.TRANSPOSED_WEIGHT) or node.op in ("aten::linear", "aten::embedding"):
        names = [] if record.schema is None else [item.name for item in record.schema.arguments]
        return names.index("weight") if "weight" in names else None
    return None


def layers_with_weights(graph: Graph) -> list[Node]:
    """The layers with a weight."""
    return [node for node in graph.walk() if _weight_place(node) is not None]


def _weight_of(node: Node) -> Value:
    return argument(node, "weight")


def layer_name(node: Node) -> str:
    """The module that a layer stands in, ``layers.0.attention.query``; else the one that its weight belongs to."""
    weight = _weight_of(node)
    modules = [line.partition(" in ")[2] for line in node.origin.lines[:1]]
    owner = weight.attribute.rpartition(".")[0] or weight.attribute
    return next(filter(None, (*modules, owner)), weight.name)


def note_rounding(notes: NoteBook, node: Node, weight: torch.Tensor, stored: Quantized) -> None:
    """Say what a layer's weight has become."""
    error = relative_error(weight, stored)
    parameters = {"layer": layer_name(node), "bits": stored.bits, "error": error}
    notes.add(QUANTIZED, node, before=weight.nbytes, after=stored.nbytes, **parameters)
    if not error <= _LARGE_ERRORS[stored.bits]:
        notes.add(QUANTIZED_POORLY, node, **parameters)


def poorly_quantized(notes: Sequence[Note]) -> str:
    """Which layers lose much of their weights to rounding, in words; empty if there are none."""
    named = [
        f"{note.parameters['layer']} ({note.parameters['error']:.0%})"
        for note in notes
        if note.kind is QUANTIZED_POORLY
    ]
    if not named:
        return ""
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return (
        f"rounding loses much of the weights of {', '.join(named[:_NAMED])}{more}; name layers in keep_float "
        "(--keep-float) to let them keep their floats"
    )
