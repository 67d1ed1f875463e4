"""Inputs for a model: from ``.npy`` files, or random from a description."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy
import torch

from mobopt.errors import InputError

_DTYPES = ("float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
_INTEGERS_BELOW = 10
SEED = 0


def read_inputs(paths: Sequence[Path]) -> list[torch.Tensor]:
    """Read one tensor from each ``.npy`` file.

    Raises:
        InputError: a file can't be read or is not a plain array of numbers.
    """
    return [_read(path) for path in paths]


def _read(path: Path) -> torch.Tensor:
    try:
        array = numpy.load(path, allow_pickle=False)
        if not isinstance(array, numpy.ndarray):
            raise ValueError("it holds several arrays")
        return torch.from_numpy(numpy.ascontiguousarray(array).reshape(array.shape))
    except OSError as error:
        raise InputError(f"can't read the input {path}: {error.strerror or error}") from None
    except (ValueError, TypeError, EOFError) as error:
        raise InputError(f"the input {path} is not a .npy file of numbers: {error}; write it with numpy.save") from None


def random_inputs(descriptions: Sequence[str], seed: int = SEED) -> list[torch.Tensor]:
    """Make one random tensor for each description, such as ``1,3,224,224`` or ``1,16:int64``.

    Floating-point tensors are normally distributed, integers are in 0..9.

    Raises:
        InputError: a description can't be read.
    """
    generator = torch.Generator().manual_seed(seed)
    return [_random(description, generator) for description in descriptions]


def _random(description: str, generator: torch.Generator) -> torch.Tensor:
    sizes_text, _, dtype_name = description.partition(":")
    dtype_name = dtype_name or "float32"
    try:
        sizes = [int(size) for size in sizes_text.split(",") if size.strip()]
    except ValueError:
        sizes = [-1]
    if any(size < 0 for size in sizes):
        raise InputError(f"can't read the shape {description!r}; write sizes with commas, such as 1,3,224,224")
    if dtype_name not in _DTYPES:
        raise InputError(f"can't make {description!r}: the dtype is one of {', '.join(_DTYPES)}")
    dtype: torch.dtype = getattr(torch, dtype_name)
    high = 2 if dtype == torch.bool else _INTEGERS_BELOW
    try:
        if dtype.is_floating_point:
            return torch.randn(sizes, generator=generator).to(dtype)
        return torch.randint(high, sizes, generator=generator).to(dtype)
    except (RuntimeError, MemoryError):
        raise InputError(
            f"can't make {description!r}: it has {math.prod(sizes):,} elements; use smaller sizes"
        ) from None
