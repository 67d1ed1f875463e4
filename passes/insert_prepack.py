"""Layers with constant weights become operators on packed contexts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.types import ClassType
from mobopt.ops.contexts import Conv2dPackedContext, LinearPackedContext, PackedContext
from mobopt.passes.manager import GraphPass, NoteBook
from mobopt.passes.rewriting import argument, insert_node, is_constant_tensor, replace_node


class InsertPrepack(GraphPass):
    """Split conv2d, conv_transpose2d and linear into packing of weights and a run.

    Given:
        %y : Tensor = aten::conv2d(%x, %w, %b, %stride, %padding, %dilation, %groups)
    Result:
        %c : Conv2dPackedContext = vulkan_prepack::create_conv2d_context(%w, %b, %stride, ..., %groups, %none, %none)
        %y : Tensor = vulkan_prepack::run_conv2d_context(%x, %c)

    These three are what every runtime since PyTorch 1.13 has; conv1d and others stay ``aten``. The form of the
    arguments is that of ``torch/csrc/jit/passes/vulkan_rewrite.cpp``.
    """

    name = "insert_prepack"

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Rewrite every layer whose weights are known."""
        changed = False
        for node in graph.walk():
            rule = _RULES.get(node.qualified_op)
            if rule is None:
                continue
            reason = _refusal(node)
            if reason:
                notes.refused(node, f"not packed: {reason}")
            else:
                notes.done(node, "its weights are packed ahead of time")
                rule(graph, node)
                changed = True
        return changed


def _refusal(node: Node) -> str:
    weight, bias = node.inputs[1:3]
    if not is_constant_tensor(weight) or not bias.is_constant:
        return "its weight or bias is not constant"
    if weight.constant.dtype != torch.float32:
        return f"its weight is {str(weight.constant.dtype).removeprefix('torch.')}, and contexts hold float32"
    if node.op == "aten::linear" and weight.constant.dim() != 2:
        return "its weight is not a matrix"
    if not all(value.is_constant for value in node.inputs[3:]):
        return "its stride, padding, dilation or groups are not constant"
    return ""


def _pack_conv2d(graph: Graph, node: Node) -> None:
    none = graph.constant(None)
    _pack(graph, node, "conv2d", Conv2dPackedContext, [*node.inputs[1:], none, none])


def _pack_conv_transpose2d(graph: Graph, node: Node) -> None:
    names = ("stride", "padding", "output_padding", "dilation", "groups")
    none = graph.constant(None)
    settings = [argument(node, name) for name in names]
    _pack(graph, node, "tconv2d", Conv2dPackedContext, [*node.inputs[1:3], *settings, none, none])


def _pack_linear(graph: Graph, node: Node) -> None:
    weight = node.inputs[1]
    transposed = graph.constant(weight.constant.t(), name=f"{weight.name}.t")
    _pack(graph, node, "linear", LinearPackedContext, [transposed, node.inputs[2]])


def _pack(graph: Graph, node: Node, kind: str, context: type[PackedContext], inputs: Sequence[Value]) -> None:
    packed = insert_node(
        graph, node, f"vulkan_prepack::create_{kind}_context", inputs, type=ClassType(context.qualified_name)
    )
    replace_node(graph, node, f"vulkan_prepack::run_{kind}_context", [node.inputs[0], packed])


_RULES: dict[str, Callable[[Graph, Node], None]] = {
    "aten::conv2d": _pack_conv2d,
    "aten::conv_transpose2d.input": _pack_conv_transpose2d,
    "aten::linear": _pack_linear,
}
