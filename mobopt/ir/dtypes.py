"""Dtypes of tensors by the names and the numbers that TorchScript has for them."""

from __future__ import annotations

import torch

SCALAR_TYPES: dict[int, torch.dtype] = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    15: torch.bfloat16,
}
"""By number; source: ``c10/core/ScalarType.h``."""

SCALAR_NUMBERS: dict[torch.dtype, int] = {dtype: number for number, dtype in SCALAR_TYPES.items()}
"""The numbers by dtype."""

DTYPES: dict[str, torch.dtype] = {
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Half": torch.float16,
    "Float": torch.float32,
    "Double": torch.float64,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
    "Bool": torch.bool,
    "BFloat16": torch.bfloat16,
}
"""By the names of graph text (``Float(1, 3)``)."""

DTYPE_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}
"""The names of graph text by dtype; there are dtypes without one."""
