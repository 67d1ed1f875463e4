"""Joins linear layers of one input, so that one product computes them: queries, keys and values, gates and what passes
them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import destroy_unread
from mobopt.ops.contexts import LinearPackedContext
from mobopt.ops.quantized import DEQUANTIZE, Quantized
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.kernels.epilogue import activation_of, added_operands
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported

_ALIGNMENT = 8
"""Elements at a multiple of which the part of each layer begins, so that kernels can read it as it lies."""


@dataclass(frozen=True)
class _Layer:
    """A linear layer of constants."""

    node: Node
    weight: torch.Tensor | Quantized
    """(out, in)"""
    bias: torch.Tensor | None

    @property
    def input(self) -> Value:
        source: Value = self.node.args[0]
        return source

    @property
    def kind(self) -> Hashable:
        """Of layers that can be one."""
        weight = self.weight
        if isinstance(weight, torch.Tensor):
            return self.input, self.bias is None, weight.dtype
        packing = (weight.values.dtype, weight.scales.dtype, weight.zero_points is None, weight.block_size, weight.bits)
        return self.input, self.bias is None, packing


def join_projections(graph: Graph, constants: ConstantStore) -> None:
    """Make one linear layer of those of equal input, and their results slices of its own.

    Given:
        %a : Float(1, 5, 16) = aten::linear(%x, %w0, %b0)
        %b : Float(1, 5, 16) = aten::linear(%x, %w1, %b1)
    Result:
        %y : Float(1, 5, 32) = aten::linear(%x, %w, %b2)
        %a : Float(1, 5, 16) = aten::slice.Tensor(%y, 2, 0, 16, 1)
        %b : Float(1, 5, 16) = aten::slice.Tensor(%y, 2, 16, 32, 1)

    Layers stay as they are whose results need memory of their own, or go through what their own dispatch would do.
    """
    groups: dict[Hashable, list[_Layer]] = {}
    for node in graph.block.nodes:
        layer = _layer(node)
        if layer is not None and not _would_lose(graph, node.output):
            groups.setdefault(layer.kind, []).append(layer)
    for layers in groups.values():
        if len(layers) > 1:
            _join(graph, layers, constants)


def _layer(node: Node) -> _Layer | None:
    if node.op == "vulkan_prepack::run_linear_context":
        context = node.args[1]
        assert isinstance(context, LinearPackedContext)
        return _Layer(node, context.weight.t(), context.bias)
    if node.op != "aten::linear" or (node["bias"] is not None and node["bias"].elements is None):
        return None
    weight: torch.Tensor | Quantized | None = node["weight"].elements
    quantized = Quantized.of(node["weight"])
    if quantized is not None and len(quantized.sizes) == 2 and quantized.block_size[0] == 1:
        weight = quantized
    return None if weight is None else _Layer(node, weight, None if node["bias"] is None else node["bias"].elements)


def _would_lose(graph: Graph, value: Value) -> bool:
    """Whether a layer alone does more than its product, or makes what is returned."""
    while len(value.uses) == 1:
        reader = value.uses[0][0]
        if reader is graph.block.returns or len(reader.outputs) != 1:
            break
        if activation_of(reader) is not None:
            return any(user.qualified_op != "aten::mul.Tensor" for user, _ in reader.output.uses)
        if not has_trait(reader.qualified_op, Trait.VIEW):
            return bool(added_operands(reader))
        value = reader.output
    return any(user is graph.block.returns for user, _ in value.uses)


def _join(graph: Graph, layers: Sequence[_Layer], constants: ConstantStore) -> None:
    order = {node: number for number, node in enumerate(graph.block.nodes)}
    first = min((layer.node for layer in layers), key=order.__getitem__)
    weight = _joined_weights([layer.weight for layer in layers], constants, first)
    biases = [layer.bias for layer in layers if layer.bias is not None]
    bias = _joined(biases, constants) if biases else None
    x = layers[0].input
    whole = Value.of_tensor(layers[0].node.output.dtype, (*layers[0].node.output.sizes[:-1], weight.sizes[0]))
    product = Node.call("aten::linear", (x, weight, bias), [whole], first.origin)
    if why_unsupported(product) is not None:
        product.destroy()
        destroy_unread(weight.producer)
        return
    product.insert_before(first)
    start = 0
    for layer in layers:
        old, end = layer.node.output, start + layer.node.output.sizes[-1]
        args = (product.output, whole.rank - 1, start, end, 1)
        part = Node.call("aten::slice.Tensor", args, [Value("", old.type)], layer.node.origin)
        part.insert_before(first)
        part.output.name, old.name = old.name, ""
        old.replace_all_uses_with(part.output)
        start = _aligned(end)
    for layer in layers:
        destroy_unread(layer.node)


def _joined(parts: Sequence[torch.Tensor], constants: ConstantStore) -> Value:
    """Rows of all parts, each with zeros up to where the next one begins; the same tensor in every plan."""

    def join() -> torch.Tensor:
        joined = torch.zeros(sum(_aligned(part.shape[0]) for part in parts), *parts[0].shape[1:], dtype=parts[0].dtype)
        start = 0
        for part in parts:
            joined[start : start + part.shape[0]] = part
            start += _aligned(part.shape[0])
        return joined

    return Value.of_elements(constants.derived(parts, ("joined rows",), join))


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def _joined_weights(weights: Sequence[torch.Tensor | Quantized], constants: ConstantStore, place: Node) -> Value:
    """Rows of all weights; of few bits, the floats that a call before ``place`` makes of them."""
    quantized = [weight for weight in weights if isinstance(weight, Quantized)]
    if not quantized:
        return _joined([weight for weight in weights if isinstance(weight, torch.Tensor)], constants)
    zeros = [weight.zero_points for weight in quantized if weight.zero_points is not None]
    values, scales = ([getattr(weight, name) for weight in quantized] for name in ("values", "scales"))
    args = _joined(values, constants), _joined(scales, constants), _joined(zeros, constants) if zeros else None
    made = Value.of_tensor(quantized[0].scales.dtype, (args[1].sizes[0], quantized[0].columns))
    call = Node.call(DEQUANTIZE, (*args, *quantized[0].arguments[3:]), [made], place.origin)
    call.insert_before(place)
    return call.output
