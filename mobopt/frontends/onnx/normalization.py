"""Normalisations."""

from __future__ import annotations

from typing import Any

import torch

from mobopt.frontends.onnx.operands import Operand
from mobopt.frontends.onnx.patterns import is_all
from mobopt.frontends.onnx.registry import MICROSOFT, Call, translates


@translates("BatchNormalization")
def _batch_norm(call: Call) -> Any:
    emit = call.emit
    scale, bias, mean, variance = (call.tensor(index) for index in range(1, 5))
    epsilon, momentum = call.get("epsilon", 1e-5), call.get("momentum", 0.9)
    if call.version < 9 and not call.get("spatial", 1):
        centred = emit("sub.Tensor", call.tensor(), mean)
        deviation = emit("sqrt", emit("add.Scalar", variance, epsilon))
        return emit("add.Tensor", emit("mul.Tensor", emit("div.Tensor", centred, deviation), scale), bias)
    if call.version >= 14 and call.get("training_mode", 0):
        return _training_batch_norm(call, scale, bias, mean, variance, epsilon, momentum)
    if call.rank() < 2 or not call.dtype().is_floating_point:
        raise call.unsupported("its input has no channels")
    if call.dtype() != call.dtype(3):
        mean, variance = emit("to.dtype", mean, call.dtype()), emit("to.dtype", variance, call.dtype())
    if call.dtype() != call.dtype(1):
        scale, bias = emit("to.dtype", scale, call.dtype()), emit("to.dtype", bias, call.dtype())
    return emit("batch_norm", call.tensor(), scale, bias, mean, variance, False, momentum, epsilon, False)


def _training_batch_norm(
    call: Call, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float, momentum: float
) -> Any:
    """By the batch's own moments; the running ones come out too."""
    emit, x, rank = call.emit, call.tensor(), call.rank()
    dims = [0, *range(2, rank)]
    own = emit("mean.dim", x, dims, True)
    centred = emit("sub.Tensor", x, own)
    spread = emit("mean.dim", emit("mul.Tensor", centred, centred), dims, True)
    shape = [1, -1, *[1] * (rank - 2)]
    result = emit("div.Tensor", centred, emit("sqrt", emit("add.Scalar", spread, epsilon)))
    result = emit("mul.Tensor", result, emit("reshape", scale, shape))
    result = emit("add.Tensor", result, emit("reshape", bias, shape))
    running = []
    for old, new in ((mean, own), (variance, spread)):
        kept = emit("mul.Scalar", old, momentum)
        running.append(emit("add.Tensor", kept, emit("mul.Scalar", emit("reshape", new, [-1]), 1 - momentum)))
    return [result, *running]


@translates("InstanceNormalization")
def _instance_norm(call: Call) -> Any:
    """Exporters give ones and zeros where a layer has no scale and bias, and where they take a group norm apart."""
    epsilon, scale, bias = call.get("epsilon", 1e-5), call.tensor(1), call.tensor(2)
    if is_all(scale, 1.0) and is_all(bias, 0.0):
        scale = bias = None
    return call.emit("instance_norm", call.tensor(0), scale, bias, None, None, True, 0.0, epsilon, False)


@translates("LayerNormalization")
def _layer_norm(call: Call) -> Any:
    epsilon, axis = call.get("epsilon", 1e-5), call.axis(-1)
    result = layer_norm(call, call.tensor(0), call.tensor(1), call.tensor(2), axis, epsilon)
    if not (call.wants(1) or call.wants(2)):
        return result
    return [result, *_moments(call, call.tensor(0), axis, epsilon)]


