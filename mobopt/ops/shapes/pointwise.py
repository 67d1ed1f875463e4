"""Operators that compute each element from those in the same place."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from mobopt.ir.types import TensorType
from mobopt.ops.shapes.layouts import as_exchanged_operands, as_operands, row_major
from mobopt.ops.shapes.promotion import float_dtype, result_dtype
from mobopt.ops.shapes.rules import (
    FLOATS,
    INTEGERS,
    PLAIN,
    REALS,
    broadcast,
    require,
    shape_rule,
    view_rule,
)

pointwise_rule = partial(shape_rule, layout=as_operands)


def _aten(names: str, *overloads: str) -> list[str]:
    return [f"aten::{name}{overload and '.' + overload}" for name in names.split() for overload in overloads or ("",)]


@pointwise_rule(*_aten("abs neg relu sign sgn floor ceil round trunc square"))
def same(x: TensorType, *_: Any) -> TensorType:
    """As the operand, of any real dtype."""
    require(x.dtype in REALS)
    return x


@pointwise_rule(
    *_aten(
        """relu6 hardtanh hardswish hardsigmoid silu mish gelu elu celu selu leaky_relu softplus hardshrink softshrink
        frac"""
    )
)
def same_float(x: TensorType, *_: Any) -> TensorType:
    """As the operand, which is of floats."""
    require(x.dtype in FLOATS)
    return x


shape_rule("aten::log_sigmoid", layout=row_major)(same_float)


@pointwise_rule("aten::threshold", "aten::round.decimals", "aten::nan_to_num")
def same_float_of_numbers(x: TensorType, *_: Any) -> TensorType:
    """As the operand, which is of floats, whatever numbers come with it."""
    require(x.dtype in FLOATS)
    return x


@shape_rule("aten::prelu")
def prelu(x: TensorType, weight: TensorType) -> TensorType:
    """As the operand; there is one weight, or one for each channel."""
    require(x.dtype in FLOATS and x.dtype == weight.dtype and weight.rank <= 1)
    if weight.rank and not (isinstance(weight.sizes[0], int) and weight.sizes[0] == 1):
        require(x.rank > 0 and weight.sizes[0] == (x.sizes[1] if x.rank > 1 else 1))
    return x


@pointwise_rule(
    *_aten(
        """exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sqrt rsqrt
        sigmoid erf erfc erfinv reciprocal lgamma digamma deg2rad rad2deg sinc arcsin arccos arctan"""
    )
)
def to_float(x: TensorType) -> TensorType:
    """Of floats: of the default dtype, where the operand is of integers."""
    return x if x.dtype in FLOATS else TensorType(float_dtype(x.dtype), x.sizes)


@pointwise_rule(*_aten("isnan isinf isfinite logical_not isposinf isneginf signbit"))
def truth(x: TensorType) -> TensorType:
    """Bools."""
    require(x.dtype in PLAIN)
    return TensorType(torch.bool, x.sizes)


@pointwise_rule("aten::bitwise_not")
def bitwise_not(x: TensorType) -> TensorType:
    """As the operand, of integers or bools."""
    require(x.dtype in PLAIN - FLOATS)
    return x


@shape_rule("aten::clone")
def clone(x: TensorType, memory_format: int | None) -> TensorType:
    """As the operand; only the orders that keep a row-major one."""
    require(memory_format in (None, 0, 1, torch.contiguous_format, torch.preserve_format))
    return x


@view_rule("aten::dropout", "aten::feature_dropout", "aten::alpha_dropout", "aten::feature_alpha_dropout")
def dropout(x: TensorType, probability: float, train: bool) -> TensorType:
    """As the operand, which it is itself outside of training."""
    require(x.dtype in FLOATS)
    return x


@pointwise_rule(*_aten("clamp clip"), *_aten("clamp clip", "Tensor"))
def clamp(x: TensorType, low: Any, high: Any) -> TensorType:
    """Bounds count for the dtype, and are broadcast if they are tensors."""
    require((low is not None or high is not None) and x.dtype in REALS)
    return _broadcast(result_dtype(x, low, high), x, low, high)


@pointwise_rule(*_aten("clamp_min clamp_max"), *_aten("clamp_min clamp_max", "Tensor"))
def clamp_one(x: TensorType, bound: Any) -> TensorType:
    """As :func:`clamp` of one bound."""
    return clamp(x, bound, None)


@pointwise_rule(*_aten("add sub subtract", "Tensor", "Scalar"), "aten::rsub.Scalar")
@shape_rule("aten::rsub.Tensor", layout=as_exchanged_operands)
def add(x: TensorType, y: Any, alpha: Any) -> TensorType:
    """``x + alpha * y``, of common dtype."""
    dtype = result_dtype(x, y)
    require(dtype in FLOATS or (dtype in INTEGERS and not isinstance(alpha, float)))
    if isinstance(y, TensorType):
        require(torch.bool not in (x.dtype, y.dtype))  # subtract refuses them
    return _broadcast(dtype, x, y)


@pointwise_rule(*_aten("mul multiply", "Tensor", "Scalar"))
def multiply(x: TensorType, y: Any) -> TensorType:
    """Of common dtype."""
    return _broadcast(result_dtype(x, y), x, y)


@shape_rule("aten::ldexp.Tensor")
def ldexp(x: TensorType, exponent: TensorType) -> TensorType:
    """Of common floats: of integers and an exponent without dimensions too, of which torch's meta kernel knows less."""
    require(x.dtype in PLAIN and exponent.dtype in REALS)
    mantissa = TensorType(float_dtype(x.dtype), x.sizes) if exponent.dtype in INTEGERS else x
    dtype = mantissa.dtype if exponent.dtype in INTEGERS else result_dtype(x, exponent)
    return _broadcast(dtype, x, exponent)


