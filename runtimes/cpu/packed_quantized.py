"""Operators on quantised tensors, as phones compute them: with torch's own kernels of QNNPACK."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch

from mobopt.ops.quantized_contexts import AffineTensor, QuantizedConvolution, QuantizedLayer

_ENGINE = "qnnpack"
_LOCK = threading.RLock()
"""The engine is a setting of the process."""
_PACKED: WeakKeyDictionary[QuantizedLayer, Any] = WeakKeyDictionary()


def is_of_quantized_tensors(op: str) -> bool:
    """Whether an operator makes quantised tensors, or computes with them or with quantised weights."""
    return op.startswith(("quantized::", "aten::quantize_per_"))


def on_qnnpack(function: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel of torch's that takes packed weights as files have them, and computes as on a phone."""

    @wraps(function)
    def call(*args: Any) -> Any:
        with _engine():
            return function(*(_packed(item) if isinstance(item, QuantizedLayer) else item for item in args))

    return call


@contextmanager
def _engine() -> Iterator[None]:
    """QNNPACK, where torch has it, without what torch says of quantised tensors' future."""
    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        before = torch.backends.quantized.engine
        if _ENGINE in torch.backends.quantized.supported_engines:
            torch.backends.quantized.engine = _ENGINE
        try:
            yield
        finally:
            torch.backends.quantized.engine = before


def _packed(layer: QuantizedLayer) -> Any:
    """The weights as torch packs them, once."""
    if layer not in _PACKED:
        _PACKED[layer] = _packed_anew(layer)
    return _PACKED[layer]


def _packed_anew(layer: QuantizedLayer) -> Any:
    if isinstance(layer.weight, torch.Tensor):
        return torch.ops.quantized.linear_prepack_fp16(layer.weight, layer.bias)
    weight = _quantized_tensor(layer.weight)
    if not isinstance(layer, QuantizedConvolution):
        return torch.ops.quantized.linear_prepack(weight, layer.bias)
    kind = "conv_transpose" if layer.transposed else "conv"
    pack = getattr(torch.ops.quantized, f"{kind}{len(layer.stride)}d_prepack")
    between = [layer.output_padding] if layer.transposed else []
    return pack(weight, layer.bias, layer.stride, layer.padding, *between, layer.dilation, layer.groups)


def _quantized_tensor(stored: AffineTensor) -> torch.Tensor:
    integers = stored.integers.contiguous()
    if stored.axis is None:
        scale, zero = float(stored.scales), int(stored.zero_points)
        return torch._make_per_tensor_quantized_tensor(integers, scale, zero)
    return torch._make_per_channel_quantized_tensor(
        integers, stored.scales.double(), stored.zero_points.long(), stored.axis
    )
