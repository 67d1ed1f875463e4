"""Interpolation to a given size or by a factor, and sampling at given places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from mobopt.ir.dimensions import Dimension
from mobopt.ir.types import TensorType
from mobopt.ops.shapes.layouts import as_image
from mobopt.ops.shapes.rules import FLOATS, concrete, equal, numbers, require, shape_rule
from mobopt.ops.shapes.views import with_sizes

_LARGEST_EXACT = 2**52
"""Products up to this are exact in double precision."""


def scaled_size(size: Dimension, factor: float) -> Dimension:
    """``floor(size * factor)``, as torch computes it in double precision; an expression where that is exact."""
    if isinstance(size, int):
        return math.floor(size * factor)
    numerator, denominator = float(factor).as_integer_ratio()
    if size.upper * abs(numerator) <= _LARGEST_EXACT:
        return size * numerator // denominator
    return math.floor(concrete(size) * factor)


def _resized(x: TensorType, spatial: int, output: Sequence[Dimension]) -> TensorType:
    require(x.dtype in FLOATS and x.rank == spatial + 2)
    sizes = numbers(output, spatial)
    require(all(size > 0 for size in (*x.sizes[1:], *sizes)))
    return with_sizes(x, (*x.sizes[:2], *sizes))


def resize(spatial: int, x: TensorType, output: Sequence[Dimension], *_: Any) -> TensorType:
    """To a size."""
    return _resized(x, spatial, output)


def resize_or_scale(spatial: int, x: TensorType, output: Sequence[Dimension] | None, *settings: Any) -> TensorType:
    """To a size, or by factors, which come last."""
    factors = settings[-1]
    if output is not None:
        require(factors is None)
        return _resized(x, spatial, output)
    require(x.rank == spatial + 2)
    scales = numbers(factors, spatial)
    return _resized(x, spatial, [scaled_size(*item) for item in zip(x.sizes[2:], scales, strict=True)])


for _name, _spatial in (
    *((f"{kind}{rank}d", rank) for kind in ("upsample_nearest", "_upsample_nearest_exact") for rank in (1, 2, 3)),
    ("upsample_linear1d", 1),
    ("upsample_bilinear2d", 2),
    ("upsample_bicubic2d", 2),
    ("upsample_trilinear3d", 3),
    ("_upsample_bilinear2d_aa", 2),
    ("_upsample_bicubic2d_aa", 2),
):
    shape_rule(f"aten::{_name}", layout=as_image)(partial(resize, _spatial))
    shape_rule(f"aten::{_name}.vec", layout=as_image)(partial(resize_or_scale, _spatial))


@shape_rule("aten::grid_sampler", "aten::grid_sampler_2d", "aten::grid_sampler_3d")
def grid_sampler(x: TensorType, grid: TensorType, *_: Any) -> TensorType:
    """``[N, C, ...]`` at the places of ``[N, ..., coordinates]``."""
    require(x.dtype in FLOATS and x.dtype == grid.dtype and x.rank == grid.rank and x.rank in (4, 5))
    require(x.sizes[0] == grid.sizes[0] and grid.sizes[-1] == x.rank - 2)
    require(all(size > 0 for size in x.sizes[2:]))
    return with_sizes(x, (*x.sizes[:2], *grid.sizes[1:-1]))


@shape_rule("aten::affine_grid_generator")
def affine_grid(theta: TensorType, size: Sequence[Dimension], align_corners: bool) -> TensorType:
    """One grid of a tensor of this size for each matrix."""
    require(theta.dtype in FLOATS and len(size) in (4, 5))
    require(equal(theta.sizes, (size[0], len(size) - 2, len(size) - 1)))
    return with_sizes(theta, (size[0], *size[2:], len(size) - 2))
