"""torchao's operators, for tests, where it isn't installed: as ``torchao/quantization/quant_primitives.py`` of torchao
0.18 defines them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_SCHEMAS = (
    "choose_qparams_affine(Tensor? input, str mapping_type, SymInt[] block_size, ScalarType target_dtype, Scalar? "
    "quant_min=None, Scalar? quant_max=None, float? eps=None, ScalarType? scale_dtype=None, ScalarType? "
    "zero_point_dtype=None, bool keepdim=False) -> (Tensor, Tensor)",
    "quantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, ScalarType output_dtype, "
    "Scalar? quant_min=None, Scalar? quant_max=None) -> Tensor",
    "dequantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, ScalarType input_dtype, "
    "Scalar? quant_min=None, Scalar? quant_max=None, ScalarType output_dtype=6) -> Tensor",
)


def _apart(x: Tensor, block_size: Sequence[int]) -> tuple[Tensor, list[int], list[int]]:
    """A tensor with blocks in dimensions of their own, these dimensions, and its sizes without them."""
    view: list[int] = []
    dims: list[int] = []
    for size, block in zip(x.shape, block_size, strict=True):
        if block == 1:
            view.append(size)
            continue
        if block != size:
            view.append(size // block)
        dims.append(len(view))
        view.append(block)
    return x.reshape(view), dims, [1 if number in dims else size for number, size in enumerate(view)]


def _choose(
    x: Tensor,
    mapping_type: str,
    block_size: Sequence[int],
    target_dtype: torch.dtype,
    quant_min: int | None = None,
    quant_max: int | None = None,
    eps: float | None = None,
    scale_dtype: torch.dtype | None = None,
    zero_point_dtype: torch.dtype | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    least, most = torch.iinfo(target_dtype).min, torch.iinfo(target_dtype).max
    low_bound, high_bound = (least if quant_min is None else quant_min), (most if quant_max is None else quant_max)
    apart, dims, _ = _apart(x, block_size)
    low, high = torch.amin(apart, dims, keepdim), torch.amax(apart, dims, keepdim)
    low, high = torch.minimum(low, torch.zeros_like(low)), torch.maximum(high, torch.zeros_like(high))
    if mapping_type == "SYMMETRIC":
        scale = torch.maximum(-low, high) / (float(high_bound - low_bound) / 2)
    else:
        scale = (high - low) / float(high_bound - low_bound)
    scale = scale.clamp(min=torch.finfo(x.dtype).smallest_normal if eps is None else eps)
    if mapping_type == "SYMMETRIC":
        zero_point = torch.full_like(scale, (high_bound + low_bound + 1) // 2)
    else:
        zero_point = (low_bound - torch.round(low / scale)).clamp(low_bound, high_bound)
    if keepdim:
        counts = [size // block for size, block in zip(x.shape, block_size, strict=True)]
        scale, zero_point = scale.reshape(counts), zero_point.reshape(counts)
    return scale.to(scale_dtype or x.dtype), zero_point.to(zero_point_dtype or torch.int32)


def _quantize(
    x: Tensor,
    block_size: Sequence[int],
    scale: Tensor,
    zero_point: Tensor | None,
    output_dtype: torch.dtype,
    quant_min: int | None = None,
    quant_max: int | None = None,
) -> Tensor:
    apart, _, kept = _apart(x, block_size)
    rounded = torch.round(apart * (1.0 / scale.reshape(kept)))
    if zero_point is not None:
        rounded = rounded + zero_point.reshape(kept)
    return torch.clamp(rounded, quant_min, quant_max).reshape(x.shape).to(output_dtype)


def _dequantize(
    x: Tensor,
    block_size: Sequence[int],
    scale: Tensor,
    zero_point: Tensor | None,
    input_dtype: torch.dtype,
    quant_min: int | None = None,
    quant_max: int | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    apart, _, kept = _apart(x, block_size)
    floats = apart.to(output_dtype)
    if zero_point is not None:
        floats = floats - zero_point.reshape(kept).to(output_dtype)
    return (floats * scale.reshape(kept)).reshape(x.shape).to(output_dtype)


_LIBRARY: torch.library.Library | None = None
"""What it defines lasts as long as it does."""


def torchao_operators() -> object:
    """The namespace of torchao's operators."""
    global _LIBRARY
    if _LIBRARY is None and not hasattr(torch.ops.torchao, "choose_qparams_affine"):
        _LIBRARY = torch.library.Library("torchao", "FRAGMENT")
        for schema, function in zip(_SCHEMAS, (_choose, _quantize, _dequantize), strict=True):
            _LIBRARY.define(schema)
            name = schema.partition("(")[0]
            _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
            torch.library.register_fake(f"torchao::{name}", function, lib=_LIBRARY)
    return torch.ops.torchao
