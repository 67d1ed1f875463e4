"""Losses that torch has no parts for, or whose parts look at elements."""

from __future__ import annotations

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.refusals import unless
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes

_MEAN, _SUM = 1, 2
"""Of ``at::Reduction``; 0 is none."""


def _reduced(build: NodeBuilder, loss: Value, reduction: int) -> Value:
    if reduction == _MEAN:
        return build("aten::mean", loss)
    return build("aten::sum", loss) if reduction == _SUM else loss


@decomposes("aten::multilabel_margin_loss", "aten::multilabel_margin_loss_forward")
def multilabel_margin(build: NodeBuilder, node: Node) -> Value | tuple[Value, Value] | None:
    """How far each class of a row's labels, which end with -1, is from being one above all others."""
    x, target = node["self"], node["target"]
    if x.dtype != torch.float32 or x.rank == 0 or x.numel == 0:
        return None
    sizes = [1] * (2 - x.rank) + list(x.sizes)
    rows, labels = (build("aten::reshape", value, sizes) for value in (x, target))
    ended = build("aten::cumsum", build("aten::lt.Scalar", labels, 0), 1)
    is_label = build("aten::eq.Scalar", ended, 0)
    places = build("aten::mul.Tensor", labels, build("aten::to.dtype", is_label, torch.int64))
    counts = build("aten::zeros_like", rows)
    counts = build("aten::scatter_add", counts, 1, places, build("aten::to.dtype", is_label, torch.float32))
    is_target = build("aten::gt.Scalar", counts, 0.0)
    chosen = build("aten::gather", rows, 1, places)
    margins = build("aten::sub.Tensor", build("aten::unsqueeze", rows, 1), build("aten::unsqueeze", chosen, 2))
    margins = build("aten::relu", build("aten::add.Scalar", margins, 1.0))
    others = build("aten::unsqueeze", build("aten::logical_not", is_target), 1)
    counted = build("aten::logical_and", build("aten::unsqueeze", is_label, 2), others)
    margins = build("aten::mul.Tensor", margins, build("aten::to.dtype", counted, torch.float32))
    loss = build("aten::div.Scalar", build("aten::sum.dim_IntList", margins, [1, 2]), float(sizes[1]))
    loss = loss if node["reduction"] == 0 else _reduced(build, loss, node["reduction"])
    loss = build("aten::reshape", loss, list(node.outputs[0].sizes))
    if len(node.outputs) == 1:
        return loss
    flags = build("aten::to.dtype", is_target, node.outputs[1].dtype)
    return loss, build("aten::reshape", flags, list(node.outputs[1].sizes))


@decomposes("aten::binary_cross_entropy")
def binary_cross_entropy(build: NodeBuilder, node: Node) -> Value | None:
    """``-t log(x) - (1 - t) log(1 - x)``, where no logarithm is below -100.

    Chances outside of zero to one are an error: then zero is added from a place that there is not.
    """
    x, target = node["self"], node["target"]
    if x.dtype != torch.float32 or x.numel == 0:
        return None
    low = build("aten::clamp_min", build("aten::log", x), -100.0)
    high = build("aten::clamp_min", build("aten::log1p", build("aten::neg", x)), -100.0)
    rest = build("aten::sub.Scalar", target, 1.0)
    loss = build("aten::sub.Tensor", build("aten::mul.Tensor", rest, high), build("aten::mul.Tensor", target, low))
    loss = loss if node["weight"] is None else build("aten::mul.Tensor", loss, node["weight"])
    inside = build("aten::logical_and", build("aten::ge.Scalar", x, 0.0), build("aten::le.Scalar", x, 1.0))
    return unless(build, build("aten::logical_not", inside), _reduced(build, loss, node["reduction"]))
