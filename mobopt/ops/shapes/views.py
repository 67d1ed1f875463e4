"""Operators that look at memory in another way, or may give their operand back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mobopt.ir.dimensions import Dimension, ceil_divide, maximum, minimum
from mobopt.ir.types import TensorType
from mobopt.ops.shapes.rules import (
    PLAIN,
    Sizes,
    axes,
    axis,
    broadcast,
    concrete,
    dtype_of,
    is_minus_one,
    is_same,
    product,
    require,
    view_rule,
)


def with_sizes(x: TensorType, sizes: Sequence[Dimension]) -> TensorType:
    """A tensor of the same dtype."""
    return TensorType(x.dtype, tuple(sizes))


def replaced(sizes: Sizes, dim: int, size: Dimension) -> Sizes:
    """Sizes with another one for a dimension."""
    return (*sizes[:dim], size, *sizes[dim + 1 :])


@view_rule("aten::alias", "aten::detach", "aten::contiguous", "aten::positive", "aten::cpu", "aten::resolve_conj")
def itself(x: TensorType, *_: Any) -> TensorType:
    """As the operand."""
    return x


@view_rule("aten::view", "aten::reshape", "aten::_unsafe_view", "aten::_reshape_alias")
def reshape(x: TensorType, shape: Sequence[Dimension], *_: Any) -> TensorType:
    """The same elements with other sizes, of which one may be -1; ``view`` is taken for ``reshape``."""
    require(not isinstance(shape, int))
    return with_sizes(x, _resolved(x.sizes, shape))


def _resolved(sizes: Sizes, shape: Sequence[Dimension]) -> Sizes:
    unknown = [index for index, size in enumerate(shape) if is_minus_one(size)]
    require(len(unknown) <= 1)
    elements, known = product(sizes), product(size for size in shape if not is_minus_one(size))
    if not unknown:
        require(known == elements)
        return tuple(shape)
    require(known != 0)
    missing = elements // known
    require(missing * known == elements)
    return tuple(missing if is_minus_one(size) else size for size in shape)


@view_rule("aten::view_as", "aten::reshape_as")
def reshape_as(x: TensorType, other: TensorType) -> TensorType:
    """With the sizes of another."""
    require(product(x.sizes) == product(other.sizes))
    return with_sizes(x, other.sizes)


@view_rule("aten::flatten.using_ints")
def flatten(x: TensorType, start: int, end: int) -> TensorType:
    """Several dimensions as one."""
    if not x.sizes:
        return with_sizes(x, (1,))
    first, last = axis(start, x.rank), axis(end, x.rank)
    require(first <= last)
    return with_sizes(x, (*x.sizes[:first], product(x.sizes[first : last + 1]), *x.sizes[last + 1 :]))


@view_rule("aten::unflatten.int")
def unflatten(x: TensorType, dim: int, shape: Sequence[Dimension]) -> TensorType:
    """One dimension as several."""
    require(x.sizes and shape)
    place = axis(dim, x.rank)
    return with_sizes(x, (*x.sizes[:place], *_resolved((x.sizes[place],), shape), *x.sizes[place + 1 :]))


@view_rule("aten::permute")
def permute(x: TensorType, dims: Sequence[int]) -> TensorType:
    """Dimensions in another order."""
    require(len(dims) == x.rank)
    return with_sizes(x, [x.sizes[dim] for dim in axes(dims, x.rank)])


@view_rule("aten::transpose.int", "aten::swapaxes", "aten::swapdims")
def transpose(x: TensorType, first: int, second: int) -> TensorType:
    """Two dimensions exchanged."""
    if not x.sizes:
        axis(first, 0), axis(second, 0)
        return x
    sizes = list(x.sizes)
    a, b = axis(first, x.rank), axis(second, x.rank)
    sizes[a], sizes[b] = sizes[b], sizes[a]
    return with_sizes(x, sizes)


@view_rule("aten::t", "aten::numpy_T")
def reverse_dimensions(x: TensorType) -> TensorType:
    """Both dimensions of a matrix exchanged."""
    require(x.rank <= 2)
    return with_sizes(x, x.sizes[::-1])


@view_rule("aten::mT", "aten::adjoint", "aten::matrix_H", "aten::mH")
def transpose_matrices(x: TensorType) -> TensorType:
    """The last two dimensions exchanged."""
    require(x.rank >= 2 and x.dtype in PLAIN)
    return transpose(x, -2, -1)


@view_rule("aten::movedim.int", "aten::movedim.intlist", "aten::moveaxis.int", "aten::moveaxis.intlist")
def move_dimensions(x: TensorType, source: Any, destination: Any) -> TensorType:
    """Some dimensions at other places, the others in order around them."""
    sources, destinations = axes(source, x.rank, False), axes(destination, x.rank, False)
    require(len(sources) == len(destinations) and x.sizes)
    others = iter([dim for dim in range(x.rank) if dim not in sources])
    placed = dict(zip(destinations, sources, strict=True))
    return with_sizes(x, [x.sizes[placed[dim] if dim in placed else next(others)] for dim in range(x.rank)])


@view_rule("aten::unsqueeze")
def unsqueeze(x: TensorType, dim: int) -> TensorType:
    """One more dimension, of size 1."""
    place = axis(dim, x.rank + 1)
    return with_sizes(x, (*x.sizes[:place], 1, *x.sizes[place:]))


@view_rule("aten::squeeze", "aten::squeeze.dim", "aten::squeeze.dims")
def squeeze(x: TensorType, dims: Any = None) -> TensorType:
    """Without dimensions of size 1."""
    chosen = set(axes(dims, x.rank, False))
    return with_sizes(x, [size for dim, size in enumerate(x.sizes) if dim not in chosen or size != 1])


@view_rule("aten::select.int")
def select(x: TensorType, dim: int, index: Dimension) -> TensorType:
    """One entry of a dimension, which is gone then."""
    require(x.sizes)
    place = axis(dim, x.rank)
    require(index < x.sizes[place] if index >= 0 else -index <= x.sizes[place])
    return with_sizes(x, (*x.sizes[:place], *x.sizes[place + 1 :]))


@view_rule("aten::slice.Tensor")
def slice_(x: TensorType, dim: int, start: Dimension | None, end: Dimension | None, step: int) -> TensorType:
    """Every ``step``-th entry of a range, as Python's slices count."""
    require(x.sizes and step > 0)
    place = axis(dim, x.rank)
    return with_sizes(x, replaced(x.sizes, place, slice_length(x.sizes[place], start, end, step)))


