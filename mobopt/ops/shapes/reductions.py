"""Operators that compute one element from many, or all of a dimension from all of it."""

from __future__ import annotations

from typing import Any

import torch

from mobopt.ir.dimensions import Dimension
from mobopt.ir.types import TensorType
from mobopt.ops.shapes.layouts import row_major
from mobopt.ops.shapes.promotion import float_dtype
from mobopt.ops.shapes.rules import (
    FLOATS,
    PLAIN,
    REALS,
    Sizes,
    axes,
    axis,
    dtype_of,
    require,
    shape_rule,
)
from mobopt.ops.shapes.views import replaced, with_sizes


def reduced(x: TensorType, dims: Any, keepdim: bool = False, empty_is_all: bool = True) -> Sizes:
    """Sizes without the dimensions that are reduced, or with 1 in their places."""
    gone = set(axes(dims, x.rank, empty_is_all))
    if keepdim:
        return tuple(1 if dim in gone else size for dim, size in enumerate(x.sizes))
    return tuple(size for dim, size in enumerate(x.sizes) if dim not in gone)


def _total(dtype: torch.dtype) -> torch.dtype:
    """What integers and bools are added up in."""
    return dtype if dtype in FLOATS else torch.int64


@shape_rule("aten::sum", "aten::prod")
def sum_all(x: TensorType, dtype: Any) -> TensorType:
    """One number; integers become int64."""
    require(x.dtype in PLAIN)
    return TensorType(dtype_of(dtype, _total(x.dtype)), ())


@shape_rule("aten::sum.dim_IntList", "aten::nansum", "aten::prod.dim_int")
def sum_dims(x: TensorType, dims: Any, keepdim: bool, dtype: Any) -> TensorType:
    """Along dimensions."""
    require(x.dtype in PLAIN)
    return TensorType(dtype_of(dtype, _total(x.dtype)), reduced(x, dims, keepdim))


@shape_rule("aten::mean")
def mean_all(x: TensorType, dtype: Any) -> TensorType:
    """One number, of floats."""
    return mean_dims(x, None, False, dtype)


@shape_rule("aten::mean.dim")
def mean_dims(x: TensorType, dims: Any, keepdim: bool, dtype: Any) -> TensorType:
    """Along dimensions, of floats."""
    made = dtype_of(dtype, x.dtype)
    require(made in FLOATS)
    return TensorType(made, reduced(x, dims, keepdim))


@shape_rule("aten::amax", "aten::amin")
def extreme_dims(x: TensorType, dims: Any, keepdim: bool) -> TensorType:
    """The extreme along dimensions."""
    _require_elements(x, axes(dims, x.rank))
    return with_sizes(x, reduced(x, dims, keepdim))


@shape_rule("aten::max", "aten::min", "aten::median")
def extreme_all(x: TensorType) -> TensorType:
    """The extreme of all elements."""
    _require_elements(x, axes(None, x.rank))
    return with_sizes(x, ())


@shape_rule("aten::max.dim", "aten::min.dim", "aten::median.dim", "aten::mode")
def extreme_with_index(x: TensorType, dim: int, keepdim: bool) -> tuple[TensorType, TensorType]:
    """The extreme along a dimension, and where it is."""
    _require_elements(x, [dim])
    sizes = reduced(x, [dim], keepdim) if x.sizes else ()
    return with_sizes(x, sizes), TensorType(torch.int64, sizes)


@shape_rule("aten::argmax", "aten::argmin")
def place_of_extreme(x: TensorType, dim: int | None, keepdim: bool) -> TensorType:
    """Where the extreme is."""
    require(x.dtype in REALS)
    _require_elements(x, axes(dim, x.rank))
    return TensorType(torch.int64, reduced(x, dim, keepdim) if x.sizes else ())


def _require_elements(x: TensorType, dims: list[int]) -> None:
    """There is no extreme of nothing."""
    require(x.dtype in PLAIN)
    for dim in dims:
        place = axis(dim, x.rank)
        require(not x.sizes or x.sizes[place] > 0)


