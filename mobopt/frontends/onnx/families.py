"""Loads every family of translations, which registers them."""

from __future__ import annotations

from mobopt.frontends.onnx import (
    attention,
    control,
    convolution,
    experts,
    grouped_attention,
    indexing,
    matrices,
    normalization,
    pointwise,
    quantization,
    quantized_layers,
    recurrent,
    reductions,
    resize,
    sequences,
    shapes,
    signals,
)

LOADED = (
    attention,
    control,
    convolution,
    experts,
    grouped_attention,
    indexing,
    matrices,
    normalization,
    pointwise,
    quantization,
    quantized_layers,
    recurrent,
    reductions,
    resize,
    sequences,
    shapes,
    signals,
)
