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

from mobopt.errors import UnsupportedError
from mobopt.ops.affine_tensor import DTYPES, AffineTensor
from mobopt.ops.quantized_contexts import QuantizedConvolution, QuantizedLayer

_ENGINE = "qnnpack"
_LOCK = threading.RLock()
"""The engine is a setting of the process."""
_PACKED: WeakKeyDictionary[QuantizedLayer, Any] = WeakKeyDictionary()
_REDUCIBLE = ("quantized::linear_dynamic", "quantized::linear_relu_dynamic")
"""Operators whose last argument, ``reduce_range``, QNNPACK ignores, and says so to the terminal."""


def quantize_per_tensor(x: torch.Tensor, scale: float, zero_point: int, dtype: int) -> torch.Tensor:
    """The function of this name, which does not say to the terminal that it is deprecated, as the operator does.

    Raises:
        UnsupportedError: no quantised tensor has the dtype of this number.
    """
    if dtype not in DTYPES:
        raise UnsupportedError(f"the model quantises to dtype number {dtype} (c10::ScalarType), which is not known")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.quantize_per_tensor(x, scale, zero_point, DTYPES[dtype])


def on_qnnpack(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel of torch's that takes packed weights as files have them, and computes as on a phone."""
    ignored = 1 if op in _REDUCIBLE else 0

    @wraps(function)
    def call(*args: Any) -> Any:
        taken = args[: len(args) - ignored]
        with _engine():
            return function(*(_packed(item) if isinstance(item, QuantizedLayer) else item for item in taken))

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
