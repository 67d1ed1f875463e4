"""Folds the rounding of what a norm or a softmax gives into the dispatch that computes it."""

from __future__ import annotations

from collections.abc import Callable, Container

import torch

from mobopt.ir import Graph, Node
from mobopt.ir.rewriting import enclose, made_only_for
from mobopt.ops.fake_quantize import FAKE_QUANTIZE
from mobopt.runtimes.vulkan.kernels.activation import activation_of
from mobopt.runtimes.vulkan.kernels.result_rounding import ROUNDED
from mobopt.runtimes.vulkan.lowerings.normalization import group_norm, layer_norm, rms_norm
from mobopt.runtimes.vulkan.lowerings.registry import lowering_of, why_unsupported
from mobopt.runtimes.vulkan.lowerings.softmax import softmax

_ROUND = (layer_norm, group_norm, rms_norm, softmax)


def fold_roundings(
    graph: Graph, on_host: Container[Node] = (), is_apart: Callable[[Node], bool] = lambda node: False
) -> None:
    """Let norms and softmax round what they compute, where nothing else reads it.

    Given:
        %n : Float(1, 5, 16) = aten::layer_norm(%x, [16], %gain, %shift, 1e-05, True)
        %y : Float(1, 5, 16) = mobopt::fake_quantize(%n, 0.05, -120, 135, None)
    Result:
        %y : Float(1, 5, 16) = mobopt::rounded()
          block0():
            %n : Float(1, 5, 16) = aten::layer_norm(%x, [16], %gain, %shift, 1e-05, True)
            %z : Float(1, 5, 16) = mobopt::fake_quantize(%n, 0.05, -120, 135, None)
            -> (%z)

    Nodes of ``on_host``, and those of which ``is_apart`` is true, stay as they are.
    """
    for node in graph.block.nodes:
        if node.qualified_op != FAKE_QUANTIZE or node in on_host or is_apart(node) or activation_of(node) is None:
            continue
        maker = made_only_for(node.args[0], node)
        if maker is not None and maker not in on_host and not is_apart(maker) and _rounds(maker):
            enclose([maker, node], ROUNDED)


def _rounds(node: Node) -> bool:
    lowering = lowering_of(node.qualified_op)
    takes = lowering is not None and lowering.function in _ROUND and len(node.outputs) == 1
    return takes and node.output.dtype == torch.float32 and why_unsupported(node) is None
