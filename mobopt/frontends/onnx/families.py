"""Loads every family of translations, which registers them."""

from __future__ import annotations

from mobopt.frontends.onnx import (  # noqa: F401 - each registers its own
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
