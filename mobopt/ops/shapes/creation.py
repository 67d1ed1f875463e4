"""Operators that make tensors of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from mobopt.ir.dimensions import Dimension, Expression, ceil_divide
from mobopt.ir.types import TensorType
from mobopt.ops.shapes.promotion import number_dtype
from mobopt.ops.shapes.rules import PLAIN, dtype_of, require, shape_rule


def _made(sizes: Sequence[Dimension], dtype: torch.dtype) -> TensorType:
    require(all(size >= 0 for size in sizes))
    return TensorType(dtype, tuple(sizes))


@shape_rule("aten::zeros", "aten::ones", "aten::empty.memory_format", "aten::rand", "aten::randn")
def filled(sizes: Sequence[Dimension], dtype: Any, *_: Any) -> TensorType:
    """Of the default dtype, if no other is asked for."""
    return _made(sizes, dtype_of(dtype, torch.get_default_dtype()))


@shape_rule("aten::full")
def full(sizes: Sequence[Dimension], value: Any, dtype: Any, *_: Any) -> TensorType:
    """Of the number's dtype, if no other is asked for."""
    return _made(sizes, dtype_of(dtype, number_dtype(value)))


@shape_rule("aten::scalar_tensor")
def scalar_tensor(value: Any, dtype: Any, *_: Any) -> TensorType:
    """One number."""
    number_dtype(value)
    return TensorType(dtype_of(dtype, torch.get_default_dtype()), ())


@shape_rule("aten::zeros_like", "aten::ones_like", "aten::empty_like", "aten::rand_like", "aten::randn_like")
def filled_like(x: TensorType, dtype: Any, *_: Any) -> TensorType:
    """With the operand's sizes."""
    require(x.dtype in PLAIN)
    return TensorType(dtype_of(dtype, x.dtype), x.sizes)


@shape_rule("aten::full_like")
def full_like(x: TensorType, value: Any, dtype: Any, *_: Any) -> TensorType:
    """With the operand's sizes."""
    return filled_like(x, dtype)


@shape_rule("aten::new_zeros", "aten::new_ones", "aten::new_empty")
def new_filled(x: TensorType, sizes: Sequence[Dimension], dtype: Any, *_: Any) -> TensorType:
    """With the operand's dtype."""
    return _made(sizes, dtype_of(dtype, x.dtype))


@shape_rule("aten::new_full")
def new_full(x: TensorType, sizes: Sequence[Dimension], value: Any, dtype: Any, *_: Any) -> TensorType:
    """With the operand's dtype."""
    return _made(sizes, dtype_of(dtype, x.dtype))


@shape_rule("aten::arange")
def arange(end: Any, dtype: Any, *_: Any) -> TensorType:
    """From 0."""
    return _range(0, end, 1, dtype)


@shape_rule("aten::arange.start")
def arange_from(start: Any, end: Any, dtype: Any, *_: Any) -> TensorType:
    """In steps of 1."""
    return _range(start, end, 1, dtype)


@shape_rule("aten::arange.start_step")
def arange_in_steps(start: Any, end: Any, step: Any, dtype: Any, *_: Any) -> TensorType:
    """In steps."""
    return _range(start, end, step, dtype)


def _range(start: Any, end: Any, step: Any, dtype: Any) -> TensorType:
    is_whole = all(isinstance(item, (int, Expression)) for item in (start, end, step))
    made = dtype_of(dtype, torch.int64 if is_whole else torch.get_default_dtype())
    require(step != 0)
    if is_whole:
        span, stride = (end - start, step) if step > 0 else (start - end, -step)
        require(span >= 0)
        return TensorType(made, (ceil_divide(span, stride),))
    require((end - start) * step >= 0 and made.is_floating_point)
    return TensorType(made, (math.ceil((end - start) / step),))


@shape_rule("aten::linspace")
def linspace(start: Any, end: Any, steps: Dimension, dtype: Any, *_: Any) -> TensorType:
    """So many numbers."""
    return filled([steps], dtype)


@shape_rule("aten::eye")
def eye(count: Dimension, dtype: Any, *_: Any) -> TensorType:
    """A square."""
    return filled([count, count], dtype)


@shape_rule("aten::eye.m")
def eye_of_two(rows: Dimension, columns: Dimension, dtype: Any, *_: Any) -> TensorType:
    """A rectangle."""
    return filled([rows, columns], dtype)
