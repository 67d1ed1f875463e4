"""What the CPU references of packed operators share.

Every function also runs on meta tensors: a context's tensors follow the device of its input.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812

from mobopt.ops.contexts import (
    ClampedConvContext,
    ClampedLinearContext,
    Conv2dPackedContext,
    XnnpackTransposeConv2dOpContext,
)

Tensor = torch.Tensor
Bound = int | float | None


def beside(tensor: Tensor | None, other: Tensor) -> Tensor | None:
    """A context's tensor on the device of ``other``."""
    return None if tensor is None else tensor.to(other.device)


def clamped(result: Tensor, low: Bound, high: Bound) -> Tensor:
    """A result within its range, where None is no bound."""
    return result if low is None and high is None else result.clamp(low, high)


def pair(values: Sequence[int]) -> list[int]:
    """One number for each of two dimensions, from a list of one or two."""
    return list(values) * 2 if len(values) == 1 else list(values)


def clamped_convolution(x: Tensor, context: ClampedConvContext | Conv2dPackedContext) -> Tensor:
    """2-d convolution and clamp of (N, C, H, W) or (C, H, W)."""
    result = F.conv2d(
        x,
        context.weight.to(x.device),
        beside(context.bias, x),
        pair(context.stride),
        pair(context.padding),
        pair(context.dilation),
        context.groups,
    )
    return clamped(result, context.output_min, context.output_max)


def clamped_transposed_convolution(x: Tensor, context: XnnpackTransposeConv2dOpContext | Conv2dPackedContext) -> Tensor:
    """2-d transposed convolution and clamp of (N, C, H, W) or (C, H, W)."""
    result = F.conv_transpose2d(
        x,
        context.weight.to(x.device),
        beside(context.bias, x),
        pair(context.stride),
        pair(context.padding),
        pair(context.output_padding),
        context.groups,
        pair(context.dilation),
    )
    return clamped(result, context.output_min, context.output_max)


def clamped_linear(x: Tensor, context: ClampedLinearContext) -> Tensor:
    """Linear layer and clamp of (..., in)."""
    result = F.linear(x, context.weight.to(x.device), beside(context.bias, x))
    return clamped(result, context.output_min, context.output_max)