def slice_length(size: Dimension, start: Dimension | None, end: Dimension | None, step: int) -> Dimension:
    """How many entries a slice has."""
    first = _bounded(0 if start is None else start, size)
    last = size if end is None else _bounded(end, size)
    length = maximum(last - first, 0)
    return length if step == 1 else ceil_divide(length, step)


def _bounded(index: Dimension, size: Dimension) -> Dimension:
    """An index of a slice, counted from the front, between both ends."""
    return minimum(index, size) if index >= 0 else maximum(size + index, 0)


@view_rule("aten::narrow")
def narrow(x: TensorType, dim: int, start: Dimension, length: Dimension) -> TensorType:
    """A range of a dimension."""
    require(x.sizes)
    place = axis(dim, x.rank)
    size = x.sizes[place]
    first = start if start >= 0 else start + size
    require(first >= 0 and length >= 0 and first + length <= size)
    return with_sizes(x, replaced(x.sizes, place, length))


@view_rule("aten::expand", "aten::broadcast_to")
def expand(x: TensorType, shape: Sequence[Dimension], *_: Any) -> TensorType:
    """Dimensions of size 1 repeated; -1 leaves one as it is."""
    lead = len(shape) - x.rank
    require(lead >= 0 and all(not is_minus_one(size) and size >= 0 for size in shape[:lead]))
    return with_sizes(x, (*shape[:lead], *(_expanded(a, b) for a, b in zip(x.sizes, shape[lead:], strict=True))))


def _expanded(size: Dimension, target: Dimension) -> Dimension:
    if is_minus_one(target) or is_same(size, target):
        return size
    require(target >= 0)
    if not (isinstance(size, int) and size == 1):
        require(size == target or size == 1)
    return target


@view_rule("aten::expand_as")
def expand_as(x: TensorType, other: TensorType) -> TensorType:
    """With the sizes of another."""
    return expand(x, other.sizes)


@view_rule("aten::broadcast_tensors")
def broadcast_tensors(tensors: Sequence[TensorType]) -> list[TensorType]:
    """All with their common sizes."""
    sizes = broadcast(*(item.sizes for item in tensors))
    return [with_sizes(item, sizes) for item in tensors]


