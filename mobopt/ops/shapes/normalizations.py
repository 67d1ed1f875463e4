"""Normalizations: results are as the operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mobopt.ir.dimensions import Dimension
from mobopt.ir.types import TensorType
from mobopt.ops.l2_normalize import L2_NORMALIZE
from mobopt.ops.shapes.layouts import as_image, row_major
from mobopt.ops.shapes.reductions import reduced
from mobopt.ops.shapes.rules import FLOATS, broadcast, equal, require, shape_rule
from mobopt.ops.shapes.views import with_sizes


def _require_vectors(x: TensorType, size: Dimension, vectors: Sequence[TensorType | None]) -> None:
    """Parameters are None, or of one number for each channel, and of the operand's dtype."""
    require(x.dtype in FLOATS)
    for item in vectors:
        require(item is None or (item.rank == 1 and item.dtype == x.dtype and item.sizes[0] == size))


@shape_rule("aten::batch_norm", layout=as_image)
def batch_norm(
    x: TensorType,
    weight: TensorType | None,
    bias: TensorType | None,
    mean: TensorType | None,
    variance: TensorType | None,
    training: bool,
    *_: Any,
) -> TensorType:
    """One mean and variance for each channel."""
    require(x.rank >= 2 and x.sizes[1] > 0 and (training or (mean is not None and variance is not None)))
    require(not training or x.numel // x.sizes[1] > 1)
    _require_vectors(x, x.sizes[1], (weight, bias, mean, variance))
    return x


@shape_rule("aten::instance_norm")
def instance_norm(
    x: TensorType,
    weight: TensorType | None,
    bias: TensorType | None,
    mean: TensorType | None,
    variance: TensorType | None,
    *_: Any,
) -> TensorType:
    """One mean and variance for each channel of each sample."""
    require(x.rank >= 3 and all(size > 0 for size in x.sizes))
    _require_vectors(x, x.sizes[1], (weight, bias, mean, variance))
    return x


@shape_rule("aten::group_norm", layout=as_image)
def group_norm(x: TensorType, groups: int, weight: TensorType | None, bias: TensorType | None, *_: Any) -> TensorType:
    """One mean and variance for each group of channels of each sample."""
    require(x.rank >= 2 and groups > 0 and x.sizes[1] % groups == 0 and all(size > 0 for size in x.sizes))
    _require_vectors(x, x.sizes[1], (weight, bias))
    return x


@shape_rule("aten::layer_norm", layout=row_major)
def layer_norm(
    x: TensorType, shape: Sequence[Dimension], weight: TensorType | None, bias: TensorType | None, *_: Any
) -> TensorType:
    """One mean and variance of the last dimensions, which torch computes on a row-major copy."""
    return _normalized(x, shape, (weight, bias))


@shape_rule("aten::rms_norm")
def rms_norm(x: TensorType, shape: Sequence[Dimension], weight: TensorType | None, *_: Any) -> TensorType:
    """One mean square of the last dimensions."""
    return _normalized(x, shape, (weight,))


@shape_rule(L2_NORMALIZE)
def l2_normalize(x: TensorType, dim: int, eps: float, weight: TensorType | None) -> TensorType:
    """As the operand, to whose sizes the weight is broadcast."""
    require(x.dtype in FLOATS and -x.rank <= dim < x.rank)
    require(weight is None or (weight.dtype == x.dtype and equal(broadcast(x.sizes, weight.sizes), x.sizes)))
    return x


def _normalized(x: TensorType, shape: Sequence[Dimension], parameters: Sequence[TensorType | None]) -> TensorType:
    require(x.dtype in FLOATS and shape and equal(x.sizes[-len(shape) :], shape))
    for item in parameters:
        require(item is None or (item.dtype == x.dtype and equal(item.sizes, shape)))
    return x


@shape_rule("aten::cosine_similarity")
def cosine_similarity(x: TensorType, y: TensorType, dim: int, eps: float) -> TensorType:
    """Along a dimension."""
    require(x.dtype in FLOATS and x.dtype == y.dtype)
    sizes = broadcast(x.sizes, y.sizes)
    require(sizes)
    return with_sizes(x, reduced(with_sizes(x, sizes), [dim]))


@shape_rule("aten::pairwise_distance")
def pairwise_distance(x: TensorType, y: TensorType, p: float, eps: float, keepdim: bool) -> TensorType:
    """Along the last dimension."""
    require(x.dtype in FLOATS and x.dtype == y.dtype)
    sizes = broadcast(x.sizes, y.sizes)
    require(sizes)
    return with_sizes(x, reduced(with_sizes(x, sizes), [-1], keepdim))


@shape_rule("aten::cdist")
def cdist(x: TensorType, y: TensorType, p: float, mode: int | None) -> TensorType:
    """Distances of rows: ``[..., R, M]`` and ``[..., S, M]`` to ``[..., R, S]``."""
    require(x.dtype in FLOATS and x.dtype == y.dtype and x.rank >= 2 and y.rank >= 2 and x.sizes[-1] == y.sizes[-1])
    return with_sizes(x, (*broadcast(x.sizes[:-2], y.sizes[:-2]), x.sizes[-2], y.sizes[-2]))