@shape_rule("aten::any", "aten::all")
def truth_of_all(x: TensorType) -> TensorType:
    """A bool, or a byte of bytes."""
    require(x.dtype in PLAIN)
    return TensorType(_truth(x.dtype), ())


@shape_rule("aten::any.dim", "aten::all.dim", "aten::any.dims", "aten::all.dims")
def truth_of_dims(x: TensorType, dims: Any, keepdim: bool) -> TensorType:
    """As :func:`truth_of_all`, along dimensions."""
    require(x.dtype in PLAIN and (dims is None or isinstance(dims, int) or dims))
    return TensorType(_truth(x.dtype), reduced(x, dims, keepdim) if x.sizes else ())


def _truth(dtype: torch.dtype) -> torch.dtype:
    return torch.uint8 if dtype == torch.uint8 else torch.bool


@shape_rule("aten::std", "aten::var")
def deviation_of_all(x: TensorType, unbiased: bool) -> TensorType:
    """One number."""
    require(x.dtype in FLOATS)
    return with_sizes(x, ())


@shape_rule("aten::std.dim", "aten::var.dim")
def deviation(x: TensorType, dims: Any, unbiased: bool, keepdim: bool) -> TensorType:
    """Along dimensions."""
    require(x.dtype in FLOATS)
    return with_sizes(x, reduced(x, dims, keepdim))


@shape_rule("aten::std.correction", "aten::var.correction")
def corrected_deviation(x: TensorType, dims: Any, correction: Any, keepdim: bool) -> TensorType:
    """Along dimensions."""
    return deviation(x, dims, True, keepdim)


@shape_rule("aten::std_mean.dim", "aten::var_mean.dim", "aten::std_mean.correction", "aten::var_mean.correction")
def deviation_and_mean(x: TensorType, dims: Any, correction: Any, keepdim: bool) -> tuple[TensorType, TensorType]:
    """Both, along dimensions."""
    made: TensorType = deviation(x, dims, True, keepdim)
    return made, made


@shape_rule("aten::std_mean", "aten::var_mean")
def deviation_and_mean_of_all(x: TensorType, unbiased: bool) -> tuple[TensorType, TensorType]:
    """Both, of all elements."""
    made: TensorType = deviation_of_all(x, unbiased)
    return made, made


@shape_rule("aten::norm.Scalar")
def norm_of_all(x: TensorType, p: Any) -> TensorType:
    """One number."""
    require(x.dtype in FLOATS)
    return with_sizes(x, ())


@shape_rule("aten::norm.ScalarOpt_dim")
def norm(x: TensorType, p: Any, dims: Any, keepdim: bool) -> TensorType:
    """Along dimensions."""
    require(x.dtype in FLOATS and (p is None or p >= 0 or all(size > 0 for size in x.sizes)))
    return with_sizes(x, reduced(x, dims, keepdim))


@shape_rule("aten::linalg_vector_norm")
def vector_norm(x: TensorType, order: Any, dims: Any, keepdim: bool, dtype: Any) -> TensorType:
    """Along dimensions."""
    require(x.dtype in FLOATS and dtype is None and all(size > 0 for size in x.sizes))
    return with_sizes(x, reduced(x, dims, keepdim))


@shape_rule("aten::logsumexp")
def logsumexp(x: TensorType, dims: Any, keepdim: bool) -> TensorType:
    """Along dimensions, of floats."""
    return TensorType(float_dtype(x.dtype), reduced(x, dims, keepdim))


@shape_rule("aten::count_nonzero", "aten::count_nonzero.dim_IntList")
def count_nonzero(x: TensorType, dims: Any) -> TensorType:
    """How many there are."""
    require(x.dtype in PLAIN)
    return TensorType(torch.int64, reduced(x, dims))


@shape_rule("aten::softmax.int", "aten::log_softmax.int", layout=row_major)
def softmax(x: TensorType, dim: int, dtype: Any) -> TensorType:
    """As the operand, of floats."""
    axis(dim, x.rank)
    made = dtype_of(dtype, x.dtype)
    require(made in FLOATS)
    return TensorType(made, x.sizes)


