"""Floats as sums of two halves, as ``shaders/glsl/product_split.glsl`` has them; here of weights, on the host."""

from __future__ import annotations

from dataclasses import replace

import torch

from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, StorageKind

FACTOR_SCALE = 2.0**8
"""By which weights are multiplied: halves have few exponents."""
_LEAST, _MOST = 2.0**-2, 2.0**15
"""Of the largest magnitude, scaled, as in the shader."""


def split_weights(weights: DeviceTensor) -> Storage | None:
    """The storage of weights with each vec4 in the form that the kernels keep in shared memory: four high halves, then
    four low ones, which take the same bytes.

    Returns:
        None if the elements aren't known, are no float32, or are such as the scale doesn't suit.
    """
    storage = weights.storage
    if storage.kind is not StorageKind.CONSTANT or storage.data is None or storage.elements != torch.float32:
        return None
    scaled = storage.data.reshape(-1, 4) * FACTOR_SCALE
    largest = float(scaled.abs().max()) if scaled.numel() else 0.0
    if not (largest == 0.0 or _LEAST <= largest < _MOST):
        return None
    high = scaled.half()
    low = (scaled - high.float()).half()
    data = torch.cat([high, low], 1).view(torch.float32).reshape(-1)
    return replace(storage, data=data)
