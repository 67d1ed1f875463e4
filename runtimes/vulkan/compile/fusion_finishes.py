"""Folds what is done to each number that a norm or a softmax gives into the dispatch that computes it."""

from __future__ import annotations

from collections.abc import Callable, Container

import torch

from mobopt.ir import Graph, Node
from mobopt.ir.rewriting import dissolve, enclose, made_only_for
from mobopt.runtimes.vulkan.kernels.activation import activation_of, joined_activation
from mobopt.runtimes.vulkan.kernels.result_finish import FINISHED
from mobopt.runtimes.vulkan.lowerings.normalization import group_norm, instance_norm, layer_norm, rms_norm
from mobopt.runtimes.vulkan.lowerings.registry import lowering_of, why_unsupported
from mobopt.runtimes.vulkan.lowerings.softmax import softmax

_NORMS = (layer_norm, group_norm, instance_norm, rms_norm)


def fold_finishes(
    graph: Graph, on_host: Container[Node] = (), is_apart: Callable[[Node], bool] = lambda node: False
) -> None:
    """Let norms apply the activation that follows, as SiLU in diffusion models, and norms and softmax round what they
    compute, where nothing else reads it.

    Given:
        %n : Float(1, 6, 5, 7) = aten::group_norm(%x, 3, %gain, %shift, 1e-05, True)
        %a : Float(1, 6, 5, 7) = aten::silu(%n)
        %y : Float(1, 6, 5, 7) = mobopt::fake_quantize(%a, 0.05, -120, 135, None)
    Result:
        %y : Float(1, 6, 5, 7) = mobopt::finished()
          block0():
            %n : Float(1, 6, 5, 7) = aten::group_norm(%x, 3, %gain, %shift, 1e-05, True)
            %a : Float(1, 6, 5, 7) = aten::silu(%n)
            %z : Float(1, 6, 5, 7) = mobopt::fake_quantize(%a, 0.05, -120, 135, None)
            -> (%z)

    Nodes of ``on_host``, and those of which ``is_apart`` is true, stay as they are.
    """
    for node in graph.block.nodes:
        if activation_of(node) is None or node in on_host or is_apart(node):
            continue
        maker = made_only_for(node.args[0], node)
        if maker is None or maker in on_host or is_apart(maker):
            continue
        parts = list(maker.blocks[0].nodes) if maker.op == FINISHED else [maker]
        if _takes(parts[0], [*parts[1:], node]):
            enclose([*(dissolve(maker) if maker.op == FINISHED else parts), node], FINISHED)


def _takes(node: Node, steps: list[Node]) -> bool:
    """Whether the dispatch of a norm or a softmax can do some steps, which follow."""
    lowering = lowering_of(node.qualified_op)
    if lowering is None or len(node.outputs) != 1 or node.output.dtype != torch.float32:
        return False
    finish = joined_activation(steps)
    if finish is None or finish.is_gate or why_unsupported(node) is not None:
        return False
    if lowering.function in _NORMS:
        return lowering.function is not instance_norm or node["use_input_stats"]
    return lowering.function is softmax and finish.only_rounds
