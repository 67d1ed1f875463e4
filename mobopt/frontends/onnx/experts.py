"""Mixtures of experts of ``com.microsoft``: every token goes through the few layers that a router gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mobopt.frontends.onnx.few_bits import of_rows
from mobopt.frontends.onnx.operands import Operand
from mobopt.frontends.onnx.registry import MICROSOFT, Call, translates

_Matrix = Callable[[int, int], Any]
"""The weight of a layer (1 to 3) of an expert: ``outputs x inputs``."""
_FUSIONS = _SPLIT, _INTERLEAVED, _JOINED = range(3)
"""Where SwiGLU's gate lies (``swiglu_fusion``): in a layer of its own, in every other row, in the first half."""


@translates("MoE", domain=MICROSOFT)
def _experts(call: Call) -> Operand:
    def matrix(layer: int, expert: int) -> Any:
        return call.emit("select.int", call.tensor(2 * layer), 0, expert)

    return _mixture(call, matrix, (3, 5, 7), _shares(call, bool(call.get("normalize_routing_weights", 0))))


@translates("QMoE", domain=MICROSOFT)
def _experts_of_few_bits(call: Call) -> Operand:
    """Weights are constant, of 4 or 8 bits, with a scale for each row, or for each block of columns."""
    if call.get("quant_type", "int") != "int" or call.get("weights_prepacked", -1) == 1:
        raise call.unsupported("its weights are no plain integers")

    def matrix(layer: int, expert: int) -> Any:
        weights, scales = (call.operand(3 * layer + part).constant for part in (-1, 0))
        zeros = call.operand(10 + layer).constant if call.has(10 + layer) else None
        bits = call.get(f"fc{layer}_expert_weight_bits", call.get("expert_weight_bits", 4))
        if weights is None or scales is None or bits not in (4, 8) or (zeros is None and call.has(10 + layer)):
            raise call.unsupported(f"its weights are computed, or have {bits} bits")
        columns = weights.shape[2] * 8 // bits
        rows = weights.shape[1]
        steps = scales[expert].reshape(rows, -1)
        points = None if zeros is None else _points(zeros[expert], rows, bits)
        return of_rows(call.emit, weights[expert], steps, points, bits, columns, call.get("block_size") or columns)

    return _mixture(call, matrix, (4, 7, 10), _shares(call, not call.has(14), 14))  # as onnxruntime's own for CPUs


def _points(zeros: torch.Tensor, rows: int, bits: int) -> torch.Tensor:
    """Zero points ``rows x bytes``; those of whole rows lie packed one after the other."""
    if zeros.dim() == 2:
        return zeros
    if bits == 8:
        return zeros[:rows].unsqueeze(1)
    return torch.stack([zeros & 15, zeros >> 4], 1).reshape(-1)[:rows].unsqueeze(1)


def _mixture(call: Call, matrix: _Matrix, biases: tuple[int, int, int], shares: Any) -> Operand:
    """The sum of what the experts give, weighted; of those that a token does not go through nothing is added.

    Args:
        call: of the node.
        matrix: gives weights.
        biases: where those of the three layers are among the inputs.
        shares: how much of each expert a token gets, ``tokens x experts``.
    """
    emit = call.emit
    count = (call.operand(1).sizes or (None,))[-1]
    if count is None:
        raise call.unsupported("the number of its experts is known at run time only")
    width = call.size(0, call.rank() - 1)
    x = emit("reshape", call.tensor(0), [-1, width])
    has_bias = [call.has(index) for index in biases]

    def layer(number: int, expert: int, value: Any) -> Any:
        bias = emit("select.int", call.tensor(biases[number - 1]), 0, expert) if has_bias[number - 1] else None
        return emit("linear", value, matrix(number, expert), bias)

    total: Any = None
    for expert in range(count):
        result = layer(2, expert, _activated(call, layer, expert, x))
        share = emit("slice.Tensor", shares, 1, expert, expert + 1, 1)
        given = emit("where.self", emit("ne.Scalar", share, 0), emit("mul.Tensor", result, share), torch.tensor(0.0))
        total = given if total is None else emit("add.Tensor", total, given)
    return call.like(emit("reshape", total, call.sizes()))


def _shares(call: Call, is_normalized: bool, mixing: int = -1) -> Any:
    """How much of each expert a token gets, ``tokens x experts``: zero of all but the ``k`` of the highest scores.

    Args:
        call: of the node.
        is_normalized: whether a token's shares add up to one.
        mixing: which input has the shares before that, if it is given; else they are the scores' softmax.
    """
    if call.get("use_sparse_mixer", 0):
        raise call.unsupported("it chooses experts by noise (use_sparse_mixer)")
    emit = call.emit
    chances = emit("softmax.int", call.tensor(1), -1)
    values, places = emit("topk", chances, call.get("k", 1), -1, True, True)
    values = emit("gather", call.tensor(mixing), 1, places) if call.has(mixing) and mixing > 0 else values
    if is_normalized or (mixing > 0 and call.get("normalize_routing_weights", 0)):
        values = emit("div.Tensor", values, emit("sum.dim_IntList", values, [-1], True))
    return emit("scatter.src", emit("zeros_like", chances), 1, places, values)


def _activated(call: Call, layer: Callable[[int, int, Any], Any], expert: int, x: Any) -> Any:
    """What the first layer gives, and its activation makes of it."""
    emit, name, fusion = call.emit, call.get("activation_type", "relu"), call.get("swiglu_fusion", 0)
    first = layer(1, expert, x)
    if name == "gelu":
        return emit("gelu", first, approximate="tanh")
    if name in ("relu", "silu"):
        return emit(name, first)
    if name == "identity":
        return first
    if name != "swiglu" or fusion not in _FUSIONS or call.get("swiglu_limit_after_activation", 0):
        raise call.unsupported(f"its activation is {name!r}")
    if fusion == _SPLIT:
        gate, value = first, layer(3, expert, x)
    elif fusion == _INTERLEAVED:
        gate, value = (emit("slice.Tensor", first, 1, start, None, 2) for start in (0, 1))
    else:
        half = emit("floordiv.int", call.size(2, 1), 2)
        gate, value = emit("slice.Tensor", first, 1, 0, half, 1), emit("slice.Tensor", first, 1, half, None, 1)
    limit = call.get("swiglu_limit")
    if limit is not None:
        gate, value = emit("clamp", gate, None, limit), emit("clamp", value, -limit, limit)
    chance = emit("sigmoid", emit("mul.Scalar", gate, call.get("activation_alpha", 1.0)))
    more = emit("add.Scalar", value, call.get("activation_beta", 0.0))
    return emit("mul.Tensor", emit("mul.Tensor", gate, chance), more)
