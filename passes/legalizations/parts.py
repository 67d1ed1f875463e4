"""Tensors that are larger than an image may be, in parts that are not.

A tensor over the limit can't be on the GPU, and its parts can. A rewrite of what makes it leaves ``aten::cat`` of
parts; those of its readers read the parts, so that nothing is joined, on the CPU, but what somebody needs whole.
Whether parts on the GPU are faster than the whole on the CPU is asked of :mod:`mobopt.ops.costs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mobopt.ir import Node, Value
from mobopt.ops import costs
from mobopt.ops.costs import CPU, DOWNLOAD, UPLOAD, Cost, Processor
from mobopt.ops.effects import listed_items
from mobopt.ops.targets.table import rows_for
from mobopt.ops.targets.verdicts import image_misfit
from mobopt.passes.legalizations.building import plus, slice_of
from mobopt.passes.legalizations.site import Refused, Site

MOST_PARTS = 64
"""More would be slower than the CPU."""
_STEP = 16
"""Parts begin at multiples, so that pooling and strides find their borders at whole windows."""


@dataclass(frozen=True)
class Parts:
    """A tensor along one dimension."""

    values: tuple[Value, ...]
    dim: int
    bounds: tuple[int, ...]
    """Where each begins, and the end."""


def fits(site: Site, x: Value) -> bool:
    """Whether a tensor can be on the GPU."""
    return image_misfit(site.facts(x), site.limit) is None


def parts_of(site: Site, x: Value) -> Parts | None:
    """The parts that a tensor over the limit was joined of; None for others."""
    node = x.producer
    if node is None or node.op != "aten::cat" or not node.inputs[1].is_constant or fits(site, x):
        return None
    values = listed_items(node.inputs[0])
    if not values or any(site.facts(value).known_sizes is None for value in values):
        return None
    dim = node.inputs[1].constant % site.rank(x)
    bounds = [0]
    for value in values:
        bounds.append(bounds[-1] + site.sizes(value)[dim])
    return Parts(tuple(values), dim, tuple(bounds))


def cut(site: Site, x: Value, dim: int, start: int, end: int) -> Value:
    """Elements ``start`` to ``end`` along a dimension, of the parts where there are some."""
    key = x, dim, start, end
    if key not in site.cuts:
        site.cuts[key] = _cut(site, x, dim, start, end)
    return site.cuts[key]


def _cut(site: Site, x: Value, dim: int, start: int, end: int) -> Value:
    sizes = site.sizes(x)
    if (start, end) == (0, sizes[dim]):
        return x
    if x.is_constant:
        return site.graph.constant(x.constant.narrow(dim, start, end - start).contiguous())
    parts = parts_of(site, x)
    if parts is None:
        return slice_of(site, x, dim, start, end)
    if parts.dim != dim:
        return join(site, [cut(site, part, dim, start, end) for part in parts.values], parts.dim)
    pieces = [
        cut(site, part, dim, max(start, low) - low, min(end, high) - low)
        for part, (low, high) in zip(parts.values, pairwise(parts.bounds), strict=True)
        if low < end and start < high
    ]
    return join(site, pieces, dim)


def join(site: Site, parts: Sequence[Value], dim: int) -> Value:
    """Tensors one after the other."""
    if len(parts) == 1:
        return parts[0]
    joined: Value = site.op("aten::cat", list(parts), dim)
    return joined


def in_blocks(
    site: Site,
    operands: Sequence[Value],
    outer: Sequence[int],
    inner: Sequence[int],
    dim: int,
    block: Callable[[range, range], Value],
) -> Value:
    """A sum of products, in parts of its results, each the sum of its parts of what is summed over.

    Args:
        site: what is to be divided.
        operands: what it reads that is computed.
        outer: where parts of the results begin, and the end.
        inner: the same of what is summed over.
        dim: of the result, along which its parts are joined.
        block: makes the share of an inner part in an outer one.

    Raises:
        Refused: there is nothing to divide, or the whole on the CPU costs less.
    """
    ways, terms = len(outer) - 1, len(inner) - 1
    if ways * terms == 1:
        raise Refused("its rows, columns and inner dimension fit; its samples are too many")
    check_worth(site, operands, ways * (2 * terms - 1), ways * terms)
    joined = []
    for low, high in pairwise(outer):
        total: Value | None = None
        for start, end in pairwise(inner):
            term = block(range(low, high), range(start, end))
            total = term if total is None else plus(site, total, term)
        assert total is not None
        joined.append(total)
    return join(site, joined, dim)


def with_size(sizes: Sequence[int], dim: int, size: int) -> list[int]:
    """Sizes with another one along a dimension."""
    return [*sizes[:dim], size, *sizes[dim + 1 :]]


def even_bounds(size: int, most: int) -> list[int]:
    """Where parts of about the same size, at most ``most``, begin, and the end."""
    count = -(-size // most)
    step = -(-size // count)
    step = min(-(-step // _STEP) * _STEP, most)
    return [*range(0, size, step), size]


def side_over(site: Site, *tensors: Value) -> int:
    """The last dimension, counted from behind, along which one of some tensors is too wide or too high.

    Raises:
        Refused: none is; they have too many channels or samples.
    """
    for dim in (-1, -2):
        if any(len(site.sizes(x)) >= -dim and site.sizes(x)[dim] > site.limit for x in tensors):
            return dim
    raise Refused("its channels or samples are too many, and only rows and columns are divided")


def check_worth(site: Site, operands: Sequence[Value], operators: int, parts: int) -> None:
    """Say in the notes what parts cost, by the model.

    Args:
        site: what is to be divided.
        operands: what it reads that is computed.
        operators: how many take its place.
        parts: how many parts are computed.

    Raises:
        Refused: the whole on the CPU costs less.
    """
    if parts > MOST_PARTS:
        raise Refused(f"it would have {parts} parts")
    whole, result = site.cost(), site.node.output
    in_parts = Cost(operators, whole.multiply_adds, whole.bytes).on(costs.gpu(site.runtime))
    on_cpu = whole.on(CPU)
    for x in operands:
        if is_on_gpu(site, x):
            on_cpu += _moving(site, x, DOWNLOAD)
        else:
            in_parts += _moving(site, x, UPLOAD, parts)
    if fits(site, result):
        on_cpu += _moving(site, result, UPLOAD)
    elif not all(_goes_on(user) for user, _ in result.uses):
        in_parts += _moving(site, result, DOWNLOAD, parts)
    if in_parts >= on_cpu:
        raise Refused(
            f"{parts} parts on the GPU would take about {in_parts:.0f} us by the cost model, the CPU {on_cpu:.0f} us"
        )
    site.remark = f"{parts} parts, about {in_parts:.0f} us by the cost model; the CPU would take {on_cpu:.0f} us"


def is_on_gpu(site: Site, x: Value) -> bool:
    """Whether a tensor, or every part of it, can be on the GPU."""
    parts = parts_of(site, x)
    return fits(site, x) if parts is None else all(is_on_gpu(site, part) for part in parts.values)


def _moving(site: Site, x: Value, way: Processor, count: int = 1) -> float:
    """Microseconds of moving a tensor, in so many transfers."""
    parts = parts_of(site, x)
    count = len(parts.values) if parts is not None else count
    return Cost(count, 0, 4 * math.prod(site.sizes(x))).on(way)


def _goes_on(node: Node) -> bool:
    """Whether a reader of a tensor over the limit may read its parts."""
    return any(row.over_limit for row in rows_for("vulkan").get(node.qualified_op, ()))
