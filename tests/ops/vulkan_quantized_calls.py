"""Calls with quantised tensors, on which the conditions of Vulkan's rows are true, and such on which they are false."""

import torch
from row_calls import UNKNOWN, Computed, RowCall, call, tensor

from mobopt.ops.affine_tensor import AffineTensor
from mobopt.ops.contexts import QuantizedConv2dContext, QuantizedLinearContext


def _weight(*sizes: int) -> AffineTensor:
    integers = torch.zeros(sizes, dtype=torch.int8)
    return AffineTensor(integers, torch.ones(1, dtype=torch.double), torch.zeros(1), None)


def _convolution(inputs: int, groups: int = 1, padding: int = 0, dilation: int = 1) -> QuantizedConv2dContext:
    weight, bias = _weight(8, inputs // groups, 3, 3), torch.zeros(8)
    settings = ([1, 1], [padding, padding], [dilation, dilation], False, True, [0], groups, None, None)
    return QuantizedConv2dContext(weight, bias, *settings)


_LINEAR = QuantizedLinearContext(_weight(7, 5), torch.zeros(5))
_STEPS = {"scale": 0.5, "zero_point": 3}
_RUNS = "vulkan_prepack::run_qconv2d_context", "vulkan_prepack::run_qlinear_context"


def _integers(*sizes: int, dtype: str = "quint8") -> Computed:
    return tensor(*sizes, dtype=dtype)


def _layer(target: str, expected: str, x: Computed, context: object) -> RowCall:
    operator = _RUNS[isinstance(context, QuantizedLinearContext)]
    return call(target, operator, expected, X=x, vk_context=context, result=_integers(1, 8, 5, 5), **_STEPS)


def _pair(target: str, expected: str, dtype: str = "quint8") -> RowCall:
    operands = {"qa": _integers(1, 5, 3, 2, dtype=dtype), "qb": _integers(1, 5, 1, 1, dtype=dtype)}
    return call(target, "vulkan_quantized::add", expected, result=_integers(1, 5, 3, 2), **operands, **_STEPS)


def _quantize(target: str, expected: str, dtype: int = 13, scale: object = 0.5) -> RowCall:
    given = {"self": tensor(1, 5, 3, 2), "scale": scale, "zero_point": 3, "dtype": dtype}
    return call(target, "aten::quantize_per_tensor", expected, result=_integers(1, 5, 3, 2), **given)


def _pool(expected: str, *sizes: int, padding: int = 0, ceil_mode: bool = False) -> RowCall:
    given = {"kernel_size": [3, 3], "padding": [padding] * 2, "dilation": [1, 1], "ceil_mode": ceil_mode}
    x = _integers(*sizes)
    return call("vulkan 2.6", "aten::max_pool2d", expected, self=x, stride=[2, 2], result=_integers(*sizes), **given)


_IMAGE = _integers(1, 6, 7, 7)

CALLS: tuple[RowCall, ...] = (
    _layer("vulkan 2.6", "native", _IMAGE, _convolution(6)),
    _layer("vulkan 2.2", "missing", _IMAGE, _convolution(6)),
    _layer("vulkan 2.6", "missing", _integers(1, 6, 7, 7, dtype="qint8"), _convolution(6)),
    _layer("vulkan 2.6", "wrong:split_groups", _IMAGE, _convolution(6, groups=2)),
    _layer("vulkan 2.6", "wrong:convolve_samples", _integers(2, 6, 7, 7), _convolution(6)),
    _layer("vulkan 2.6", "wrong:pad_before_convolution", _IMAGE, _convolution(6, padding=2, dilation=2)),
    _layer("vulkan 2.6", "native", _integers(3, 7), _LINEAR),
    _layer("vulkan 2.6", "missing", _integers(7), _LINEAR),
    _layer("vulkan 1.13", "missing", _integers(3, 7), _LINEAR),
    _pair("vulkan 2.6", "native"),
    _pair("vulkan 2.6", "wrong", dtype="qint8"),
    _pair("vulkan 2.1", "missing"),
    _quantize("vulkan 2.6", "native"),
    _quantize("vulkan 2.6", "missing", dtype=12),
    _quantize("vulkan 2.6", "missing", scale=UNKNOWN),
    _quantize("vulkan 2.1", "missing"),
    call("vulkan 2.6", "aten::dequantize.self", "native", self=_IMAGE, result=tensor(1, 6, 7, 7)),
    call("vulkan 2.6", "aten::relu", "native", self=_IMAGE, result=_IMAGE),
    call("vulkan 2.2", "aten::relu", "missing", self=_IMAGE, result=_IMAGE),
    call("vulkan 2.6", "aten::relu", "missing", self=_integers(1, 6, 7, 2049), result=_integers(1, 6, 7, 2049)),
    call("vulkan 2.6", "aten::relu", "missing", self=_integers(1, 1, 6, 7, 7), result=_integers(1, 1, 6, 7, 7)),
    call("vulkan 2.6", "aten::permute", "wrong", self=_IMAGE, dims=[0, 2, 3, 1], result=_integers(1, 7, 7, 6)),
    call("vulkan 2.6", "aten::clamp", "wrong", self=_IMAGE, min=0.0, result=_IMAGE),
    call("vulkan 2.6", "aten::tanh", "missing", self=_IMAGE, result=_IMAGE),
    _pool("native", 1, 6, 7, 7),
    _pool("wrong", 1, 6, 7, 7, padding=1),
    _pool("wrong", 1, 6, 8, 8, ceil_mode=True),
    _pool("missing", 6, 7, 7),
)
