"""Pooling over windows, and to a given size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from mobopt.ir.dimensions import Dimension, ceil_divide, minimum
from mobopt.ir.types import TensorType
from mobopt.ops.shapes.layouts import as_image
from mobopt.ops.shapes.rules import FLOATS, is_same, numbers, require, shape_rule
from mobopt.ops.shapes.views import with_sizes


def pooled_size(
    size: Dimension, kernel: Dimension, stride: Dimension, padding: int, dilation: int, ceil_mode: bool
) -> Dimension:
    """How many windows there are along a dimension; with ``ceil_mode`` also those that end outside, unless they begin
    in the padding behind the last element.

    Source: ``aten/src/ATen/native/Pool.h`` of PyTorch.
    """
    require(stride > 0 and padding >= 0 and 2 * padding <= dilation * (kernel - 1) + 1)
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil_mode:
        require(span >= 0)
        return span // stride + 1
    count = minimum(ceil_divide(span, stride), (size + padding - 1) // stride) + 1
    require(count > 0)
    return count


def _pooled(x: TensorType, spatial: int, kernel: Any, stride: Any, *settings: Any) -> TensorType:
    require(x.dtype in FLOATS and x.rank in (spatial + 1, spatial + 2))
    require(all(size > 0 for size in x.sizes[-spatial - 1 :]))
    windows = numbers(kernel, spatial)
    padding, dilation, ceil_mode = settings
    columns = (x.sizes[-spatial:], windows, numbers(stride, spatial, windows), numbers(padding, spatial))
    sizes = [pooled_size(*item, ceil_mode) for item in zip(*columns, numbers(dilation, spatial), strict=True)]
    return with_sizes(x, (*x.sizes[:-spatial], *sizes))


def max_pool(
    spatial: int,
    x: TensorType,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> TensorType:
    """The largest of each window."""
    return _pooled(x, spatial, kernel, stride, padding, dilation, ceil_mode)


def max_pool_with_indices(spatial: int, x: TensorType, *settings: Any) -> tuple[TensorType, TensorType]:
    """The largest of each window, and where it is."""
    made = max_pool(spatial, x, *settings)
    return made, TensorType(torch.int64, made.sizes)


def average_pool(
    spatial: int,
    x: TensorType,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    *_: Any,
) -> TensorType:
    """The mean of each window; in three dimensions torch wants that it fits without padding."""
    require(spatial < 3 or all(a >= b for a, b in zip(x.sizes[-3:], numbers(kernel, 3), strict=True)))
    return _pooled(x, spatial, kernel, stride, padding, [1], ceil_mode)


def adaptive_average_pool(spatial: int, x: TensorType, output: Sequence[Dimension]) -> TensorType:
    """The means of as many windows as are asked for."""
    require(x.dtype in FLOATS and x.rank in (spatial + 1, spatial + 2))
    sizes = numbers(output, spatial)
    require(all(size > 0 for size in x.sizes[-spatial - 1 :]) and all(size >= 0 for size in sizes))
    return with_sizes(x, (*x.sizes[:-spatial], *sizes))


def adaptive_max_pool(spatial: int, x: TensorType, output: Sequence[Dimension]) -> tuple[TensorType, TensorType]:
    """The largest of as many windows as are asked for, and where it is."""
    made = adaptive_average_pool(spatial, x, output)
    return made, TensorType(torch.int64, made.sizes)


for _spatial in (1, 2, 3):
    shape_rule(f"aten::max_pool{_spatial}d", layout=as_image)(partial(max_pool, _spatial))
    shape_rule(f"aten::avg_pool{_spatial}d", layout=as_image)(partial(average_pool, _spatial))
    shape_rule(f"aten::adaptive_avg_pool{_spatial}d", layout=as_image)(partial(adaptive_average_pool, _spatial))
    shape_rule(f"aten::adaptive_max_pool{_spatial}d", layout=as_image)(partial(adaptive_max_pool, _spatial))
for _spatial in (2, 3):
    shape_rule(f"aten::max_pool{_spatial}d_with_indices", layout=as_image)(partial(max_pool_with_indices, _spatial))


@shape_rule("torchvision::roi_align")
def roi_align(
    x: TensorType, regions: TensorType, scale: float, rows: Dimension, columns: Dimension, *_: Any
) -> TensorType:
    """A grid for each region."""
    require(x.rank == 4 and regions.rank == 2 and is_same(regions.sizes[1], 5) and x.dtype == regions.dtype)
    return with_sizes(x, (regions.sizes[0], x.sizes[1], rows, columns))
