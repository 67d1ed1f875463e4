"""CPU reference of ``prepacked::*``, the operators of builds with XNNPACK.

Source of the meaning: ``aten/src/ATen/native/xnnpack/`` of PyTorch 1.13.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mobopt.ops.contexts import XnnpackConv2dOpContext, XnnpackLinearOpContext, XnnpackTransposeConv2dOpContext
from mobopt.runtimes.cpu.packed_common import clamped_convolution, clamped_linear, clamped_transposed_convolution

XNNPACK_KERNELS: dict[str, Callable[..., Any]] = {
    "prepacked::conv2d_clamp_prepack": XnnpackConv2dOpContext,
    "prepacked::conv2d_clamp_run": clamped_convolution,
    "prepacked::conv2d_transpose_clamp_prepack": XnnpackTransposeConv2dOpContext,
    "prepacked::conv2d_transpose_clamp_run": clamped_transposed_convolution,
    "prepacked::linear_clamp_prepack": XnnpackLinearOpContext,
    "prepacked::linear_clamp_run": clamped_linear,
}
"""Implementations by operator name."""
