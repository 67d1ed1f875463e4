"""Operators that take elements by index, and that put some into a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mobopt.ir.dimensions import Dimension
from mobopt.ir.types import TensorType
from mobopt.ops.shapes.rules import INDICES, PLAIN, axis, broadcast, equal, is_same, require, shape_rule, view_rule
from mobopt.ops.shapes.views import replaced, slice_length, with_sizes


@shape_rule("aten::embedding")
def embedding(weight: TensorType, indices: TensorType, *_: Any) -> TensorType:
    """A row for each index."""
    require(weight.rank == 2 and indices.dtype in INDICES and weight.dtype in PLAIN and weight.sizes[0] > 0)
    return with_sizes(weight, (*indices.sizes, weight.sizes[1]))


@shape_rule("aten::index_select")
def index_select(x: TensorType, dim: int, index: TensorType) -> TensorType:
    """Entries of a dimension."""
    require(index.dtype in INDICES and index.rank <= 1)
    require(x.sizes)
    place = axis(dim, x.rank)
    require(x.sizes[place] > 0)
    return with_sizes(x, replaced(x.sizes, place, index.sizes[0] if index.sizes else 1))


@shape_rule("aten::gather")
def gather(x: TensorType, dim: int, index: TensorType, sparse: bool) -> TensorType:
    """An element for each index, which says where it lies along a dimension."""
    require(index.dtype == torch.int64 and x.rank == index.rank and x.dtype in PLAIN)
    place = axis(dim, x.rank)
    require(not x.sizes or x.sizes[place] > 0)
    for position, (size, taken) in enumerate(zip(x.sizes, index.sizes, strict=True)):
        require(position == place or is_same(size, taken) or taken <= size)
    return with_sizes(x, index.sizes)


@shape_rule("aten::take")
def take(x: TensorType, index: TensorType) -> TensorType:
    """An element for each index into all."""
    require(index.dtype == torch.int64 and x.numel > 0)
    return with_sizes(x, index.sizes)


@view_rule("aten::index.Tensor")
def index(x: TensorType, indices: Sequence[TensorType | None]) -> TensorType:
    """Indices of one or more dimensions, broadcast; no masks, whose result's size depends on elements."""
    used = [place for place, item in enumerate(indices) if item is not None]
    tensors = [item for item in indices if item is not None]
    require(used and len(indices) <= x.rank and all(item.dtype in INDICES for item in tensors))
    require(all(x.sizes[place] > 0 for place in used))
    taken = broadcast(*(item.sizes for item in tensors))
    rest = [size for place, size in enumerate(x.sizes) if place not in used]
    first = used[0] if used == list(range(used[0], used[-1] + 1)) else 0
    return with_sizes(x, (*rest[:first], *taken, *rest[first:]))


@shape_rule("aten::scatter.src", "aten::scatter.value", "aten::scatter_add", "aten::scatter_reduce.two")
def scattered(x: TensorType, dim: int, index: TensorType, value: Any, *_: Any) -> TensorType:
    """As the operand, with other elements at some places, of which there are no more than of the operand's."""
    place = axis(dim, x.rank)
    require(index.dtype == torch.int64 and index.rank == x.rank and x.dtype in PLAIN)
    limits = [(taken, size) for at, (taken, size) in enumerate(zip(index.sizes, x.sizes, strict=True)) if at != place]
    if isinstance(value, TensorType):
        require(value.dtype == x.dtype and value.rank == x.rank)
        limits += zip(index.sizes, value.sizes, strict=True)
    for taken, limit in limits:
        require(is_same(taken, limit) or taken <= limit)
    return x


@shape_rule("aten::index_fill.int_Scalar")
def rows_filled(x: TensorType, dim: int, index: TensorType, value: Any) -> TensorType:
    """As the operand, with a number in some rows."""
    axis(dim, x.rank)
    require(index.dtype == torch.int64 and index.rank <= 1 and x.dtype in PLAIN)
    return x


@shape_rule("aten::index_add", "aten::index_copy")
def rows_put(x: TensorType, dim: int, index: TensorType, source: TensorType, *_: Any) -> TensorType:
    """As the operand, with other rows at some places."""
    place = axis(dim, x.rank)
    require(x.sizes and index.dtype == torch.int64 and index.rank == 1 and source.dtype == x.dtype)
    require(equal(source.sizes, replaced(x.sizes, place, index.sizes[0])))
    return x


@shape_rule("aten::index_put")
def index_put(x: TensorType, indices: Sequence[TensorType | None], values: TensorType, accumulate: bool) -> TensorType:
    """As the operand, with other elements at some places."""
    tensors = [item for item in indices if item is not None]
    require(tensors and values.dtype == x.dtype and all(item.dtype in INDICES for item in tensors))
    made: TensorType = index(x, indices)
    require(equal(broadcast(values.sizes, made.sizes), made.sizes))
    return x


@shape_rule("aten::slice_scatter")
def slice_scatter(
    x: TensorType, source: TensorType, dim: int, start: Dimension | None, end: Dimension | None, step: int
) -> TensorType:
    """As the operand, with another slice."""
    require(x.sizes and step > 0 and source.dtype == x.dtype)
    place = axis(dim, x.rank)
    require(equal(source.sizes, replaced(x.sizes, place, slice_length(x.sizes[place], start, end, step))))
    return x


@shape_rule("aten::select_scatter")
def select_scatter(x: TensorType, source: TensorType, dim: int, index: Dimension) -> TensorType:
    """As the operand, with another entry of a dimension."""
    require(x.sizes and source.dtype == x.dtype)
    place = axis(dim, x.rank)
    require(-index <= x.sizes[place] if index < 0 else index < x.sizes[place])
    require(equal(source.sizes, (*x.sizes[:place], *x.sizes[place + 1 :])))
    return x


@shape_rule("aten::one_hot")
def one_hot(classes: TensorType, count: int) -> TensorType:
    """One more dimension; the number of classes is known."""
    require(classes.dtype == torch.int64 and count > 0)
    return with_sizes(classes, (*classes.sizes, count))


@shape_rule("aten::bucketize.Tensor")
def bucketize(x: TensorType, boundaries: TensorType, out_int32: bool, right: bool) -> TensorType:
    """The bucket of each element."""
    require(boundaries.rank == 1 and x.dtype in PLAIN)
    return TensorType(torch.int32 if out_int32 else torch.int64, x.sizes)