def layer_norm(call: Call, x: Any, scale: Any, bias: Any, axis: int, epsilon: float) -> Any:
    """Normalised over the dimensions from an axis on; scale and bias may be of fewer dimensions."""
    emit, sizes = call.emit, call.operand().sizes
    rest = (sizes or ())[axis:]
    fits = all(not call.has(index) or call.operand(index).known_sizes == tuple(rest) for index in (1, 2)) and all(
        size is not None for size in rest
    )
    if fits:
        return emit("layer_norm", x, list(rest), scale, bias, epsilon, False)
    if all(size is not None for size in rest):
        shape: list[Any] = list(rest)
    elif call.operand(1).rank == len(rest):
        shape = call.sizes(1)
        return emit("layer_norm", x, shape, scale, bias, epsilon, False)
    else:
        shape = [call.size(0, dim) for dim in range(axis, call.rank())]
    result = emit("layer_norm", x, shape, None, None, epsilon, False)
    result = emit("mul.Tensor", result, scale) if scale is not None else result
    return emit("add.Tensor", result, bias) if bias is not None else result


def _moments(call: Call, x: Any, axis: int, epsilon: float) -> list[Any]:
    """Mean and reciprocal of the deviation, which the operator gives beside the result."""
    emit, dims = call.emit, list(range(axis, call.rank()))
    x = emit("to.dtype", x, torch.float32) if call.dtype() in (torch.float16, torch.bfloat16) else x
    mean = emit("mean.dim", x, dims, True)
    centred = emit("sub.Tensor", x, mean)
    variance = emit("mean.dim", emit("mul.Tensor", centred, centred), dims, True)
    return [mean, emit("rsqrt", emit("add.Scalar", variance, epsilon))]


@translates("LayerNormalization", domain=MICROSOFT)
def _layer_norm_of_microsoft(call: Call) -> Any:
    result = layer_norm(call, call.tensor(0), call.tensor(1), call.tensor(2), call.axis(-1), call.get("epsilon", 1e-5))
    return [call.like(result)]


@translates("SkipLayerNormalization", domain=MICROSOFT)
def _skip_layer_norm(call: Call) -> Any:
    """``layer_norm(x + skip + bias)``; the fourth output is the sum."""
    emit = call.emit
    total = emit("add.Tensor", call.tensor(0), call.tensor(1))
    if call.has(4):
        total = emit("add.Tensor", total, call.tensor(4))
    result = emit("layer_norm", total, call.sizes(2), call.tensor(2), call.tensor(3), call.get("epsilon", 1e-12), False)
    return [call.like(result), None, None, call.like(total)]


@translates("EmbedLayerNormalization", domain=MICROSOFT)
def _embed_layer_norm(call: Call) -> Any:
    """Embeddings of words, positions and segments, added and normalised; how long the masks are; the sum."""
    emit, words = call.emit, call.tensor(0)
    total = emit("embedding", call.tensor(2), words)
    length = call.size(0, 1)
    if call.has(8):
        total = emit("add.Tensor", total, emit("embedding", call.tensor(3), call.tensor(8)))
    else:
        total = emit("add.Tensor", total, emit("slice.Tensor", call.tensor(3), 0, 0, length, 1))
    if call.has(1):
        total = emit("add.Tensor", total, emit("embedding", call.tensor(4), call.tensor(1)))
    result = emit("layer_norm", total, call.sizes(5), call.tensor(5), call.tensor(6), call.get("epsilon", 1e-12), False)
    seen = emit("eq.Scalar", call.tensor(7), 1) if call.has(7) else emit("zeros_like", words, dtype=torch.bool)
    lengths = emit("to.dtype", emit("sum.dim_IntList", seen, [1]), torch.int32) if call.wants(1) else None
    kinds = ((call.dtype(2), result), (torch.int32, lengths), (call.dtype(2), total))
    return [
        None if value is None else Operand(dtype, (None,) * (1 if value is lengths else 3), value)
        for dtype, value in kinds
    ]


def rms_norm(call: Call, x: Any, scale: Any, axis: int, epsilon: float, rank: int) -> Any:
    """Divided by the root of the mean square over the dimensions from an axis on."""
    emit, dtype = call.emit, call.dtype()
    is_narrow = dtype in (torch.float16, torch.bfloat16)
    wide = emit("to.dtype", x, torch.float32) if is_narrow else x
    mean = emit("mean.dim", emit("mul.Tensor", wide, wide), list(range(axis, rank)), True)
    result = emit("mul.Tensor", wide, emit("rsqrt", emit("add.Scalar", mean, epsilon)))
    result = emit("to.dtype", result, dtype) if is_narrow else result
    return emit("mul.Tensor", result, scale)


