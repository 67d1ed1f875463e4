"""Products of matrices with rows, columns or an inner dimension over the limit of images, in parts."""

from __future__ import annotations

import math
from itertools import pairwise

from mobopt.ir import Value
from mobopt.passes.legalizations.building import plus, reshaped, slice_of, weight_of
from mobopt.passes.legalizations.parts import check_worth, cut, even_bounds, in_blocks, join, parts_of
from mobopt.passes.legalizations.site import Refused, Site, legalizes

_IMAGE_OPS = ("aten::flatten", "aten::reshape", "aten::view")
_FOUR = 4


@legalizes("rows_in_parts", level="full")
def rows_in_parts(site: Site) -> Value:
    """A product for each part of the rows, joined."""
    left = site.node.inputs[0]
    dim = site.rank(left) - 2
    if dim < 0:
        raise Refused("it has no rows")
    bounds = _bounds(site, left, dim)
    check_worth(site, _computed(site), 2 * (len(bounds) - 1), len(bounds) - 1)
    made = site.sizes(site.node.output)
    parts = []
    for start, end in pairwise(bounds):
        parts.append(site.op(site.node.qualified_op, cut(site, left, dim, start, end), *site.node.inputs[1:]))
    return join(site, parts, len(made) - 2)


@legalizes("linear_in_parts", level="safe")
def linear_in_parts(site: Site) -> Value:
    """A linear layer for each part of the outputs and inputs: the former are joined, the latter summed."""
    x, bias, weight = site.arg("input"), site.const("bias"), weight_of(site)
    rank = site.rank(x)

    def part(columns: range, inner: range) -> Value:
        has_bias = bias is not None and inner.start == 0
        own_bias = bias[columns.start : columns.stop].clone() if has_bias else None
        own = weight[columns.start : columns.stop, inner.start : inner.stop].contiguous()
        result: Value = site.op("aten::linear", cut(site, x, rank - 1, inner.start, inner.stop), own, own_bias)
        return result

    return in_blocks(
        site, [x], _even(site, weight.shape[0]), _bounds(site, x, rank - 1), site.rank(site.node.output) - 1, part
    )


@legalizes("product_in_parts", level="full")
def product_in_parts(site: Site) -> Value:
    """A product for each part of the columns and the inner dimension: the former are joined, the latter summed."""
    left, right = site.node.inputs[:2]
    if min(site.rank(left), site.rank(right)) < 2:
        raise Refused("it multiplies a vector")
    last = site.rank(right) - 1

    def part(columns: range, inner: range) -> Value:
        rows = cut(site, left, site.rank(left) - 1, inner.start, inner.stop)
        own = cut(site, cut(site, right, last, columns.start, columns.stop), last - 1, inner.start, inner.stop)
        result: Value = site.op(site.node.qualified_op, rows, own)
        return result

    inner = _bounds(site, left, site.rank(left) - 1)
    if inner[1:-1] == [] and site.sizes(right)[last - 1] > site.limit:
        inner = _bounds(site, right, last - 1)
    return in_blocks(site, _computed(site), _bounds(site, right, last), inner, site.rank(site.node.output) - 1, part)


@legalizes("linear_of_image", level="full")
def linear_of_image(site: Site) -> Value:
    """Convolutions whose kernels are as large as the image that was flattened for the layer, summed and joined."""
    x, bias, weight = site.arg("input"), site.const("bias"), weight_of(site)
    node = x.producer
    if node is None or node.op not in _IMAGE_OPS:
        raise Refused("its input is no flattened image")
    image = node.inputs[0]
    sizes = site.sizes(image)
    if len(sizes) != _FOUR or sizes[0] != 1 or math.prod(site.sizes(x)[:-1]) != 1:
        raise Refused("its input is no flattened image of one sample")
    _, channels, height, width = sizes
    kernels = weight.reshape(-1, channels, height, width)
    # Packed, a weight is an image of kernel width times inputs by kernel height times outputs in fours.
    inner = even_bounds(channels, max(site.limit // width // _FOUR * _FOUR, 1))
    columns = even_bounds(weight.shape[0], max(site.limit // height, 1) * _FOUR)

    def part(rows: range, channel: range) -> Value:
        region = image if len(channel) == channels else slice_of(site, image, 1, channel.start, channel.stop)
        own = kernels[rows.start : rows.stop, channel.start : channel.stop].contiguous()
        has_bias = bias is not None and channel.start == 0
        own_bias = bias[rows.start : rows.stop].clone() if has_bias else None
        return site.op("aten::conv2d", region, own, own_bias, [1, 1], [0, 0], [1, 1], 1)  # type: ignore[no-any-return]

    ways, terms = len(columns) - 1, len(inner) - 1
    check_worth(site, [image], ways * (2 * terms) + terms, ways * terms)
    made = site.sizes(site.node.output)
    joined = []
    for low, high in pairwise(columns):
        total = part(range(low, high), range(inner[0], inner[1]))
        for start, end in pairwise(inner[1:]):
            total = plus(site, total, part(range(low, high), range(start, end)))
        joined.append(reshaped(site, total, [1, high - low]))
    return join(site, [_in_rank(site, item, len(made)) for item in joined], len(made) - 1)


def _in_rank(site: Site, row: Value, rank: int) -> Value:
    """A row of features with as many dimensions as the layer's result."""
    if rank == 2:
        return row
    features = site.sizes(row)[1]
    return reshaped(site, row, [*[1] * (rank - 1), features])


def _bounds(site: Site, x: Value, dim: int) -> list[int]:
    """Where parts along a dimension begin: those that there are, or even ones."""
    parts = parts_of(site, x)
    if parts is not None and parts.dim == dim:
        return list(parts.bounds)
    return _even(site, site.sizes(x)[dim])


def _even(site: Site, size: int) -> list[int]:
    return even_bounds(size, site.limit)


def _computed(site: Site) -> list[Value]:
    """Operands that are not in the file."""
    return [value for value in site.node.inputs[:2] if not value.is_constant]
