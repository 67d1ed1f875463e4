"""Batch norms of models in halves become part of the layers before them.

The passes fold those of float32 models; they leave models in halves alone, whose folded weights would be rounded to
halves twice, and whose biases once. In a line that was widened nothing is rounded but what lies as halves in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import made_only_for, replace_call
from mobopt.ir.schemas import argument_names
from mobopt.ops.folding import fold_batch_norm
from mobopt.ops.records import Like, Trait, has_trait, record_of
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore


def fold_batch_norms(graph: Graph, constants: ConstantStore) -> None:
    """Let layers do what batch norms after them do.

    Given:
        %c : Float(1, 8, 5, 7) = aten::conv2d(%x, %w, None, [1, 1], [0, 0], [1, 1], 1)
        %y : Float(1, 8, 5, 7) = aten::batch_norm(%c, %gamma, %beta, %mean, %variance, False, 0.1, 1e-05, True)
    Result:
        %y : Float(1, 8, 5, 7) = aten::conv2d(%x, %folded_w, %folded_b, [1, 1], [0, 0], [1, 1], 1)

    A weight that other layers read too stays one.
    """
    nodes = list(graph.block.nodes)
    readers = Counter(id(value.elements) for node in nodes for value in node.inputs if value.elements is not None)
    for node in nodes:
        if node.op == "aten::batch_norm" and not node["training"] and node.output.dtype == torch.float32:
            layer = made_only_for(node.args[0], node)
            if layer is not None and _takes_norm(layer) and readers[id(layer["weight"].elements)] == 1:
                _fold(layer, node, constants)


def _takes_norm(layer: Node) -> bool:
    """Whether channels of a layer's result are those of a batch norm, and its parameters are known."""
    names = argument_names(layer.qualified_op)
    if not {"weight", "bias"} <= set(names) or layer["weight"].elements is None:
        return False
    if layer["bias"] is not None and layer["bias"].elements is None:
        return False
    if layer.op == "aten::linear":
        return layer.output.rank == 2 and layer["weight"].rank == 2
    return has_trait(layer.qualified_op, Trait.CONVOLUTION) and layer.output.rank == layer["weight"].rank


def _fold(layer: Node, norm: Node, constants: ConstantStore) -> None:
    values = [layer["weight"], layer["bias"], norm["weight"], norm["bias"], norm["running_mean"], norm["running_var"]]
    if None in values[4:] or any(value is not None and value.elements is None for value in values):
        return
    names = argument_names(layer.qualified_op)
    given = dict(zip(names, layer.args, strict=True))
    is_transposed = record_of(layer.qualified_op).channels == Like.TRANSPOSED_WEIGHT
    options = {
        "eps": norm["eps"],
        "transposed": bool(given.get("transposed", is_transposed)),
        "groups": int(given.get("groups", 1)),
    }
    made = _folded([None if value is None else value.constant for value in values], options, constants)
    given |= zip(("weight", "bias"), map(Value.of_elements, made), strict=True)
    origin = layer.origin | norm.origin
    whole = replace_call(layer, layer.qualified_op, [given[name] for name in names])
    whole.origin = origin
    whole.output.name, norm.output.name = norm.output.name, ""
    norm.output.replace_all_uses_with(whole.output)
    norm.destroy()


def _folded(
    tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any], constants: ConstantStore
) -> list[torch.Tensor]:
    """Weight and bias, in float32, once for all plans."""

    def part(place: int) -> torch.Tensor:
        weight, *others = (None if tensor is None else tensor.detach().float() for tensor in tensors)
        assert weight is not None
        folded: torch.Tensor = fold_batch_norm(weight, *others, **options)[place]  # type: ignore[arg-type]
        return folded

    sources = [tensor for tensor in tensors if tensor is not None]
    kind = ("batch norm", *options.values(), *(tensor is None for tensor in tensors))
    return [constants.derived(sources, (*kind, place), partial(part, place)) for place in range(2)]
