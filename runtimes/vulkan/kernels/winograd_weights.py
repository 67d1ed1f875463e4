"""Filters of 3 x 3 taps as what Winograd's minimal filtering multiplies with; see ``shaders/glsl/winograd.glsl``."""

from __future__ import annotations

from dataclasses import replace

import torch

from mobopt.runtimes.vulkan.engine.tensor import Storage

TILE = 4
SPAN = 6
PRODUCTS = SPAN * SPAN
POINT = 0.75
"""A of the shader."""
_TAPS = 9


def winograd_weights(storage: Storage, panels: int) -> Storage:
    """The storage of 36 matrices, in as many panels each as the matrix of floats that one product reads, which has the
    lines of all nine taps."""
    assert storage.data is not None
    once = filter_transform()
    taps = storage.data.reshape(panels, _TAPS, -1)
    data = (torch.kron(once, once) @ taps.transpose(0, 1).reshape(_TAPS, -1).double()).float().reshape(-1)
    return replace(storage, data=data, nbytes=data.nbytes)


def filter_transform() -> torch.Tensor:
    """The matrix (6, 3) that makes of three taps what six numbers are multiplied with; float64."""
    a = POINT
    points = ((0.0, 4 * a**4), (a, -6 * a**4), (-a, -6 * a**4), (2 * a, 24 * a**4), (-2 * a, 24 * a**4))
    rows = [[point**power / scale for power in range(3)] for point, scale in points]
    return torch.tensor([*rows, [0.0, 0.0, 1.0]], dtype=torch.float64)
