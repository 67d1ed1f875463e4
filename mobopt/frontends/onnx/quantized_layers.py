"""Layers of ``com.microsoft`` that take and give integers: those of floats, between what makes floats and integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx
import torch

from mobopt.frontends.onnx.few_bits import emitted, product
from mobopt.frontends.onnx.operands import Operand
from mobopt.frontends.onnx.quantization import float_of, quantized, rounded_dynamically, shifted, shifted_weight
from mobopt.frontends.onnx.recurrent import dynamically_quantized_lstm
from mobopt.frontends.onnx.registry import MICROSOFT, Call, translates, translation_of

_OPSET = 17
"""Of the layers of floats."""


def _of_floats(
    call: Call, operator: str, inputs: Sequence[Operand | None], domain: str = "", opset: int = _OPSET
) -> Any:
    """The first that a layer of floats gives; see :func:`_all_of_floats`."""
    found = _all_of_floats(call, operator, inputs, domain, opset)
    first = found[0] if isinstance(found, list) else found
    return first.tensor(call.emit) if isinstance(first, Operand) else first


def _all_of_floats(
    call: Call, operator: str, inputs: Sequence[Operand | None], domain: str = "", opset: int = _OPSET
) -> Any:
    """What a layer of floats gives.

    Args:
        call: of the layer of integers, which has the same attributes.
        operator: the layer of floats.
        inputs: its own.
        domain: its own.
        opset: the version of its domain.
    """
    node = onnx.NodeProto()
    node.CopyFrom(call.node)
    node.op_type, node.domain = operator, domain
    translation = translation_of(domain, operator, opset)
    assert translation is not None
    types = [(torch.float32, sizes) for _, sizes in call.types]
    return translation(replace(call, node=node, version=opset, inputs=inputs, types=types))


def _dequantized(call: Call, index: int) -> Operand:
    """An input with the scale and the zero point behind it, as floats."""
    x = call.emit("mul.Tensor", shifted(call, index, index + 2), call.tensor(index + 1))
    return Operand(torch.float32, call.operand(index).sizes, x)


def _quantized(call: Call, x: Any, index: int, dtype: torch.dtype, rank: int | None) -> Operand:
    """A result as integers, by the scale at an index and the zero point behind it."""
    zero = float_of(call, index + 1) if call.has(index + 1) else None
    return quantized(call, x, call.tensor(index), zero, dtype, None if rank is None else (None,) * rank)


def _moved(call: Call, operand: Operand, order: Sequence[int]) -> Operand:
    sizes = operand.sizes
    turned = None if sizes is None else tuple(sizes[dim] for dim in order)
    return Operand(operand.dtype, turned, call.emit("permute", operand.tensor(call.emit), list(order)))


@translates("QLinearAveragePool", "QLinearGlobalAveragePool", domain=MICROSOFT)
def _pool(call: Call) -> Any:
    x, rank = _dequantized(call, 0), call.rank()
    is_last = bool(call.get("channels_last", 0))
    x = _moved(call, x, [0, rank - 1, *range(1, rank - 1)]) if is_last else x
    result = _of_floats(call, call.node.op_type.removeprefix("QLinear"), [x])
    result = call.emit("permute", result, [0, *range(2, rank), 1]) if is_last else result
    return _quantized(call, result, 3, call.dtype(), rank)


@translates("NhwcMaxPool", domain=MICROSOFT)
def _max_pool(call: Call) -> Operand:
    rank = call.rank()
    x = _moved(call, call.operand(), [0, rank - 1, *range(1, rank - 1)])
    result = _of_floats(call, "MaxPool", [x])
    return call.like(call.emit("permute", result, [0, *range(2, rank), 1]), sizes=(None,) * rank)


@translates("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def _activation(call: Call) -> Any:
    result = _of_floats(call, call.node.op_type.removeprefix("QLinear"), [_dequantized(call, 0)])
    return _quantized(call, result, 3, call.dtype(), call.operand().rank)


@translates("QLinearReduceMean", domain=MICROSOFT)
def _mean(call: Call) -> Any:
    result = _of_floats(call, "ReduceMean", [_dequantized(call, 0)])
    return _quantized(call, result, 3, call.dtype(), call.rank() if call.get("keepdims", 1) else None)


@translates("QLinearSoftmax", domain=MICROSOFT)
def _softmax(call: Call) -> Any:
    result = _of_floats(call, "Softmax", [_dequantized(call, 0)], opset=int(call.get("opset", 13)))
    return _quantized(call, result, 3, call.dtype(), call.rank())


@translates("QLinearWhere", domain=MICROSOFT)
def _where(call: Call) -> Any:
    condition, x, y = call.operand(0), _dequantized(call, 1), _dequantized(call, 4)
    ranks = [item.rank for item in (condition, x, y)]
    result = _of_floats(call, "Where", [condition, x, y])
    return _quantized(call, result, 7, call.dtype(1), None if None in ranks else max(rank or 0 for rank in ranks))


def _weight(call: Call, index: int, scale: int, zero: int) -> Operand:
    """A matrix as floats, with scales and zero points of all of it or of its columns; a constant one stays integers."""
    held, scales, sizes = shifted_weight(call, index, zero), call.operand(scale).constant, call.operand(index).sizes
    if held is None or scales is None:
        x = call.emit("mul.Tensor", shifted(call, index, zero), call.tensor(scale))
        return Operand(torch.float32, sizes, x)
    rows, columns = held.sizes
    if scales.numel() > 1 or held.scales.numel() > 1:
        zeros = None if held.zero_points is None else held.zero_points.expand(1, columns)
        held = replace(held, block_size=(rows, 1), zero_points=zeros)
    steps = scales.float().reshape(1, -1).expand(1, columns if held.block_size[1] == 1 else 1).contiguous()
    return Operand(torch.float32, sizes, emitted(call.emit, replace(held, scales=steps), call.operand(index).constant))


@translates("QAttention", domain=MICROSOFT)
def _attention(call: Call) -> Any:
    emit = call.emit
    zero = float_of(call, 6) if call.has(6) else None
    x = float_of(call, 0)
    x = emit("mul.Tensor", x if zero is None else emit("sub.Tensor", x, zero), call.tensor(3))
    given = [Operand(torch.float32, call.operand(0).sizes, x), _weight(call, 1, 4, 7), call.operand(2)]
    rest = [call.operand(index) if call.has(index) else None for index in (5, 8)]
    if call.wants(1):
        raise call.unsupported("it gives its keys and values")
    result = _of_floats(call, "Attention", [*given, *rest], MICROSOFT, 1)
    return Operand(torch.float32, (None,) * 3, result)


@translates("QEmbedLayerNormalization", domain=MICROSOFT)
def _embeddings(call: Call) -> Any:
    """Tables, scale and bias are integers, with scales and zero points behind the mask."""
    tables: list[Operand | None] = [None] * 5
    for place, index in enumerate(range(2, 7)):
        if call.has(index) and call.rank(index) == 2:
            tables[place] = _weight(call, index, index + 6, index + 11)
        elif call.has(index):
            floats = call.emit("mul.Tensor", shifted(call, index, index + 11), call.tensor(index + 6))
            tables[place] = Operand(torch.float32, call.operand(index).sizes, floats)
    ids = [call.operand(index) if call.has(index) else None for index in (0, 1)]
    mask = call.operand(7) if call.has(7) else None
    return _all_of_floats(call, "EmbedLayerNormalization", [*ids, *tables, mask], MICROSOFT, 1)


@translates("DynamicQuantizeMatMul", domain=MICROSOFT)
def _dynamic_product(call: Call) -> Any:
    emit = call.emit
    rounded, step, zero = rounded_dynamically(call, call.tensor())
    left = emit("mul.Tensor", emit("sub.Tensor", rounded, zero), step)
    result = product(emit, left, _weight(call, 1, 2, 3).tensor(emit))
    return call.like(emit("add.Tensor", result, call.tensor(4)) if call.has(4) else result, sizes=(None,) * call.rank())


@translates("DynamicQuantizeLSTM", domain=MICROSOFT)
def _dynamic_lstm(call: Call) -> Any:
    """Weights lie ``directions x inputs x gates``, with scales of each direction, or of each of its gates' rows."""
    emit = call.emit

    def weight(index: int, scale: int) -> Operand:
        x = float_of(call, index)
        if call.has(scale + 1):
            x = emit("sub.Tensor", x, _of_columns(call, float_of(call, scale + 1), scale + 1))
        x = emit("mul.Tensor", x, _of_columns(call, call.tensor(scale), scale))
        return _moved(call, Operand(torch.float32, call.operand(index).sizes, x), [0, 2, 1])

    given = [call.operand(0), weight(1, 8), weight(2, 10)]
    rest = [call.operand(index) if call.has(index) else None for index in range(3, 8)]
    node = onnx.NodeProto()
    node.CopyFrom(call.node)
    node.op_type = "LSTM"
    return dynamically_quantized_lstm(replace(call, node=node, inputs=[*given, *rest]))


def _of_columns(call: Call, parameter: Any, index: int) -> Any:
    rank = call.rank(index)
    return call.emit("reshape", parameter, [-1, 1, 1]) if rank < 2 else call.emit("unsqueeze", parameter, 1)
