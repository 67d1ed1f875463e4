"""Quantised tensors, and floats that integers of few bits stand for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mobopt.ir.dimensions import Dimension
from mobopt.ir.types import TensorType
from mobopt.ops.affine_tensor import DTYPES
from mobopt.ops.fake_quantize import FAKE_QUANTIZE, GATES, ROUNDED_GATE
from mobopt.ops.quantized import BITS, DEQUANTIZE
from mobopt.ops.shapes.rules import FLOATS, INTEGERS, equal, require, shape_rule


@shape_rule("aten::quantize_per_tensor")
def quantize(x: TensorType, scale: float, zero_point: int, dtype: int) -> TensorType:
    """The same sizes; torch's meta kernel says that it gives floats."""
    require(x.dtype == torch.float32 and dtype in DTYPES)
    return TensorType(DTYPES[dtype], x.sizes)


@shape_rule("aten::dequantize.self")
def in_floats(x: TensorType) -> TensorType:
    """The same sizes."""
    require(x.dtype in DTYPES.values())
    return TensorType(torch.float32, x.sizes)


@shape_rule(FAKE_QUANTIZE)
def in_steps(x: TensorType, scale: float, low: int, high: int, inverse: float | None) -> TensorType:
    """As the operand."""
    require(x.dtype == torch.float32)
    return x


@shape_rule(ROUNDED_GATE)
def gated(x: TensorType, gate: str, scale: float, low: int, high: int, inverse: float | None) -> TensorType:
    """As the operand."""
    require(x.dtype == torch.float32 and gate in GATES)
    return x


@shape_rule(DEQUANTIZE)
def dequantize(
    values: TensorType,
    scales: TensorType,
    zero_points: TensorType | None,
    block_size: Sequence[int],
    bits: int,
    columns: int,
) -> TensorType:
    """The integers' sizes, with as many columns as there are of 4 bits; the scales' dtype."""
    require(scales.dtype in FLOATS and values.dtype in INTEGERS and values.rank and bits in BITS)
    require(values.rank == scales.rank == len(block_size))
    sizes: tuple[Dimension, ...] = (*values.sizes[:-1], columns)
    counts = tuple(-(-size // block) for size, block in zip(sizes, block_size, strict=True))
    require(values.sizes[-1] == (-(-columns // 2) if bits == 4 else columns) and equal(scales.sizes, counts))
    require(zero_points is None or equal(zero_points.sizes, counts))
    return TensorType(scales.dtype, sizes)