@pointwise_rule(*_aten("div divide true_divide", "Tensor", "Scalar"))
def divide(x: TensorType, y: Any) -> TensorType:
    """Of floats."""
    return _broadcast(float_dtype(result_dtype(x, y)), x, y)


@pointwise_rule(*_aten("div divide", "Tensor_mode", "Scalar_mode"))
def divide_rounded(x: TensorType, y: Any, rounding_mode: str | None) -> TensorType:
    """Of floats, or of common dtype if it is rounded."""
    if rounding_mode is None:
        return divide(x, y)
    return arithmetic(x, y)


@pointwise_rule(
    *_aten("floor_divide", "", "Scalar"),
    *_aten("remainder fmod", "Tensor", "Scalar"),
    *_aten("maximum minimum fmax fmin"),
    *_aten("max min", "other"),
)
def arithmetic(x: TensorType, y: Any) -> TensorType:
    """Of common dtype, not of bools."""
    dtype = result_dtype(x, y)
    require(dtype in REALS)
    return _broadcast(dtype, x, y)


@pointwise_rule(*_aten("pow", "Tensor_Tensor", "Tensor_Scalar"))
@shape_rule("aten::pow.Scalar", layout=row_major)
def power(x: Any, y: Any) -> TensorType:
    """Of common dtype; negative powers of integers are torch's to refuse."""
    dtype = result_dtype(x, y)
    require(dtype in FLOATS or (dtype in INTEGERS and isinstance(y, int) and y >= 0))
    return _broadcast(dtype, x, y)


@pointwise_rule("aten::atan2", "aten::arctan2", *_aten("xlogy", "Tensor", "Scalar_Other", "Scalar_Self"))
def function_of_two(x: Any, y: Any) -> TensorType:
    """Of floats."""
    return _broadcast(float_dtype(result_dtype(x, y)), x, y)


@pointwise_rule(*_aten("hypot logaddexp logaddexp2"))
def float_function_of_two(x: TensorType, y: TensorType) -> TensorType:
    """Of common dtype, of floats."""
    dtype = result_dtype(x, y)
    require(x.dtype in FLOATS and y.dtype in FLOATS)
    return _broadcast(dtype, x, y)


@pointwise_rule(
    *_aten("eq ne lt le gt ge", "Tensor", "Scalar"),
    *_aten("not_equal less less_equal greater greater_equal", "Tensor", "Scalar"),
    *_aten("logical_and logical_or logical_xor"),
)
def compare(x: TensorType, y: Any) -> TensorType:
    """Bools."""
    require(x.dtype in PLAIN)
    result_dtype(x, y)
    return _broadcast(torch.bool, x, y)


@pointwise_rule(
    *_aten("bitwise_and bitwise_or bitwise_xor", "Tensor", "Scalar"),
    *_aten("__and__ __or__ __xor__", "Tensor", "Scalar"),
)
def bitwise(x: TensorType, y: Any) -> TensorType:
    """Of common dtype, of integers or bools."""
    dtype = result_dtype(x, y)
    require(dtype not in FLOATS)
    return _broadcast(dtype, x, y)


@pointwise_rule("aten::where.self", *_aten("where", "ScalarSelf", "ScalarOther", "Scalar"))
def where(condition: TensorType, x: Any, y: Any) -> TensorType:
    """Of common dtype."""
    require(condition.dtype == torch.bool)
    return _broadcast(result_dtype(x, y), condition, x, y)


@shape_rule("aten::masked_fill.Scalar", "aten::masked_fill.Tensor", layout=row_major)
def masked_fill(x: TensorType, mask: TensorType, value: Any) -> TensorType:
    """Of the first operand's dtype, broadcast with the mask."""
    require(mask.dtype == torch.bool and x.dtype in PLAIN)
    if isinstance(value, TensorType):
        require(not value.sizes and value.dtype == x.dtype)
    else:
        require(x.dtype in FLOATS or result_dtype(x, value) == x.dtype)
    return _broadcast(x.dtype, x, mask)


@pointwise_rule("aten::lerp.Scalar", "aten::lerp.Tensor")
def lerp(x: TensorType, end: TensorType, weight: Any) -> TensorType:
    """Of the dtype of all operands."""
    tensors = [item for item in (x, end, weight) if isinstance(item, TensorType)]
    require(x.dtype in FLOATS and all(item.dtype == x.dtype for item in tensors))
    return _broadcast(x.dtype, *tensors)


@pointwise_rule("aten::addcmul", "aten::addcdiv")
def add_product(x: TensorType, y: TensorType, z: TensorType, value: Any) -> TensorType:
    """Of common dtype, of floats."""
    require(all(item.dtype in FLOATS for item in (x, y, z)))
    return _broadcast(result_dtype(x, y, z), x, y, z)


def _broadcast(dtype: torch.dtype, *operands: Any) -> TensorType:
    """A tensor of this dtype with the common sizes of those operands that are tensors."""
    tensors = [item for item in operands if isinstance(item, TensorType)]
    sizes = broadcast(*(item.sizes for item in tensors))
    first = tensors[0]
    return first if sizes is first.sizes and dtype == first.dtype else TensorType(dtype, sizes)
