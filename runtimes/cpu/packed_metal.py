"""CPU reference of ``metal_prepack::*`` and ``metal::copy_to_host``.

Source of the meaning: ``aten/src/ATen/native/metal/`` of PyTorch 1.13.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mobopt.ops.contexts import MetalConv2dOpContext, MetalLinearOpContext
from mobopt.runtimes.cpu.packed_common import clamped_convolution, clamped_linear


def copy_to_host(x: torch.Tensor) -> torch.Tensor:
    """The tensor itself: on the phone its image is made one that outlives the command buffer, and stays an image."""
    return x


METAL_KERNELS: dict[str, Callable[..., Any]] = {
    "metal_prepack::conv2d_prepack": MetalConv2dOpContext,
    "metal_prepack::conv2d_run": clamped_convolution,
    "metal_prepack::linear_prepack": MetalLinearOpContext,
    "metal_prepack::linear_run": clamped_linear,
    "metal::copy_to_host": copy_to_host,
}
"""Implementations by operator name."""
