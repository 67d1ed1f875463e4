"""Which dtype several operands have together.

Source: ``aten/src/ATen/native/TypeProperties.cpp`` of PyTorch: tensors with dimensions come before tensors without, and
these before Python's numbers; one that comes later counts only if its category (bool, integer, float) is higher.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from mobopt.ir.dimensions import Expression
from mobopt.ir.types import TensorType
from mobopt.ops.shapes.rules import FLOATS, PLAIN, require


def result_dtype(*operands: Any) -> torch.dtype:
    """The dtype of what operators compute from tensors (their types), numbers and None, which doesn't count.

    Raises:
        NoRuleError: a dtype is complex, quantized or otherwise not plain.
    """
    ranked: torch.dtype | None = None
    zero: torch.dtype | None = None
    number: torch.dtype | None = None
    for operand in operands:
        if isinstance(operand, TensorType):
            require(operand.dtype in PLAIN)
            if operand.sizes:
                ranked = operand.dtype if ranked is None else _promoted(ranked, operand.dtype)
            else:
                zero = operand.dtype if zero is None else _promoted(zero, operand.dtype)
        elif operand is not None:
            kind = number_dtype(operand)
            number = kind if number is None else _promoted(number, kind)
    result = _combined(ranked, _combined(zero, number))
    require(result is not None)
    return result  # type: ignore[return-value]


def number_dtype(value: Any) -> torch.dtype:
    """The dtype of a Python number."""
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, (int, Expression)):
        return torch.int64
    require(isinstance(value, float))
    return torch.get_default_dtype()


def float_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which functions of real numbers are computed."""
    if dtype in FLOATS:
        return dtype
    require(dtype in PLAIN)
    return torch.get_default_dtype()


_promoted = cache(torch.promote_types)


def _combined(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher in FLOATS:
        return higher
    if higher is torch.bool or lower in FLOATS:
        return _promoted(higher, lower)
    return higher