@view_rule("aten::chunk")
def chunk(x: TensorType, count: int, dim: int) -> list[TensorType]:
    """At most so many parts of equal size, but the last."""
    require(x.sizes and count > 0)
    size = x.sizes[axis(dim, x.rank)]
    part = ceil_divide(size, count)
    if part == 0:
        return [x] * count
    return split(x, part, dim)


@view_rule("aten::split.Tensor")
def split(x: TensorType, part: Dimension, dim: int) -> list[TensorType]:
    """Parts of a size, of which the last may be smaller."""
    require(x.sizes)
    place = axis(dim, x.rank)
    size = x.sizes[place]
    require(part > 0)
    count = max(concrete(ceil_divide(size, part)), 1)
    sizes = [*[part] * (count - 1), size - part * (count - 1)]
    return [with_sizes(x, replaced(x.sizes, place, item)) for item in sizes]


@view_rule("aten::split.sizes", "aten::split_with_sizes")
def split_with_sizes(x: TensorType, sizes: Sequence[Dimension], dim: int) -> list[TensorType]:
    """Parts of these sizes."""
    require(x.sizes)
    place = axis(dim, x.rank)
    require(all(size >= 0 for size in sizes) and sum(sizes) == x.sizes[place])
    return [with_sizes(x, replaced(x.sizes, place, size)) for size in sizes]


@view_rule("aten::tensor_split.sections")
def tensor_split(x: TensorType, sections: int, dim: int) -> list[TensorType]:
    """So many parts, of which the first ones have one entry more."""
    require(x.sizes and sections > 0)
    place = axis(dim, x.rank)
    size = x.sizes[place]
    sizes = [(size - part + sections - 1) // sections for part in range(sections)]
    return [with_sizes(x, replaced(x.sizes, place, item)) for item in sizes]


@view_rule("aten::unbind.int")
def unbind(x: TensorType, dim: int) -> list[TensorType]:
    """Every entry of a dimension."""
    require(x.sizes)
    place = axis(dim, x.rank)
    return [with_sizes(x, (*x.sizes[:place], *x.sizes[place + 1 :]))] * concrete(x.sizes[place])


@view_rule("aten::unfold")
def windows(x: TensorType, dim: int, size: Dimension, step: int) -> TensorType:
    """Windows along a dimension; what is in one becomes the last dimension."""
    require(x.sizes and step > 0)
    place = axis(dim, x.rank)
    require(size <= x.sizes[place])
    return with_sizes(x, (*replaced(x.sizes, place, (x.sizes[place] - size) // step + 1), size))


@view_rule("aten::as_strided", "aten::as_strided_copy")
def strided(
    x: TensorType, sizes: Sequence[Dimension], strides: Sequence[Dimension], offset: Dimension | None
) -> TensorType:
    """Places in the memory of a tensor that is the whole of it."""
    require(len(sizes) == len(strides) and all(item >= 0 for item in (*sizes, *strides)))
    if all(size > 0 for size in sizes):
        last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        require((offset or 0) + last < x.numel)
    return with_sizes(x, tuple(sizes))


@view_rule("aten::diagonal")
def diagonal(x: TensorType, offset: int, first: int, second: int) -> TensorType:
    """The diagonals of matrices in two dimensions, as the last one."""
    require(x.rank >= 2)
    a, b = axis(first, x.rank), axis(second, x.rank)
    require(a != b)
    rows, columns = x.sizes[a], x.sizes[b]
    length = minimum(rows, columns - offset) if offset >= 0 else minimum(rows + offset, columns)
    return with_sizes(x, (*(size for dim, size in enumerate(x.sizes) if dim not in (a, b)), maximum(length, 0)))


@view_rule("aten::to.dtype", "aten::to.prim_dtype", "aten::_to_copy")
def convert(x: TensorType, dtype: Any, *_: Any) -> TensorType:
    """Of another dtype; it may be the operand itself."""
    return TensorType(dtype_of(dtype, x.dtype), x.sizes)


@view_rule("aten::to.dtype_layout", "aten::to.device", "aten::to.prim_Device")
def convert_at_second(x: TensorType, first: Any, second: Any, *_: Any) -> TensorType:
    """Of another dtype, which stands first, or behind a device."""
    asked = second if isinstance(first, torch.device) else first
    return TensorType(dtype_of(asked, x.dtype), x.sizes)


@view_rule("aten::to.other", "aten::type_as")
def convert_as(x: TensorType, other: TensorType, *_: Any) -> TensorType:
    """Of another's dtype."""
    return TensorType(other.dtype, x.sizes)
