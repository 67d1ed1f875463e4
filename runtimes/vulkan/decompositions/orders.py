"""Operators on the order of elements, as sorting, searching and choosing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes
from mobopt.runtimes.vulkan.lowerings.pointwise_expressions import common_dtype


def _line(build: NodeBuilder, value: Value) -> Value:
    """The tensor, with one dimension if it has none."""
    return value if value.rank else build("aten::reshape", value, [1])


def _of_rank(build: NodeBuilder, value: Value, output: Value) -> Value:
    return value if value.sizes == output.sizes else build("aten::reshape", value, list(output.sizes))


@decomposes("aten::topk")
def topk(build: NodeBuilder, node: Node) -> Sequence[Value]:
    """The first of a stable order; torch leaves open which of equal elements come first."""
    x = _line(build, node["self"])
    found = build.all("aten::sort.stable", x, stable=True, dim=node["dim"], descending=node["largest"])
    firsts = (build("aten::narrow", part, node["dim"], 0, node["k"]) for part in found)
    return [_of_rank(build, part, output) for part, output in zip(firsts, node.outputs, strict=True)]


@decomposes("aten::kthvalue")
def kthvalue(build: NodeBuilder, node: Node) -> Sequence[Value]:
    """An element of a stable order."""
    x = _line(build, node["self"])
    found = build.all("aten::sort.stable", x, stable=True, dim=node["dim"], descending=False)
    chosen = (build("aten::narrow", part, node["dim"], node["k"] - 1, 1) for part in found)
    return [_of_rank(build, part, output) for part, output in zip(chosen, node.outputs, strict=True)]


@decomposes("aten::median.dim", "aten::nanmedian.dim")
def median_along(build: NodeBuilder, node: Node) -> Sequence[Value] | None:
    """The lower one of the middle elements; NaN if there is one, or else of what is not NaN."""
    x = _line(build, node["self"])
    found = _medians(build, x, node["dim"], skips_nan=node.qualified_op.startswith("aten::nan"))
    return [_of_rank(build, part, output) for part, output in zip(found, node.outputs, strict=True)]


@decomposes("aten::median", "aten::nanmedian")
def median(build: NodeBuilder, node: Node) -> Value | None:
    """As :func:`median_along`, of all elements."""
    x: Value = node["self"]
    if x.numel == 0:
        return None
    flat = build("aten::reshape", x, [-1])
    values, _ = _medians(build, flat, 0, skips_nan=node.qualified_op.startswith("aten::nan"))
    return build("aten::reshape", values, [])


def _medians(build: NodeBuilder, x: Value, dim: int, *, skips_nan: bool) -> tuple[Value, Value]:
    """Medians and their places, of size 1 along ``dim``."""
    order = build.all("aten::sort.stable", x, stable=True, dim=dim, descending=False)
    length = x.sizes[dim]
    if not x.dtype.is_floating_point:
        values, places = (build("aten::narrow", part, dim, (length - 1) // 2, 1) for part in order)
        return values, places
    numbers = build("aten::sum.dim_IntList", build("aten::eq.Tensor", x, x), [dim], True)
    if skips_nan:
        last = build("aten::clamp_min", build("aten::sub.Scalar", numbers, 1), 0)
        place = build("aten::floor_divide.Scalar", last, 2)
    else:  # the first NaN stands behind all numbers
        middle = build("aten::full_like", numbers, (length - 1) // 2)
        place = build("aten::where.self", build("aten::lt.Scalar", numbers, length), numbers, middle)
    values, places = (build("aten::gather", part, dim, place) for part in order)
    return values, places


@decomposes("aten::mode")
def mode(build: NodeBuilder, node: Node) -> Sequence[Value]:
    """The end of the first of the longest runs of equal elements in a stable order."""
    x, dim = _line(build, node["self"]), node["dim"]
    values, places = build.all("aten::sort.stable", x, stable=True, dim=dim, descending=False)
    last = build("aten::contiguous", build("aten::transpose.int", values, dim, -1))
    begins = build("aten::transpose.int", build("aten::searchsorted.Tensor", _searched(build, last), last), dim, -1)
    length = x.sizes[dim]
    shape = [length if d == dim % x.rank else 1 for d in range(x.rank)]
    here = Value.of_elements(torch.arange(length).reshape(shape))
    longest = build("aten::argmax", build("aten::sub.Tensor", here, begins), dim, True)
    chosen = (build("aten::gather", part, dim, longest) for part in (values, places))
    return [_of_rank(build, part, output) for part, output in zip(chosen, node.outputs, strict=True)]


@decomposes("aten::cummax", "aten::cummin")
def running_extreme(build: NodeBuilder, node: Node) -> Sequence[Value] | None:
    """Running extremes and the last of their places, in steps that double what an element has seen.

    (W. D. Hillis and G. L. Steele, "Data parallel algorithms", 1986.)
    """
    x, dim = _line(build, node["self"]), node["dim"]
    length = x.sizes[dim]
    if x.numel == 0:
        return None
    shape = [length if d == dim % x.rank else 1 for d in range(x.rank)]
    values, places = x, build("aten::expand", Value.of_elements(torch.arange(length).reshape(shape)), list(x.sizes))
    beats = "aten::ge.Tensor" if node.qualified_op == "aten::cummax" else "aten::le.Tensor"
    for step in (2**bit for bit in range(math.ceil(math.log2(length)))):
        earlier, later = (
            [build("aten::narrow", part, dim, start, length - step) for part in (values, places)] for start in (0, step)
        )
        stays = build(beats, later[0], earlier[0])
        if x.dtype.is_floating_point:
            stays = build("aten::logical_or", stays, build("aten::isnan", later[0]))
        values, places = (
            build(
                "aten::cat",
                [build("aten::narrow", part, dim, 0, step), build("aten::where.self", stays, new, old)],
                dim,
            )
            for part, new, old in zip((values, places), later, earlier, strict=True)
        )
    return [_of_rank(build, part, output) for part, output in zip((values, places), node.outputs, strict=True)]


@decomposes("aten::bucketize.Tensor")
def bucketize(build: NodeBuilder, node: Node) -> Value:
    """A search in one line; one element has no say in the dtype, and wraps around to that of the line."""
    x: Value = node["self"]
    lines: Value = node["boundaries"]
    common = common_dtype(x, lines)
    lines, values = (build("aten::to.dtype", part, common) if part.dtype != common else part for part in (lines, x))
    return build("aten::searchsorted.Tensor", lines, values, out_int32=node["out_int32"], right=node["right"])


@decomposes("aten::searchsorted.Tensor")
def searchsorted(build: NodeBuilder, node: Node) -> Value | None:
    """Of a sequence that another tensor sorts: that sequence sorted."""
    lines, order = node["sorted_sequence"], node["sorter"]
    if order is None:
        return None
    arranged = build("aten::gather", lines, -1, order)
    right = node["right"] or node["side"] == "right"
    return build("aten::searchsorted.Tensor", arranged, node["self"], out_int32=node["out_int32"], right=right)


@decomposes("aten::searchsorted.Scalar", "aten::bucketize.Scalar")
def search_number(build: NodeBuilder, node: Node) -> Value | None:
    """Of one number."""
    lines = node["sorted_sequence"] if "sorted" in node.qualified_op else node["boundaries"]
    if lines.dtype != torch.float32 or (node.op == "aten::searchsorted" and node["sorter"] is not None):
        return None
    value = Value.of_elements(torch.tensor([node["self"]], dtype=lines.dtype))
    right = node["right"] or (node.op == "aten::searchsorted" and node["side"] == "right")
    found = build("aten::searchsorted.Tensor", lines, value, out_int32=node["out_int32"], right=right)
    return build("aten::reshape", found, [])


def _searched(build: NodeBuilder, ordered: Value) -> Value:
    """Sorted lines with infinities for their last elements that are NaN, among which a search would lose its way."""
    if not ordered.dtype.is_floating_point:
        return ordered
    return build("aten::masked_fill.Scalar", ordered, build("aten::isnan", ordered), math.inf)


@decomposes("aten::isin.Tensor_Tensor")
def isin(build: NodeBuilder, node: Node) -> Value | None:
    """Whether what a search finds is the element itself."""
    x, tests = node["elements"], node["test_elements"]
    if x.dtype != tests.dtype or x.numel == 0 or tests.numel == 0:
        return None
    ordered, _ = build.all(
        "aten::sort.stable", build("aten::reshape", tests, [-1]), stable=True, dim=0, descending=False
    )
    place = build("aten::searchsorted.Tensor", _searched(build, ordered), x)
    place = build("aten::clamp_max", place, tests.numel - 1)
    found = build("aten::take", ordered, place)
    return build("aten::ne.Tensor" if node["invert"] else "aten::eq.Tensor", found, x)


@decomposes("aten::take")
def take(build: NodeBuilder, node: Node) -> Value:
    """Elements of all in their row-major order."""
    x, index = node["self"], node["index"]
    return build("aten::index.Tensor", build("aten::reshape", x, [-1]), [index])
