"""Layers that files write in steps, as their opset lacks them: layer norms before opset 17, GELU before opset 20.

Sources of the steps: ``torch/onnx/symbolic_opset9.py`` (``layer_norm``, ``gelu``), and Paddle2ONNX's ``layer_norm``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from mobopt.frontends.onnx.patterns import is_none, is_number, made_by
from mobopt.frontends.onnx.registry import Call
from mobopt.ir import Value

_ROUNDED = 1e-5
"""By how much exporters round the root of two, over itself."""


def normalized(call: Call, x: Any, y: Any) -> Any:
    """What the quotient of ``x`` and ``y`` is, if that is ``aten::layer_norm`` over the last dimension; else None.

    ``x`` is ``source - mean(source)``, and ``y`` is ``sqrt(mean(x * x) + eps)``.
    """
    center, root = made_by(x, "aten::sub.Tensor"), made_by(y, "aten::sqrt")
    sizes = call.operand(0).sizes
    if center is None or root is None or not sizes or sizes[-1] is None:
        return None
    added = made_by(root.inputs[0], "aten::add.Tensor")
    if added is None or not all(is_number(node.inputs[2], 1) for node in (center, added)):
        return None
    source, mean = center.inputs[:2]
    variance, eps = added.inputs[:2] if added.inputs[1].is_constant else added.inputs[1::-1]
    square = _mean_of_rows(variance, len(sizes))
    if _mean_of_rows(mean, len(sizes)) is not source or square is None or not _is_square(square, x):
        return None
    number = _number(eps.constant) if eps.is_constant else None
    return None if number is None else call.emit("layer_norm", source, [sizes[-1]], None, None, number)


def scaled_norm(call: Call, factors: Sequence[Any]) -> Any:
    """The product of a layer norm without a weight, and of its weight; None if it is none."""
    return _with(call, factors, "weight")


def shifted_norm(call: Call, terms: Sequence[Any]) -> Any:
    """The sum of a layer norm without a bias, and of its bias; None if it is none."""
    return _with(call, terms, "bias")


def _with(call: Call, operands: Sequence[Any], name: str) -> Any:
    for x, given in (operands, operands[::-1]):
        norm = made_by(x, "aten::layer_norm")
        if norm is None or not isinstance(given, torch.Tensor):
            continue
        source, shape, weight, bias, eps = norm.inputs[:5]
        if not (shape.is_constant and list(given.shape) == shape.constant and is_none(bias)):
            continue
        if name == "bias":
            return call.emit("layer_norm", source, shape, weight, given, eps)
        if is_none(weight):
            return call.emit("layer_norm", source, shape, given, bias, eps)
    return None


def gelu(call: Call, factors: Sequence[Any]) -> Any:
    """The product of ``x``, a half and ``1 + erf(x / sqrt(2))``, whichever are multiplied first; None if it is none."""
    parts: list[Any] = []
    for factor in factors:
        node = made_by(factor, "aten::mul.Tensor")
        parts += [factor] if node is None else node.inputs
    half = [part for part in parts if _is_about(part, 0.5)]
    curves = [(part, _source_of_curve(part)) for part in parts]
    curve = next(((part, source) for part, source in curves if source is not None), None)
    if len(parts) != 3 or len(half) != 1 or curve is None:
        return None
    rest = [part for part in parts if part is not half[0] and part is not curve[0]]
    is_source = len(rest) == 1 and rest[0] is curve[1]
    return call.emit("gelu", curve[1], approximate="none") if is_source else None


def _source_of_curve(value: Any) -> Value | None:
    """``x`` of ``1 + erf(x / sqrt(2))``."""
    added = made_by(value, "aten::add.Tensor")
    if added is None or not is_number(added.inputs[2], 1):
        return None
    for one, other in (added.inputs[:2], added.inputs[1::-1]):
        curve = made_by(one, "aten::erf")
        if curve is None or not _is_about(other, 1.0):
            continue
        for op, number in (("aten::div.Tensor", math.sqrt(2)), ("aten::mul.Tensor", math.sqrt(0.5))):
            scaled = made_by(curve.inputs[0], op)
            if scaled is not None and _is_about(scaled.inputs[1], number):
                return scaled.inputs[0]
    return None


def _mean_of_rows(value: Value, rank: int) -> Value | None:
    """What a value is the mean over the last dimension of, which is kept."""
    node = made_by(value, "aten::mean.dim")
    if node is None or not all(item.is_constant for item in node.inputs[1:3]):
        return None
    dims, keeps_dim = (item.constant for item in node.inputs[1:3])
    return node.inputs[0] if keeps_dim and dims and [dim % rank for dim in dims] == [rank - 1] else None


def _is_square(value: Value, x: Value) -> bool:
    power, product = made_by(value, "aten::pow.Tensor_Scalar"), made_by(value, "aten::mul.Tensor")
    if power is not None:
        return power.inputs[0] is x and is_number(power.inputs[1], 2)
    return product is not None and product.inputs[0] is x and product.inputs[1] is x


def _is_about(value: Any, number: float) -> bool:
    constant = value.constant if isinstance(value, Value) and value.is_constant else value
    found = _number(constant)
    return found is not None and abs(found - number) <= _ROUNDED * number


def _number(constant: Any) -> float | None:
    """A constant of one element as a number."""
    if isinstance(constant, torch.Tensor):
        return float(constant) if constant.numel() == 1 and constant.is_floating_point() else None
    return float(constant) if isinstance(constant, (int, float)) else None
