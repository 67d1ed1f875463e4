"""Numbers that serialised programs have for dtypes, layouts and memory formats, and TorchScript's for the same.

Source: ``torch/_export/serde/schema.py``.
"""

from __future__ import annotations

from typing import Any

import torch

from mobopt.errors import BundleError
from mobopt.ir.dtypes import SCALAR_NUMBERS

DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    10: torch.complex64,
    11: torch.complex128,
    12: torch.bool,
    13: torch.bfloat16,
}
"""Those that are read, by number."""
NARROW_FLOATS = {
    29: torch.float8_e4m3fn,
    30: torch.float8_e5m2,
    31: torch.float8_e4m3fnuz,
    32: torch.float8_e5m2fnuz,
}
"""Those of tensors that a program may hold, as float32 then, which has every one of their numbers."""
_MEMORY_FORMATS = {1: 0, 2: 2, 3: 3, 4: 1}
"""Contiguous, channels last, channels last in three dimensions, preserve."""
_STRIDED, _TORCHSCRIPTS_STRIDED = 7, 0


def dtype_of(number: Any) -> torch.dtype:
    """The dtype of a number.

    Raises:
        BundleError: no model that is converted has tensors of it.
    """
    if number in NARROW_FLOATS:
        raise BundleError(
            f"a tensor is computed as {NARROW_FLOATS[number]}, which is read of weights alone; round weights only, as "
            "torchao's Float8WeightOnlyConfig does"
        )
    if number not in DTYPES:
        raise BundleError(
            f"a tensor has the dtype of number {number!r}; {', '.join(map(str, SCALAR_NUMBERS))} are read"
        )
    return DTYPES[number]


def scalar_type(number: Any) -> int:
    """TorchScript's number of a dtype."""
    return SCALAR_NUMBERS[dtype_of(number)]


def memory_format(number: Any) -> int:
    """TorchScript's number of a memory format.

    Raises:
        BundleError: there is none.
    """
    if number not in _MEMORY_FORMATS:
        raise BundleError(f"there is no memory format of number {number!r}")
    return _MEMORY_FORMATS[number]


def layout(number: Any) -> int:
    """TorchScript's number of a layout.

    Raises:
        BundleError: it is a sparse one, or none.
    """
    if number != _STRIDED:
        raise BundleError(f"a tensor has the layout of number {number!r}; only strided tensors are read")
    return _TORCHSCRIPTS_STRIDED
