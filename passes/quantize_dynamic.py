"""Linear layers compute with integers: weights that are rounded once, and inputs that are rounded in each call."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mobopt.ir import Graph, Node
from mobopt.ir.types import TensorType
from mobopt.ops.affine_tensor import AffineTensor
from mobopt.ops.quantized import Quantized
from mobopt.ops.quantized_contexts import QuantizedLinear
from mobopt.passes.quantize_weights import QuantizeWeights, converted
from mobopt.passes.rewriting import argument, insert_node


@dataclass(frozen=True)
class QuantizeDynamic(QuantizeWeights):
    """Let linear layers round their inputs to 8 bits, by the least and the greatest element of each call, and their
    weights to 8 bits with a scale for each output channel.

    Given:
        %y = aten::linear(%x, %w, %b)
    Result:
        %x.1 = aten::unsqueeze(%x, 0)
        %y.1 = quantized::linear_dynamic(%x.1, %packed, True)
        %y = aten::squeeze(%y.1, 0)

    As ``torch.ao.quantization.quantize_dynamic`` with ``per_channel_dynamic_qconfig`` does it; the last argument asks
    FBGEMM, whose sums of products would overflow on some processors, for 7 bits of inputs. QNNPACK, which phones have,
    takes 8.
    """

    name = "quantize_dynamic"

    def _refusal(self, node: Node) -> str:
        """Why a layer keeps its floats; empty if it does not."""
        if node.op != "aten::linear":
            return "only linear layers round their inputs in each call"
        reason = self._unfit(node)
        bias = argument(node, "bias")
        if not reason and not bias.is_constant:
            return "its bias is not constant"
        return reason

    def _replace(self, graph: Graph, node: Node, stored: Quantized) -> None:
        """Put the operator on packed weights in the layer's place."""
        weight, bias = argument(node, "weight"), argument(node, "bias").constant
        bias = bias if bias is None else bias.float()
        packed = graph.constant(QuantizedLinear(channel_weight(stored), bias), name=f"{weight.name}.packed")
        packed.attribute = weight.attribute
        dtype, first = weight.constant.dtype, graph.constant(0)
        x = argument(node, "input")
        has_rows = isinstance(x.type, TensorType) and x.rank > 1
        if not has_rows:  # QNNPACK takes no tensor of one dimension
            x = insert_node(graph, node, "aten::unsqueeze", [x, first])
        if dtype != torch.float32:
            x = converted(graph, node, x, torch.float32)
        inputs = [x, packed, graph.constant(True)]
        made = insert_node(graph, node, "quantized::linear_dynamic", inputs, name=node.output.name)
        if not has_rows:
            made = insert_node(graph, node, "aten::squeeze", [made, first], overload="dim")
        if dtype != torch.float32:
            made = converted(graph, node, made, dtype)
        node.output.replace_all_uses_with(made)
        node.destroy()


def channel_weight(stored: Quantized) -> AffineTensor:
    """A weight with a scale for each output channel as torch packs it; QNNPACK takes no scale of zero, as channels of
    zeros have."""
    scales = stored.scales.reshape(-1).double()
    scales = torch.where(scales > 0, scales, scales.max() if bool((scales > 0).any()) else 1.0)
    return AffineTensor(stored.values, scales, torch.zeros_like(scales, dtype=torch.float32), 0)
