"""Constant weights of few bits, which stay integers: one operator makes floats of them where they are read."""

from __future__ import annotations

from typing import Any

import torch

from mobopt.frontends.onnx.emitter import Emitter
from mobopt.ir import Value
from mobopt.ops.quantized import DEQUANTIZE, MIDDLE, Quantized, packed

_LEAST = 1024
"""Elements of a weight; smaller ones are computed ahead of time."""


def is_weight(tensor: Any) -> bool:
    """Whether a constant of integers is worth keeping as it is."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.dtype in (torch.int8, torch.uint8)
        and tensor.dim() > 1
        and tensor.numel() >= _LEAST
    )


def weight_of(
    integers: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    block_size: list[int],
    has_four_bits: bool = False,
) -> Quantized:
    """A weight from integers one in a byte, int8 or uint8, with float32 scales for blocks.

    Args:
        integers: of any rank.
        scales: one for each block.
        zero_points: likewise; None for 0.
        block_size: elements that share a scale, for each dimension.
        has_four_bits: whether the integers have 4 bits at most.
    """
    columns = integers.shape[-1]
    zeros = None if zero_points is None or not zero_points.any() else zero_points.float()
    if not has_four_bits:
        return Quantized(integers, scales, zeros, tuple(block_size), 8, columns)
    middle = MIDDLE if integers.dtype == torch.int8 else 0
    zeros = torch.zeros_like(scales) if zeros is None else zeros
    shifted = None if bool((zeros + middle == MIDDLE).all()) else zeros + middle
    return Quantized(packed(integers + middle), scales, shifted, tuple(block_size), 4, columns)


def emitted(emit: Emitter, weight: Quantized, source: torch.Tensor | None = None) -> Value:
    """The floats of a weight, which is called what the tensor was called that it comes from."""
    if source is not None and source is not weight.values:
        emit.name_as(weight.values, source)
    floats: Value = emit(DEQUANTIZE, *weight.arguments)
    return floats


def held_by(value: Any) -> Quantized | None:
    """The weight whose floats a value is, if it is one's."""
    node = value.producer if isinstance(value, Value) else None
    if node is None or node.qualified_op != DEQUANTIZE or not all(item.is_constant for item in node.inputs):
        return None
    values, scales, zeros, block_size, bits, columns = (item.constant for item in node.inputs)
    return Quantized(values, scales, zeros, tuple(block_size), bits, columns)


def transposed(emit: Emitter, matrix: Any) -> Any:
    """A matrix with its rows and columns exchanged; weights of few bits stay such."""
    weight = held_by(matrix)
    return emit("t", matrix) if weight is None else emitted(emit, weight.transposed(), weight.values)


def product(emit: Emitter, left: Any, right: Any) -> Any:
    """A product of matrices; with a weight of few bits it is a linear layer."""
    weight = held_by(right)
    if weight is None or len(weight.sizes) != 2:
        return emit("matmul", left, right)
    return emit("linear", left, transposed(emit, right), None)
