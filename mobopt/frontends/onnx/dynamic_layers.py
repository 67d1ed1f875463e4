"""Layers whose inputs are rounded in each call, as ``onnxruntime.quantization.quantize_dynamic`` writes them.

``DynamicQuantizeLinear``, then ``MatMulInteger`` or ``ConvInteger``, a cast to floats, and a product with both scales:
the layer of floats of an input in steps, and of a weight that stays integers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from mobopt.frontends.onnx.few_bits import emitted, held_by
from mobopt.frontends.onnx.patterns import is_none, made_by
from mobopt.frontends.onnx.registry import Call
from mobopt.ir import Node, Value
from mobopt.ops.quantized import Quantized, block_counts

_IS_LAYER = re.compile(r"aten::(linear|conv[123]d)").fullmatch


def scaled_layer(call: Call, factors: Sequence[Any]) -> Any:
    """The product of a layer's sums of integers and of the scales of its input and its weight; None if it is none."""
    for sums, scales in (factors, factors[::-1]):
        layer = _layer(sums)
        both = made_by(scales, "aten::mul.Tensor")
        if layer is None or both is None:
            continue
        step, scale = both.inputs if both.inputs[1].is_constant else both.inputs[::-1]
        if not scale.is_constant or not _is_rounded_by(layer.inputs[0], step):
            continue
        weight = _scaled_weight(call, layer, scale.constant)
        if weight is not None:
            x = call.emit("mul.Tensor", layer.inputs[0], step)
            return call.emit(layer.op.removeprefix("aten::"), x, weight, *layer.inputs[2:])
    return None


def biased_layer(call: Call, terms: Sequence[Any]) -> Any:
    """The sum of a layer without a bias, and of its bias; None if it is none."""
    for index, (sums, bias) in enumerate((terms, terms[::-1])):
        layer = _layer(sums)
        if layer is None or not isinstance(bias, torch.Tensor) or not is_none(layer.inputs[2]):
            continue
        weight, rank = held_by(layer.inputs[1]), call.operand(index).rank
        if weight is None or rank is None or bias.dim() > rank:
            continue
        count, ones = weight.sizes[0], [1] * (len(weight.sizes) - 2)
        if bias.numel() == count and list(bias.shape) == [*[1] * (bias.dim() - 1 - len(ones)), count, *ones]:
            name = layer.op.removeprefix("aten::")
            return call.emit(name, *layer.inputs[:2], bias.reshape(-1), *layer.inputs[3:])
    return None


def _layer(sums: Any) -> Node | None:
    """The linear layer or convolution that makes a value."""
    node = sums.producer if isinstance(sums, Value) else None
    return node if node is not None and _IS_LAYER(node.qualified_op) else None


def _is_rounded_by(x: Value, step: Value) -> bool:
    """Whether ``x`` is integers less their zero point, of floats that were divided by this one step."""
    whole = _source(_source(x, "aten::sub.Tensor"), "aten::clamp")
    quotient = made_by(_source(_source(whole, "aten::add.Tensor"), "aten::round"), "aten::div.Tensor")
    return quotient is not None and quotient.inputs[1] is step


def _source(value: Value | None, qualified_op: str) -> Value | None:
    """What an operator made a value of, if it is this one."""
    node = made_by(value, qualified_op)
    return None if node is None else node.inputs[0]


def _scaled_weight(call: Call, layer: Node, scale: torch.Tensor) -> Any:
    """The weight of a layer with a scale in it, of the whole of it or of each output channel; None if it is neither."""
    whole, weight = layer.inputs[1], held_by(layer.inputs[1])
    if weight is None and not whole.is_constant:
        return None
    sizes = whole.constant.shape if weight is None else weight.sizes
    ones = [1] * (len(sizes) - 2)
    if scale.numel() == 1:
        counts = [1] * len(sizes)
    elif list(scale.shape) in ([sizes[0], *ones], [1, sizes[0], *ones]):
        counts = [sizes[0], 1, *ones]
    else:
        return None
    if weight is None:
        return whole.constant * scale.reshape(counts)
    return emitted(call.emit, _with_scale(weight, scale.reshape(counts)), weight.values)


def _with_scale(weight: Quantized, scale: torch.Tensor) -> Quantized:
    blocks = (1 if scale.shape[0] > 1 else weight.block_size[0], *weight.block_size[1:])
    counts = block_counts(weight.sizes, blocks)
    zeros = None if weight.zero_points is None else weight.zero_points.expand(counts).contiguous()
    scales = (weight.scales * scale).expand(counts).contiguous()
    return Quantized(weight.values, scales, zeros, blocks, weight.bits, weight.columns)