@shape_rule("aten::_softmax", "aten::_log_softmax", layout=row_major)
def inner_softmax(x: TensorType, dim: int, half_to_float: bool) -> TensorType:
    """As the operand."""
    require(not half_to_float)
    return softmax(x, dim, None)


@shape_rule("aten::cumsum", "aten::cumprod")
def running_total(x: TensorType, dim: int, dtype: Any) -> TensorType:
    """As the operand; integers become int64."""
    axis(dim, x.rank)
    require(x.dtype in PLAIN)
    return TensorType(dtype_of(dtype, _total(x.dtype)), x.sizes)


@shape_rule("aten::logcumsumexp")
def running_logsumexp(x: TensorType, dim: int) -> TensorType:
    """As the operand."""
    axis(dim, x.rank)
    require(x.dtype in FLOATS)
    return x


@shape_rule("aten::cummax", "aten::cummin")
def running_extreme(x: TensorType, dim: int) -> tuple[TensorType, TensorType]:
    """As the operand, and where it was."""
    axis(dim, x.rank)
    require(x.dtype in PLAIN)
    return x, TensorType(torch.int64, x.sizes)


@shape_rule("aten::topk")
def topk(x: TensorType, k: Dimension, dim: int, largest: bool, is_sorted: bool) -> tuple[TensorType, TensorType]:
    """The ``k`` largest along a dimension, and where they are."""
    require(x.dtype in REALS)
    place = axis(dim, x.rank)
    require(0 <= k <= (x.sizes[place] if x.sizes else 1))
    sizes = replaced(x.sizes, place, k) if x.sizes else ()
    return with_sizes(x, sizes), TensorType(torch.int64, sizes)


@shape_rule("aten::sort")
def sort(x: TensorType, dim: int, descending: bool) -> tuple[TensorType, TensorType]:
    """As the operand, and where it was."""
    axis(dim, x.rank)
    require(x.dtype in PLAIN)
    return x, TensorType(torch.int64, x.sizes)


@shape_rule("aten::sort.stable")
def stable_sort(x: TensorType, stable: bool, dim: int, descending: bool) -> tuple[TensorType, TensorType]:
    """As :func:`sort`."""
    return sort(x, dim, descending)


@shape_rule("aten::argsort")
def argsort(x: TensorType, dim: int, descending: bool) -> TensorType:
    """Where sorted elements were."""
    axis(dim, x.rank)
    require(x.dtype in PLAIN)
    return TensorType(torch.int64, x.sizes)


@shape_rule("aten::kthvalue")
def kthvalue(x: TensorType, k: int, dim: int, keepdim: bool) -> tuple[TensorType, TensorType]:
    """The ``k``-th smallest along a dimension, and where it is."""
    place = axis(dim, x.rank)
    require(x.dtype in REALS and x.sizes and 1 <= k <= x.sizes[place])
    return extreme_with_index(x, dim, keepdim)


@shape_rule("aten::ctc_loss.IntList", "aten::ctc_loss.Tensor")
def temporal_loss(
    inputs: TensorType, targets: TensorType, input_lengths: Any, target_lengths: Any, _: Any, reduction: int, *__: Any
) -> TensorType:
    """A number for each text, or one of all; torch asks the lengths for it, which decide nothing."""
    require(inputs.dtype in (torch.float32, torch.float64) and inputs.rank in (2, 3))
    require(all(size > 0 for size in inputs.sizes))
    texts = inputs.sizes[1] if inputs.rank == 3 else 1
    require(targets.rank != 2 or targets.sizes[0] == texts)
    for lengths in (input_lengths, target_lengths):
        counts = lengths.sizes if isinstance(lengths, TensorType) else (len(lengths),)
        require(counts == (texts,) or (inputs.rank == 2 and counts == ()))
    if not isinstance(target_lengths, TensorType):
        require(targets.rank != 2 or max(target_lengths, default=0) <= targets.sizes[1])
    return TensorType(inputs.dtype, inputs.sizes[1:-1] if reduction == 0 else ())
