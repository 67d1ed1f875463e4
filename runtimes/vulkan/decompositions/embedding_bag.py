"""Sums, means and maxima of rows of a table, bag by bag."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes


class Mode(IntEnum):
    """What becomes of the rows of a bag."""

    SUM = 0
    MEAN = 1
    MAX = 2


@decomposes(
    "aten::embedding_bag",
    "aten::embedding_bag.padding_idx",
    "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only",
)
def embedding_bag(build: NodeBuilder, node: Node) -> Sequence[Value | None] | None:
    """Bags whose bounds are known become rows of a matrix of indices, the shorter ones padded; others are left.

    Nothing else than the first result is computed: the others are for training.
    """
    weight, indices, offsets, _, mode, _, factors, has_last, padding = (*node.args, None)[:9]
    if offsets.elements is None or indices.rank != 1 or any(value.is_used for value in node.outputs[1:]):
        return None
    starts = offsets.elements.tolist()
    ends = [*starts[1:], indices.numel][: len(starts)]
    lengths = [end - start for start, end in zip(starts, ends, strict=True)][: len(starts) - bool(has_last)]
    length = max(lengths, default=0)
    if length == 0 or min(lengths) < 0 or starts[0] != 0 or sum(lengths) != indices.numel:
        return None
    bags = (len(lengths), length)
    if min(lengths) == length:
        unused = None
        indices, factors = (value and build("aten::reshape", value, list(bags)) for value in (indices, factors))
    else:
        steps = torch.arange(length)
        places = torch.tensor(starts[: len(lengths)])[:, None] + steps
        unused = Value.of_elements((steps >= torch.tensor(lengths)[:, None])[..., None])
        chosen = Value.of_elements(places.clamp(max=indices.numel - 1))
        indices, factors = (value and build("aten::index.Tensor", value, [chosen]) for value in (indices, factors))
    rows = build("aten::embedding", weight, indices)
    if factors is not None:
        rows = build("aten::mul.Tensor", rows, build("aten::unsqueeze", factors, -1))
    if padding is not None and padding != -1:
        is_padding = build("aten::unsqueeze", build("aten::eq.Scalar", indices, padding % weight.sizes[0]), -1)
        unused = is_padding if unused is None else build("aten::logical_or", unused, is_padding)
    return (_reduced(build, rows, unused, Mode(mode)), None, None, None)


def _reduced(build: NodeBuilder, rows: Value, unused: Value | None, mode: Mode) -> Value:
    """The rows of each bag as one, without those that are ``unused``; of an empty bag, zeros."""
    if mode == Mode.MAX:
        if unused is None:
            return build("aten::amax", rows, [1])
        largest = build("aten::amax", build("aten::masked_fill.Scalar", rows, unused, float("-inf")), [1])
        return build("aten::masked_fill.Scalar", largest, build("aten::all.dim", unused, 1), 0.0)
    if unused is None:
        return build("aten::mean.dim" if mode == Mode.MEAN else "aten::sum.dim_IntList", rows, [1])
    total = build("aten::sum.dim_IntList", build("aten::masked_fill.Scalar", rows, unused, 0.0), [1])
    if mode == Mode.SUM:
        return total
    used = build("aten::to.dtype", build("aten::logical_not", unused), rows.dtype)
    count = build("aten::clamp_min", build("aten::sum.dim_IntList", used, [1]), 1)
    return build("aten::div.Tensor", total, count)
