"""Layers whose weights are in a packed context of Vulkan."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from mobopt.ir.types import TensorType
from mobopt.ops.contexts import (
    Conv1dPackedContext,
    Conv2dPackedContext,
    GruPackedContext,
    LinearPackedContext,
    QuantizedConv2dContext,
    QuantizedLinearContext,
    VulkanConv2dOpContext,
)
from mobopt.ops.shapes.convolutions import convolution, transposed_convolution
from mobopt.ops.shapes.layouts import row_major
from mobopt.ops.shapes.products import linear
from mobopt.ops.shapes.rules import FLOATS, broadcast, equal, require, shape_rule, view_rule
from mobopt.ops.shapes.views import with_sizes


def _type(tensor: torch.Tensor) -> TensorType:
    return TensorType(tensor.dtype, tuple(tensor.shape))


def _bias_type(tensor: torch.Tensor | None) -> TensorType | None:
    return None if tensor is None else _type(tensor)


@shape_rule(
    "vulkan_prepack::run_conv2d_context", "vulkan_prepack::run_tconv2d_context", "vulkan_prepack::conv2d_clamp_run"
)
def packed_convolution(x: TensorType, context: Conv2dPackedContext | VulkanConv2dOpContext) -> TensorType:
    """A convolution, or a transposed one, and its clamp."""
    c = context
    made: TensorType
    if isinstance(c, Conv2dPackedContext) and c.transposed:
        made = transposed_convolution(
            x, _type(c.weight), _bias_type(c.bias), c.stride, c.padding, c.output_padding, c.groups, c.dilation
        )
    else:
        made = convolution(x, _type(c.weight), _bias_type(c.bias), c.stride, c.padding, c.dilation, c.groups)
    return made


@shape_rule("vulkan_prepack::run_conv1d_context")
def packed_convolution_1d(x: TensorType, context: Conv1dPackedContext) -> TensorType:
    """A convolution in one dimension."""
    c = context
    made: TensorType = convolution(x, _type(c.weight), _bias_type(c.bias), c.stride, c.padding, c.dilation, c.groups)
    return made


@shape_rule("vulkan_prepack::run_linear_context", layout=row_major)
def packed_linear(x: TensorType, context: LinearPackedContext) -> TensorType:
    """``[..., I]`` to ``[..., O]``; the context's weight is ``[I, O]``."""
    made: TensorType = linear(
        x, with_sizes(_type(context.weight), context.weight.shape[::-1]), _bias_type(context.bias)
    )
    return made


@shape_rule("vulkan_prepack::run_qconv2d_context")
def quantized_convolution(x: TensorType, scale: float, zero_point: int, context: QuantizedConv2dContext) -> TensorType:
    """As of floats, in steps."""
    return _in_steps(packed_convolution(_in_floats(x), context.in_floats))


@shape_rule("vulkan_prepack::run_qlinear_context", layout=row_major)
def quantized_linear(x: TensorType, scale: float, zero_point: int, context: QuantizedLinearContext) -> TensorType:
    """As of floats, in steps."""
    return _in_steps(packed_linear(_in_floats(x), context.in_floats))


@shape_rule(*(f"vulkan_quantized::{name}" for name in ("add", "sub", "mul", "div")))
def quantized_arithmetic(x: TensorType, y: TensorType, scale: float, zero_point: int) -> TensorType:
    """Of the sizes that both are broadcast to, in steps."""
    return _in_steps(with_sizes(_in_floats(x), broadcast(_in_floats(y).sizes, x.sizes)))


def _in_floats(x: TensorType) -> TensorType:
    require(x.dtype == torch.quint8)
    return TensorType(torch.float32, x.sizes)


def _in_steps(x: TensorType) -> TensorType:
    return TensorType(torch.quint8, x.sizes)


def packed_recurrent(states: int, x: TensorType, *given: Any) -> tuple[TensorType, ...]:
    """``[T, N, I]`` (or ``[N, T, I]``) and states ``[layers, N, H]`` to outputs and states."""
    context: GruPackedContext = given[states]
    hidden = given[0]
    directions = 2 if context.bidirectional else 1
    require(x.dtype in FLOATS and x.rank == hidden.rank == 3 and all(size > 0 for size in x.sizes))
    batch = x.sizes[0 if context.batch_first else 1]
    for item in given[:states]:
        wanted = (context.num_layers * directions, batch, hidden.sizes[2])
        require(item.dtype == x.dtype and equal(item.sizes, wanted))
    require(all(weight.dtype == x.dtype for weight in context.params))
    return with_sizes(x, (*x.sizes[:2], hidden.sizes[2] * directions)), *given[:states]


view_rule("vulkan_prepack::run_gru_context")(partial(packed_recurrent, 1))
view_rule("vulkan_prepack::run_lstm_context")(partial(packed_recurrent, 2))
