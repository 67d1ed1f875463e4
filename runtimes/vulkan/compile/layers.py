"""Linear layers of constants, and layers that have the rows of several of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from mobopt.ir import Graph, Node, Origin, Value
from mobopt.ir.rewriting import destroy_unread
from mobopt.ops.contexts import LinearPackedContext
from mobopt.ops.quantized import DEQUANTIZE, Quantized
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported

Arrange = Callable[[Sequence[torch.Tensor]], torch.Tensor]
"""Makes one tensor of those that layers have each, by their first dimension; the same one for the same tensors."""


@dataclass(frozen=True)
class Layer:
    """A linear layer of constants."""

    node: Node
    weight: torch.Tensor | Quantized
    """(out, in)"""
    bias: torch.Tensor | None

    @property
    def input(self) -> Value:
        """What it reads."""
        source: Value = self.node.args[0]
        return source

    @property
    def columns(self) -> int:
        """Elements of a row that it makes."""
        size: int = self.node.output.sizes[-1]
        return size

    @property
    def kind(self) -> Hashable:
        """Of layers that can be one."""
        weight = self.weight
        if isinstance(weight, torch.Tensor):
            return self.input, self.bias is None, weight.dtype
        packing = (weight.values.dtype, weight.scales.dtype, weight.zero_points is None, weight.block_size, weight.bits)
        return self.input, self.bias is None, packing


def layer_of(node: Node) -> Layer | None:
    """The linear layer that a node is; None if it is none, or not of constants."""
    if node.op == "vulkan_prepack::run_linear_context":
        context = node.args[1]
        assert isinstance(context, LinearPackedContext)
        return Layer(node, context.weight.t(), context.bias)
    if node.op != "aten::linear" or (node["bias"] is not None and node["bias"].elements is None):
        return None
    weight: torch.Tensor | Quantized | None = node["weight"].elements
    quantized = Quantized.of(node["weight"])
    if quantized is not None and len(quantized.sizes) == 2 and quantized.block_size[0] == 1:
        weight = quantized
    return None if weight is None else Layer(node, weight, None if node["bias"] is None else node["bias"].elements)


def insert_layer(graph: Graph, layers: Sequence[Layer], arrange: Arrange) -> Node | None:
    """Put a layer with the rows of others, of one kind, before the first of them.

    Returns:
        None where no kernel computes it; nothing has changed then.
    """
    first = layers[0].node
    for layer in layers[1:]:
        first = layer.node if graph.block.nodes.is_before(layer.node, first) else first
    weight = _inserted_weight([layer.weight for layer in layers], arrange, first)
    biases = [layer.bias for layer in layers if layer.bias is not None]
    dtype = first.output.dtype
    bias = Value.of_elements(arrange(biases), dtype) if biases else None
    made = Value.of_tensor(dtype, (*first.output.sizes[:-1], weight.sizes[0]))
    origin = Origin.union(layer.node.origin for layer in layers)
    whole = Node.call("aten::linear", (layers[0].input, weight, bias), [made], origin)
    if why_unsupported(whole) is not None:
        whole.destroy()
        destroy_unread(weight.producer)
        return None
    whole.insert_before(first)
    return whole


def _inserted_weight(weights: Sequence[torch.Tensor | Quantized], arrange: Arrange, place: Node) -> Value:
    """Rows of all weights; of few bits, the floats that a call before ``place`` makes of them."""
    quantized = [weight for weight in weights if isinstance(weight, Quantized)]
    if not quantized:
        plain = [weight for weight in weights if isinstance(weight, torch.Tensor)]
        return Value.of_elements(arrange(plain), place.output.dtype)
    zeros = [weight.zero_points for weight in quantized if weight.zero_points is not None]
    tensors = [weight.values for weight in quantized], [weight.scales for weight in quantized], zeros
    args = [Value.of_elements(arrange(each)) if each else None for each in tensors]
    made = Value.of_tensor(quantized[0].scales.dtype, (args[1].sizes[0], quantized[0].columns))  # type: ignore[union-attr]
    call = Node.call(DEQUANTIZE, (*args, *quantized[0].arguments[3:]), [made], place.origin)
    call.insert_before(place)
    return call.output
