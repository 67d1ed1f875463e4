"""Operators that put tensors together, repeat them, or move elements between dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mobopt.ir.dimensions import Dimension
from mobopt.ir.types import TensorType
from mobopt.ops.shapes.layouts import as_all_images, as_image, row_major_but_images
from mobopt.ops.shapes.promotion import result_dtype
from mobopt.ops.shapes.rules import PLAIN, axes, axis, equal, numbers, require, shape_rule, view_rule
from mobopt.ops.shapes.views import replaced, with_sizes


@shape_rule("aten::cat", "aten::concat", "aten::concatenate", layout=as_all_images)
def cat(tensors: Sequence[TensorType], dim: int) -> TensorType:
    """Along a dimension; empty tensors of one dimension are left out, as torch does."""
    dtype = result_dtype(*tensors)
    kept = [item for item in tensors if not (item.rank == 1 and item.sizes[0] == 0)] or list(tensors[:1])
    first = kept[0]
    require(first.sizes)
    place = axis(dim, first.rank)
    total: Dimension = 0
    for item in kept:
        require(item.rank == first.rank)
        if item is not first:
            require(equal(replaced(item.sizes, place, 0), replaced(first.sizes, place, 0)))
        total = total + item.sizes[place]
    return TensorType(dtype, replaced(first.sizes, place, total))


@shape_rule("aten::stack", layout=row_major_but_images)
def stack(tensors: Sequence[TensorType], dim: int) -> TensorType:
    """Along a new dimension."""
    first = tensors[0]
    require(all(equal(item.sizes, first.sizes) for item in tensors[1:]))
    place = axis(dim, first.rank + 1)
    return TensorType(result_dtype(*tensors), (*first.sizes[:place], len(tensors), *first.sizes[place:]))


@shape_rule("aten::repeat", "aten::tile")
def repeat(x: TensorType, repeats: Sequence[Dimension]) -> TensorType:
    """Copies along dimensions; new ones come in front."""
    require(all(count >= 0 for count in repeats))
    lead = len(repeats) - x.rank
    require(lead >= 0)
    return with_sizes(x, [count * size for count, size in zip(repeats, (1,) * lead + x.sizes, strict=True)])


@shape_rule("aten::repeat_interleave.self_int")
def repeat_entries(x: TensorType, count: Dimension, dim: int | None, output_size: Dimension | None) -> TensorType:
    """Each entry of a dimension so many times, or each element."""
    require(count >= 0 and output_size is None)
    if dim is None:
        return with_sizes(x, (x.numel * count,))
    require(x.sizes)
    place = axis(dim, x.rank)
    return with_sizes(x, replaced(x.sizes, place, x.sizes[place] * count))


@shape_rule("aten::flip", "aten::fliplr", "aten::flipud")
def flip(x: TensorType, dims: Sequence[int] = ()) -> TensorType:
    """As the operand."""
    axes(dims, x.rank)
    require(x.rank >= 2 or dims)
    return x


@shape_rule("aten::roll")
def roll(x: TensorType, shifts: Any, dims: Any) -> TensorType:
    """As the operand."""
    axes(dims, x.rank)
    require(x.sizes and (len(shifts) == len(dims) or (not dims and len(shifts) == 1)))
    return x


@shape_rule("aten::tril", "aten::triu")
def triangle(x: TensorType, diagonal: int) -> TensorType:
    """As the operand."""
    require(x.rank >= 2 and x.dtype in PLAIN)
    return x


@shape_rule("aten::pixel_shuffle", layout=as_image)
def pixel_shuffle(x: TensorType, factor: int) -> TensorType:
    """From channels to places: ``[..., C * r * r, H, W]`` to ``[..., C, H * r, W * r]``."""
    require(x.rank >= 3 and factor > 0)
    *lead, channels, height, width = x.sizes
    require(channels % (factor * factor) == 0)
    return with_sizes(x, (*lead, channels // (factor * factor), height * factor, width * factor))


@shape_rule("aten::pixel_unshuffle", layout=as_image)
def pixel_unshuffle(x: TensorType, factor: int) -> TensorType:
    """The way back; of what is empty torch makes the operand."""
    require(x.rank >= 3 and factor > 0 and x.numel > 0)
    *lead, channels, height, width = x.sizes
    require(height % factor == 0 and width % factor == 0)
    return with_sizes(x, (*lead, channels * factor * factor, height // factor, width // factor))


@view_rule("aten::channel_shuffle")
def channel_shuffle(x: TensorType, groups: int) -> TensorType:
    """As the operand."""
    require(x.rank >= 3 and groups > 0 and x.sizes[1] % groups == 0)
    return x


@shape_rule("aten::glu")
def glu(x: TensorType, dim: int) -> TensorType:
    """Half of a dimension."""
    require(x.sizes and x.dtype.is_floating_point)
    place = axis(dim, x.rank)
    require(x.sizes[place] % 2 == 0)
    return with_sizes(x, replaced(x.sizes, place, x.sizes[place] // 2))


@shape_rule("aten::im2col")
def unfold(
    x: TensorType, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> TensorType:
    """``[N, C, H, W]`` to ``[N, C * kernel, places]``."""
    require(x.rank in (3, 4) and all(size > 0 for size in x.sizes[1:]))
    *lead, channels, height, width = x.sizes
    places: Dimension = 1
    for size, *window in zip((height, width), *_windows(kernel, dilation, padding, stride), strict=True):
        places = places * _places(size, *window)
    return with_sizes(x, (*lead, channels * kernel[0] * kernel[-1], places))


@shape_rule("aten::col2im")
def fold(
    x: TensorType,
    output: Sequence[Dimension],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> TensorType:
    """``[N, C * kernel, places]`` to ``[N, C, H, W]``."""
    require(x.rank in (2, 3) and len(output) == 2)
    *lead, rows, columns = x.sizes
    area = kernel[0] * kernel[-1]
    places: Dimension = 1
    for size, *window in zip(output, *_windows(kernel, dilation, padding, stride), strict=True):
        places = places * _places(size, *window)
    require(rows % area == 0 and columns == places)
    return with_sizes(x, (*lead, rows // area, *output))


def _windows(*settings: Sequence[int]) -> list[list[int]]:
    return [numbers(item, 2) for item in settings]


def _places(size: Dimension, kernel: int, dilation: int, padding: int, stride: int) -> Dimension:
    places = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    require(places > 0)
    return places


@view_rule("aten::meshgrid", "aten::meshgrid.indexing")
def meshgrid(tensors: Sequence[TensorType], indexing: str = "ij") -> list[TensorType]:
    """Each along its own dimension of all."""
    require(indexing == "ij" and all(item.rank <= 1 for item in tensors))
    sizes = tuple(item.sizes[0] if item.sizes else 1 for item in tensors)
    require(len({item.dtype for item in tensors}) == 1)
    return [TensorType(item.dtype, sizes) for item in tensors]


@shape_rule("aten::complex")
def complex_(real: TensorType, imaginary: TensorType) -> TensorType:
    """Complex numbers are torch's to judge, but for the plain case."""
    require(real.dtype == imaginary.dtype == torch.float32 and equal(real.sizes, imaginary.sizes))
    return TensorType(torch.complex64, real.sizes)
