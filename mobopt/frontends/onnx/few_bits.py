"""Constant weights of few bits, which stay integers: one operator makes floats of them where they are read."""

from __future__ import annotations

from typing import Any

import torch

from mobopt.frontends.onnx.emitter import Emitter
from mobopt.ir import Value
from mobopt.ops.quantized import DEQUANTIZE, Quantized, unpacked


def emitted(emit: Emitter, weight: Quantized, source: torch.Tensor | None = None) -> Value:
    """The floats of a weight, which is called what the tensor was called that it comes from."""
    if source is not None and source is not weight.values:
        emit.name_as(weight.values, source)
    floats: Value = emit(DEQUANTIZE, *weight.arguments)
    return floats


def of_rows(
    emit: Emitter,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    bits: int,
    columns: int,
    block: int,
) -> Value:
    """The floats of a matrix of 4 or 8 bits as ``com.microsoft`` has them.

    Args:
        emit: appends to the graph.
        packed: its integers, ``rows x bytes``; a row may have more bytes than its columns take.
        scales: ``rows x blocks``.
        zeros: of the same sizes, or integers ``rows x bytes``; None for the middle of what the bits hold.
        bits: of each number.
        columns: of the matrix.
        block: how many columns have a scale in common.
    """
    blocks = scales.shape[1]
    values = packed[:, : -(-columns * bits // 8)].contiguous()
    if zeros is None and bits == 8:
        zeros = torch.full(scales.shape, 128.0)
    elif zeros is not None and not zeros.dtype.is_floating_point:
        zeros = unpacked(zeros, blocks) if bits == 4 else zeros[:, :blocks]
    zeros = None if zeros is None else zeros.to(torch.float32)
    return emitted(emit, Quantized(values, scales.float(), zeros, (1, block), bits, columns), packed)


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