@translates("RMSNormalization")
def _rms_norm(call: Call) -> Any:
    return rms_norm(call, call.tensor(0), call.tensor(1), call.axis(-1), call.get("epsilon", 1e-5), call.rank())


@translates("SimplifiedLayerNormalization", domain=MICROSOFT)
def _simplified_layer_norm(call: Call) -> Any:
    result = rms_norm(call, call.tensor(0), call.tensor(1), call.axis(-1), call.get("epsilon", 1e-5), call.rank())
    return [call.like(result)]


@translates("SimplifiedLayerNormalization")
def _simplified_layer_norm_of_onnx(call: Call) -> Any:
    return _simplified_layer_norm(call)


@translates("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_simplified_layer_norm(call: Call) -> Any:
    total = call.emit("add.Tensor", call.tensor(0), call.tensor(1))
    if call.has(3):
        total = call.emit("add.Tensor", total, call.tensor(3))
    rank = call.rank()
    result = rms_norm(call, total, call.tensor(2), rank - 1, call.get("epsilon", 1e-12), rank)
    return [call.like(result), None, None, call.like(total)]


@translates("GroupNormalization")
def _group_norm_of_groups(call: Call) -> Any:
    """Up to opset 20 scale and bias were of groups."""
    emit, groups, rank = call.emit, call.get("num_groups"), call.rank()
    result = emit("group_norm", call.tensor(0), groups, None, None, call.get("epsilon", 1e-5), False)
    each = emit("floordiv.int", call.size(0, 1), groups)
    shape = [1, -1, *[1] * (rank - 2)]
    scale, bias = (
        emit("reshape", emit("repeat_interleave.self_int", call.tensor(index), each), shape) for index in (1, 2)
    )
    return emit("add.Tensor", emit("mul.Tensor", result, scale), bias)


@translates("GroupNormalization", since=21)
def _group_norm(call: Call) -> Any:
    groups, epsilon = call.get("num_groups"), call.get("epsilon", 1e-5)
    return call.emit("group_norm", call.tensor(0), groups, call.tensor(1), call.tensor(2), epsilon, False)


@translates("GroupNorm", domain=MICROSOFT)
def _group_norm_of_microsoft(call: Call) -> Any:
    emit, x = call.emit, call.tensor(0)
    is_last = call.get("channels_last", 1)
    x = emit("permute", x, [0, 3, 1, 2]) if is_last else x
    x = emit("group_norm", x, call.get("groups"), call.tensor(1), call.tensor(2), call.get("epsilon", 1e-5), False)
    x = emit("silu", x) if call.get("activation") == 1 else x
    return [call.like(emit("permute", x, [0, 2, 3, 1]) if is_last else x)]


@translates("LRN")
def _lrn(call: Call) -> Any:
    """Divided by a power of the mean square over near channels."""
    emit, x = call.emit, call.tensor()
    size, rank = call.get("size"), call.rank()
    alpha, beta, bias = call.get("alpha", 1e-4), call.get("beta", 0.75), call.get("bias", 1.0)
    square = emit("unsqueeze", emit("mul.Tensor", x, x), 1)  # N, 1, C, ...
    before, after = (size - 1) // 2, size // 2
    flat = (
        emit("reshape", square, [call.size(0, 0), 1, call.size(0, 1), -1])
        if rank > 2
        else emit("unsqueeze", square, -1)
    )
    flat = emit("constant_pad_nd", flat, [0, 0, before, after], 0)
    mean = emit("avg_pool2d", flat, [size, 1], [1, 1], [0, 0], False, True, None)
    mean = emit("reshape", mean, call.sizes())
    divisor = emit("pow.Tensor_Scalar", emit("add.Scalar", emit("mul.Scalar", mean, alpha), bias), beta)
    return emit("div.Tensor", x, divisor)
