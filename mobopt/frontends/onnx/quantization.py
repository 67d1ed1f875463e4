"""Quantised models, in float arithmetic that is right by ONNX's definition.

Integers that were rounded are kept as floats too; what dequantises them reads those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from mobopt.frontends.onnx.convolution import convolved, kernel_sizes
from mobopt.frontends.onnx.elements import dtype_of, packed_bits
from mobopt.frontends.onnx.few_bits import emitted, product, transposed
from mobopt.frontends.onnx.operands import Operand, carrier
from mobopt.frontends.onnx.pointwise import rounded_to_float8
from mobopt.frontends.onnx.registry import MICROSOFT, Call, translates
from mobopt.ops.quantized import Quantized, block_counts, is_weight, weight_of

_MOST, _EXACT = 255, 1 << 24
"""What an integer of 8 bits is less its zero point at most; up to where float32 has all integers."""
_MOST_PIECES = 16
_LARGEST = torch.finfo(torch.float32).max


def _along(call: Call, parameter: Any, operand: Operand, index: int = 0) -> Any:
    """A scale or a zero point, in the form that fits an input: of all of it, of an axis, or of blocks."""
    emit = call.emit
    if operand.rank == 0 or operand.known_sizes == (1,):
        return emit("reshape", parameter, []) if operand.rank else parameter
    rank, axis, block = call.rank(index), call.axis(1, index), call.get("block_size", 0)
    if operand.rank == 1 and not block:
        shape = [1] * rank
        shape[axis] = -1
        return emit("reshape", parameter, shape)
    if not block:
        raise call.unsupported("its scales have several dimensions, and no block size")
    repeated = emit("repeat_interleave.self_int", parameter, block, axis)
    return emit("slice.Tensor", repeated, axis, 0, call.size(index, axis), 1)


def float_of(call: Call, index: int) -> Any:
    """An integer input as float32; what was rounded has that already."""
    operand = call.operand(index)
    if operand.unrounded is not None:
        return operand.unrounded
    return call.emit("to.dtype", call.tensor(index), torch.float32)


def quantized(call: Call, x: Any, scale: Any, zero: Any, dtype: torch.dtype, sizes: Any, bits: int = 0) -> Operand:
    """Rounded to the nearest, half to even, and clamped, to ``bits`` where integers have less than 8."""
    emit = call.emit
    x = emit("div.Tensor", x, scale)
    if dtype.is_floating_point:
        return Operand(dtype, sizes, rounded_to_float8(call, x, dtype, True))
    rounded = emit("round", x)
    rounded = emit("add.Tensor", rounded, zero) if zero is not None else rounded
    wide = bits or torch.iinfo(dtype).bits
    least = -(1 << wide - 1) if dtype.is_signed else 0
    rounded = emit("clamp", rounded, least, least + (1 << wide) - 1)
    return Operand(dtype, sizes, emit("to.dtype", rounded, carrier(dtype)), unrounded=rounded, bits=bits)


@translates("QuantizeLinear")
@translates("QuantizeLinear", domain=MICROSOFT)
def _quantize(call: Call) -> Any:
    emit = call.emit
    x = call.tensor(0)
    x = x if call.dtype() == torch.float32 else emit("to.dtype", x, torch.float32)
    scale = emit("to.dtype", call.tensor(1), torch.float32) if call.dtype(1) != torch.float32 else call.tensor(1)
    scale = _along(call, scale, call.operand(1))
    zero = _along(call, float_of(call, 2), call.operand(2)) if call.has(2) else None
    target = call.get("output_dtype", 0)
    dtype = call.dtype(2) if call.has(2) else dtype_of(target, call.place) if target else torch.uint8
    bits = call.operand(2).bits if call.has(2) else packed_bits(target)
    return quantized(call, x, scale, zero, dtype, call.operand().sizes, bits)


@translates("DequantizeLinear")
@translates("DequantizeLinear", domain=MICROSOFT)
def _dequantize(call: Call) -> Any:
    emit = call.emit
    weight = _weight(call)
    if weight is not None:
        return Operand(torch.float32, call.operand().sizes, emitted(emit, weight, call.operand().constant))
    x = float_of(call, 0)
    if call.has(2):
        zero = _along(call, float_of(call, 2), call.operand(2))
        x = emit("sub.Tensor", x, zero)
    target = call.get("output_dtype", 0)
    dtype = dtype_of(target, call.place) if target else call.dtype(1)
    scale = emit("to.dtype", call.tensor(1), torch.float32) if call.dtype(1) != torch.float32 else call.tensor(1)
    result = emit("mul.Tensor", x, _along(call, scale, call.operand(1)))
    if _may_overflow(call):
        result = emit("clamp", result, -_LARGEST, _LARGEST)
    result = result if dtype == torch.float32 else emit("to.dtype", result, dtype)
    return Operand(dtype, call.operand().sizes, result)


def _may_overflow(call: Call) -> bool:
    """Whether rounding makes a float infinite: the largest one, which masks add, is 65535 steps of 16 bits or more.

    onnxruntime's layers of integers make no such float, so that its masks of zeros stay zeros.
    """
    dtype, scale = call.dtype(), call.operand(1).constant
    if scale is None or scale.dtype != torch.float32 or dtype.is_floating_point or not scale.isfinite().all():
        return False
    zero = call.operand(2).constant if call.has(2) else torch.zeros(1)
    if zero is None:
        return False
    limits = torch.iinfo(dtype)
    steps = max(float((zero.double() - bound).abs().max()) for bound in (limits.min, limits.max))
    return steps * float(scale.double().max()) > _LARGEST


def _weight(call: Call) -> Quantized | None:
    """A constant weight with constant float32 scales, which stays integers; None for other inputs."""
    operand, scale = call.operand(), call.operand(1).constant
    integers = operand.constant
    target = call.get("output_dtype", 0)
    has_floats = not target or dtype_of(target, call.place) == torch.float32
    if integers is None or not is_weight(integers) or scale is None or scale.dtype != torch.float32 or not has_floats:
        return None
    zero = call.operand(2).constant if call.has(2) else None
    if call.has(2) and zero is None:
        return None
    sizes, block, blocks = list(integers.shape), call.get("block_size", 0), list(integers.shape)
    if scale.numel() > 1:
        if scale.dim() != (integers.dim() if block else 1):
            return None
        blocks = [1] * len(sizes) if block else blocks
        blocks[call.axis(1)] = block or 1
    counts = block_counts(sizes, blocks)
    zeros = None if zero is None else zero.float().reshape(counts)
    return weight_of(integers, scale.reshape(counts), zeros, blocks, operand.is_packed)


def shifted_weight(call: Call, index: int, zero: int) -> Quantized | None:
    """A constant weight less its constant zero points, which stays integers."""
    integers, point = call.operand(index).constant, call.operand(zero).constant if call.has(zero) else None
    if integers is None or not is_weight(integers) or (call.has(zero) and point is None):
        return None
    blocks = list(integers.shape)
    if point is not None and point.numel() > 1:
        if point.dim() > 1:
            return None
        blocks[0 if "Conv" in call.node.op_type or ("MatMul" in call.node.op_type and index == 0) else 1] = 1
    counts = block_counts(integers.shape, blocks)
    zeros = None if point is None else point.float().reshape(counts)
    return weight_of(integers, torch.ones(counts), zeros, blocks)


def shifted(call: Call, index: int, zero: int) -> Any:
    """An integer input less its zero point, as float32; constant weights stay integers."""
    weight = shifted_weight(call, index, zero)
    if weight is not None:
        return emitted(call.emit, weight, call.operand(index).constant)
    return _shifted_floats(call, index, zero)


def _shifted_floats(call: Call, index: int, zero: int) -> Any:
    """The same of what is computed, or of constants ahead of time."""
    x = float_of(call, index)
    if not call.has(zero):
        return x
    point, operand = float_of(call, zero), call.operand(zero)
    if operand.rank == 1 and operand.known_sizes != (1,):
        shape = [-1, *[1] * (call.rank(index) - 1)] if "Conv" in call.node.op_type else [1, -1]
        if "MatMul" in call.node.op_type and index == 0:
            shape = [-1, 1]
        point = call.emit("reshape", point, shape)
    elif operand.rank:
        point = call.emit("reshape", point, []) if operand.rank == 1 else point
    return call.emit("sub.Tensor", x, point)


def _requantized(call: Call, x: Any, scales: tuple[int, int, int], zero: int, rank: int | None) -> Operand:
    """An integer result by the scales of its operands and of the output."""
    emit = call.emit
    axis = 1 if "Conv" in call.node.op_type else -1
    factor = emit("mul.Tensor", call.tensor(scales[0]), _per_channel(call, scales[1], axis, rank))
    x = emit("mul.Tensor", x, emit("div.Tensor", factor, call.tensor(scales[2])))
    limits = torch.iinfo(call.dtype(zero))
    rounded = emit("add.Tensor", emit("round", x), float_of(call, zero))
    rounded = emit("clamp", rounded, limits.min, limits.max)
    sizes = None if rank is None else (None,) * rank
    return Operand(
        call.dtype(zero), call.inferred_sizes or sizes, emit("to.dtype", rounded, call.dtype(zero)), unrounded=rounded
    )


def _per_channel(call: Call, index: int, axis: int, rank: int | None) -> Any:
    operand = call.operand(index)
    if operand.rank != 1 or operand.known_sizes == (1,) or axis == -1 or rank is None:
        return call.tensor(index)
    return call.emit("reshape", call.tensor(index), [-1, *[1] * (rank - 2)])


@translates("QLinearConv")
@translates("QLinearConv", domain=MICROSOFT)
def _qlinear_conv(call: Call) -> Any:
    emit = call.emit
    if call.get("channels_last", 0):
        raise call.unsupported("its channels come last")
    x, weight = shifted(call, 0, 2), shifted(call, 3, 5)
    bias = emit("to.dtype", call.tensor(8), torch.float32) if call.has(8) else None
    result = convolved(call, x, weight, bias, kernel_sizes(call, 3))
    return _requantized(call, result, (1, 4, 6), 7, call.rank())


@translates("QLinearMatMul")
def _qlinear_matmul(call: Call) -> Any:
    result = product(call.emit, shifted(call, 0, 2), shifted(call, 3, 5))
    return _requantized(call, result, (1, 4, 6), 7, call.out_rank())


@translates("QGemm", domain=MICROSOFT)
def _qgemm(call: Call) -> Any:
    emit = call.emit
    a, b = shifted(call, 0, 2), shifted(call, 3, 5)
    a = emit("t", a) if call.get("transA", 0) else a
    b = transposed(emit, b) if call.get("transB", 0) else b
    result = product(emit, a, b)
    if call.has(6):
        result = emit("add.Tensor", result, emit("to.dtype", call.tensor(6), torch.float32))
    result = emit("mul.Scalar", result, call.get("alpha", 1.0))
    scale = emit("mul.Tensor", call.tensor(1), call.tensor(4))
    result = emit("mul.Tensor", result, scale)
    if not call.has(7):
        return Operand(torch.float32, (None, None), result)
    zero = float_of(call, 8)
    return quantized(call, result, call.tensor(7), zero, call.dtype(8), (None, None))


@translates("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def _qlinear_pair(call: Call) -> Any:
    emit = call.emit
    left = emit("mul.Tensor", shifted(call, 0, 2), call.tensor(1))
    right = emit("mul.Tensor", shifted(call, 3, 5), call.tensor(4))
    result = emit("add.Tensor" if call.node.op_type == "QLinearAdd" else "mul.Tensor", left, right)
    zero = float_of(call, 7) if call.has(7) else None
    ranks = [call.operand(index).rank for index in (0, 3)]
    sizes = None if None in ranks else (None,) * max(rank or 0 for rank in ranks)
    return quantized(call, result, call.tensor(6), zero, call.dtype(0), sizes)


@translates("QLinearConcat", domain=MICROSOFT)
def _qlinear_concat(call: Call) -> Any:
    emit = call.emit
    parts = []
    for index in range(2, len(call.inputs), 3):
        parts.append(emit("mul.Tensor", shifted(call, index, index + 2), call.tensor(index + 1)))
    joined = emit("cat", parts, call.get("axis"))
    rank = call.operand(2).rank
    sizes = None if rank is None else (None,) * rank
    return quantized(call, joined, call.tensor(0), float_of(call, 1), call.dtype(1), sizes)


@translates("ConvInteger")
def _conv_integer(call: Call) -> Any:
    """In float32, whose sums are exact below 2**24, of as many channels as never reach it; the rest in float64, which
    holds every sum of 32 bits. What turns them to floats reads sums in float32."""
    kernel = kernel_sizes(call)
    sums = convolved(call, _shifted_floats(call, 0, 2), shifted(call, 1, 3), None, kernel)
    return Operand(torch.int32, call.inferred_sizes, _exact_convolution(call, kernel), unrounded=sums)


def _exact_convolution(call: Call, kernel: Sequence[int]) -> Any:
    emit = call.emit
    x, weight = (_shifted_floats(call, index, index + 2) for index in (0, 1))
    pieces = _exact_pieces(call, weight, kernel)
    if pieces is None:
        x, weight = (emit("to.dtype", item, torch.float64) for item in (x, weight))
        return emit("to.dtype", convolved(call, x, weight, None, kernel), torch.int32)
    total: Any = None
    for start, end in pieces:
        whole = len(pieces) == 1
        some, rows = (item if whole else emit("slice.Tensor", item, 1, start, end, 1) for item in (x, weight))
        part = emit("to.dtype", convolved(call, some, rows, None, kernel), torch.int32)
        total = part if total is None else emit("add.Tensor", total, part)
    return total


def _exact_pieces(call: Call, weight: Any, kernel: Sequence[int]) -> list[tuple[int, int]] | None:
    """Channels of convolutions no sum of which reaches 2**24 in any order; None where a single one's may, or groups
    would have to be taken apart."""
    channels = (call.operand(1).sizes or (None, None))[1]
    if channels is None:
        return None
    if isinstance(weight, torch.Tensor):
        sums = weight.abs().flatten(2).sum(2).amax(0).double() if weight.numel() else torch.zeros(channels)
    else:
        sums = torch.full((channels,), float(_MOST * math.prod(kernel)))
    pieces, begin, held = list[tuple[int, int]](), 0, 0.0
    for channel, reach in enumerate((sums * _MOST).tolist()):
        if reach >= _EXACT:
            return None
        if held + reach >= _EXACT:
            pieces.append((begin, channel))
            begin, held = channel, 0.0
        held += reach
    pieces.append((begin, channels))
    return pieces if len(pieces) == 1 or (call.get("group", 1) == 1 and len(pieces) <= _MOST_PIECES) else None


@translates("MatMulInteger")
def _matmul_integer(call: Call) -> Any:
    emit = call.emit
    left, right = (emit("to.dtype", _shifted_floats(call, index, index + 2), torch.int32) for index in (0, 1))
    sums = product(emit, _shifted_floats(call, 0, 2), shifted(call, 1, 3))
    return Operand(torch.int32, call.inferred_sizes, emit("matmul", left, right), unrounded=sums)


def rounded_dynamically(call: Call, x: Any) -> tuple[Any, Any, Any]:
    """Floats as 0 to 255, by the least and the greatest element, and zero; the step, and what stands for zero. Where
    all are zero the step is 1, as in onnxruntime."""
    emit = call.emit
    low = emit("clamp_max", emit("amin", x), 0)
    high = emit("clamp_min", emit("amax", x), 0)
    extent = emit("sub.Tensor", high, low)
    step = emit("where.self", emit("eq.Scalar", extent, 0), torch.tensor(1.0), emit("div.Scalar", extent, 255.0))
    zero = emit("clamp", emit("round", emit("div.Tensor", emit("neg", low), step)), 0, 255)
    rounded = emit("add.Tensor", emit("round", emit("div.Tensor", x, step)), zero)
    return emit("clamp", rounded, 0, 255), step, zero


@translates("DynamicQuantizeLinear")
def _dynamic_quantize(call: Call) -> Any:
    """To uint8."""
    rounded, step, zero = rounded_dynamically(call, call.tensor())
    integers, point = (call.emit("to.dtype", item, torch.uint8) for item in (rounded, zero))
    return [
        Operand(torch.uint8, call.operand().sizes, integers, unrounded=rounded),
        Operand(torch.float32, (), step),
        Operand(torch.uint8, (), point, unrounded=zero),
    ]


@translates("MatMulIntegerToFloat", domain=MICROSOFT)
def _matmul_to_float(call: Call) -> Any:
    emit = call.emit
    a, b = shifted(call, 0, 4), shifted(call, 1, 5)
    result = emit("mul.Tensor", product(emit, a, b), emit("mul.Tensor", call.tensor(2), call.tensor(3)))
    result = emit("add.Tensor", result, call.tensor(6)) if call.has(6) else result
    rank = call.operand().rank
    return Operand(torch.float32, None if rank is None else (None,) * rank, result)
