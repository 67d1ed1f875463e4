"""Reductions of segments: rows that lie beside each other, so many as lengths say, or from one offset to the next."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.refusals import unless
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes

_MOST_ELEMENTS = 2**24
"""Elements of the tensor that has the rows of all segments, each with all others blanked out."""


class _Reduction(NamedTuple):
    operator: str
    neutral: float
    """What rows of other segments become."""
    start_with: str
    """Takes in the initial value."""


_REDUCTIONS = {
    "sum": _Reduction("aten::sum.dim_IntList", 0.0, "aten::add.Scalar"),
    "mean": _Reduction("aten::sum.dim_IntList", 0.0, "aten::add.Scalar"),
    "prod": _Reduction("aten::prod.dim_int", 1.0, "aten::mul.Scalar"),
    "max": _Reduction("aten::amax", -math.inf, "aten::clamp_min"),
    "min": _Reduction("aten::amin", math.inf, "aten::clamp_max"),
}


@decomposes("aten::segment_reduce")
def segment_reduce(build: NodeBuilder, node: Node) -> Value | None:
    """(..., rows, *rest) and (..., segments) to (..., segments, *rest)."""
    data, reduce, axis = node["data"], node["reduce"], node["axis"]
    bounds = node["lengths"] if node["lengths"] is not None else node["offsets"]
    if data.dtype != torch.float32 or node["indices"] is not None or bounds is None or bounds.rank != axis + 1:
        return None
    segments, rows, rest = node.output.sizes[axis], data.sizes[axis], data.rank - axis - 1
    if 0 in (data.numel, node.output.numel) or node.output.numel * rows > _MOST_ELEMENTS:
        return None
    starts, ends = _bounds(build, node, bounds, segments, rows)
    places = Value.of_elements(torch.arange(rows))
    is_in = build(
        "aten::logical_and",
        build("aten::ge.Tensor", places, build("aten::unsqueeze", starts, -1)),
        build("aten::lt.Tensor", places, build("aten::unsqueeze", ends, -1)),
    )
    is_in = build("aten::reshape", is_in, [*is_in.sizes, *[1] * rest])
    kind, dim = _REDUCTIONS[reduce], axis + 1
    wide = build("aten::where.ScalarOther", is_in, build("aten::unsqueeze", data, axis), kind.neutral)
    made = build(kind.operator, wide, dim if reduce == "prod" else [dim])
    if node["initial"] is not None:
        made = build(kind.start_with, made, node["initial"])
    return _mean(build, node, made, build("aten::sub.Tensor", ends, starts), rest) if reduce == "mean" else made


def _bounds(build: NodeBuilder, node: Node, bounds: Value, segments: int, rows: int) -> tuple[Value, Value]:
    """The first row of each segment, and the one after its last. Lengths that torch refuses are an index out of
    range."""
    if node["lengths"] is None:
        return build("aten::narrow", bounds, -1, 0, segments), build("aten::narrow", bounds, -1, 1, segments)
    ends = build("aten::cumsum", bounds, -1)
    if not node["unsafe"]:
        total = build("aten::sum.dim_IntList", bounds, [-1])
        is_negative = build("aten::any", build("aten::lt.Scalar", bounds, 0))
        ends = unless(build, build("aten::logical_or", build("aten::ne.Scalar", total, rows), is_negative), ends)
    return build("aten::sub.Tensor", ends, bounds), ends


def _mean(build: NodeBuilder, node: Node, total: Value, lengths: Value, rest: int) -> Value:
    """An empty segment has the initial value, or none at all."""
    lengths = build("aten::reshape", lengths, [*lengths.sizes, *[1] * rest])
    if node["initial"] is not None:
        lengths = build("aten::clamp_min", lengths, 1)
    return build("aten::div.Tensor", total, lengths)
