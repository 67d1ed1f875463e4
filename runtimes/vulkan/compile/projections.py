"""Joins the linear layers that make queries, keys and values of one input, so that one product computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ops.contexts import LinearPackedContext
from mobopt.ops.quantized import Quantized
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported

_ATTENTION = "aten::scaled_dot_product_attention"
_ALIGNMENT = 8
"""Elements of which the width of each layer is a multiple, so that kernels can read their parts as they lie."""


@dataclass(frozen=True)
class _Layer:
    """A linear layer of constants."""

    node: Node
    weight: torch.Tensor
    """(out, in)"""
    bias: torch.Tensor | None

    @property
    def input(self) -> Value:
        source: Value = self.node.args[0]
        return source


def join_projections(graph: Graph, constants: ConstantStore) -> None:
    """Make one linear layer of those of equal input that attention reads, and their results slices of its own.

    Given:
        %a : Float(1, 5, 16) = aten::linear(%x, %w0, %b0)
        %b : Float(1, 5, 16) = aten::linear(%x, %w1, %b1)
    Result:
        %y : Float(1, 5, 32) = aten::linear(%x, %w, %b2)
        %a : Float(1, 5, 16) = aten::slice.Tensor(%y, 2, 0, 16, 1)
        %b : Float(1, 5, 16) = aten::slice.Tensor(%y, 2, 16, 32, 1)
    """
    for attention in [node for node in graph.block.nodes if node.op == _ATTENTION]:
        groups: dict[Value, list[_Layer]] = {}
        for name in ("query", "key", "value"):
            layer = _layer_behind(attention[name])
            if layer is not None:
                groups.setdefault(layer.input, []).append(layer)
        for layers in groups.values():
            nodes = {layer.node for layer in layers}
            if len(nodes) == len(layers) > 1 and len({layer.bias is None for layer in layers}) == 1:
                _join(graph, layers, constants)


def _layer_behind(value: Value) -> _Layer | None:
    """The layer of which a value is a view, and nothing else reads it."""
    while (node := value.producer) is not None and has_trait(node.qualified_op, Trait.VIEW) and len(value.uses) == 1:
        value = node.args[0]
    if node is None or len(value.uses) != 1 or value.sizes[-1] % _ALIGNMENT:
        return None
    if node.op == "vulkan_prepack::run_linear_context":
        context = node.args[1]
        assert isinstance(context, LinearPackedContext)
        return _Layer(node, context.weight.t(), context.bias)
    if node.op != "aten::linear" or node["weight"].elements is None or Quantized.of(node["weight"]) is not None:
        return None
    bias = node["bias"]
    if bias is not None and bias.elements is None:
        return None
    return _Layer(node, node["weight"].elements, None if bias is None else bias.elements)


def _join(graph: Graph, layers: Sequence[_Layer], constants: ConstantStore) -> None:
    weight = _joined([layer.weight for layer in layers], constants)
    biases = [layer.bias for layer in layers if layer.bias is not None]
    bias = _joined(biases, constants) if biases else None
    x = layers[0].input
    whole = Value.of_tensor(layers[0].node.output.dtype, (*layers[0].node.output.sizes[:-1], weight.sizes[0]))
    order = {node: number for number, node in enumerate(graph.block.nodes)}
    first = min((layer.node for layer in layers), key=order.__getitem__)
    product = Node.call("aten::linear", (x, weight, bias), [whole], first.origin)
    if why_unsupported(product) is not None:
        product.destroy()
        return
    product.insert_before(first)
    start = 0
    for layer in layers:
        old, end = layer.node.output, start + layer.weight.shape[0]
        args = (product.output, whole.rank - 1, start, end, 1)
        part = Node.call("aten::slice.Tensor", args, [Value("", old.type)], layer.node.origin)
        part.insert_before(first)
        part.output.name, old.name = old.name, ""
        old.replace_all_uses_with(part.output)
        start = end
    for layer in layers:
        layer.node.destroy()


def _joined(parts: Sequence[torch.Tensor], constants: ConstantStore) -> Value:
    """Rows of all parts; the same tensor in every plan."""
    return Value.of_elements(constants.derived(parts, ("joined rows",), lambda: torch.cat([*parts])))
