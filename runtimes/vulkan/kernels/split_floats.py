"""Floats as sums of two halves, as ``shaders/glsl/product_split.glsl`` has them; here of weights, on the host."""

from __future__ import annotations

from dataclasses import replace

import torch

from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, StorageKind

FACTOR_SCALE = 2.0**8
"""By which weights are multiplied: halves have few exponents."""
_LEAST, _MOST = 2.0**-2, 2.0**15
"""Of the largest magnitude, scaled, as in the shader."""


def are_splittable(weights: DeviceTensor) -> bool:
    """Whether the elements are known, are float32, and are such as the scale suits."""
    storage = weights.storage
    if storage.kind is not StorageKind.CONSTANT or storage.data is None or storage.elements != torch.float32:
        return False
    largest = float(storage.data.abs().max()) * FACTOR_SCALE if storage.data.numel() else 0.0
    return largest == 0.0 or _LEAST <= largest < _MOST


def split_weights(weights: DeviceTensor) -> Storage | None:
    """The storage of weights with each vec4 in the form that the kernels keep in shared memory: four high halves, then
    four low ones, which take the same bytes.

    Returns:
        None if they aren't :func:`are_splittable`.
    """
    storage = weights.storage
    if storage.data is None or not are_splittable(weights):
        return None
    scaled = storage.data.reshape(-1, 4) * FACTOR_SCALE
    high = scaled.half()
    low = (scaled - high.float()).half()
    data = torch.cat([high, low], 1).view(torch.float32).reshape(-1)
    return replace(storage, data=data)
