"""CPU reference of ``vulkan_prepack::*``.

Source of the meaning: ``aten/src/ATen/native/vulkan/ops/`` of PyTorch 2.6.0.
Every function also runs on meta tensors: a context's tensors follow the device of its input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from mobopt.ops.contexts import (
    BatchNormPackedContext,
    Conv1dPackedContext,
    Conv2dPackedContext,
    GruPackedContext,
    LayernormPackedContext,
    LinearPackedContext,
    LstmPackedContext,
    QuantizedConv2dContext,
    QuantizedLinearContext,
    VulkanConv2dOpContext,
)
from mobopt.runtimes.cpu.packed_common import beside, clamped_convolution, clamped_transposed_convolution
from mobopt.runtimes.cpu.recurrent_checks import check_lstm

Tensor = torch.Tensor


def create_conv2d_context(
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    output_min: int | float | None,
    output_max: int | float | None,
) -> Conv2dPackedContext:
    """Pack a convolution; weight (out, in/groups, kh, kw)."""
    return Conv2dPackedContext(
        weight, bias, stride, padding, dilation, False, False, [0], groups, output_min, output_max
    )


def create_tconv2d_context(
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    output_padding: list[int],
    dilation: list[int],
    groups: int,
    output_min: int | float | None,
    output_max: int | float | None,
) -> Conv2dPackedContext:
    """Pack a transposed convolution; weight (in, out/groups, kh, kw)."""
    return Conv2dPackedContext(
        weight, bias, stride, padding, dilation, True, False, output_padding, groups, output_min, output_max
    )


def run_conv2d_context(x: Tensor, context: Conv2dPackedContext) -> Tensor:
    """Convolution, or transposed convolution, and clamp."""
    return (clamped_transposed_convolution if context.transposed else clamped_convolution)(x, context)


def run_conv1d_context(x: Tensor, context: Conv1dPackedContext) -> Tensor:
    """1-d convolution."""
    weight, bias = context.weight.to(x.device), beside(context.bias, x)
    return F.conv1d(x, weight, bias, context.stride, context.padding, context.dilation, context.groups)


def run_linear_context(x: Tensor, context: LinearPackedContext) -> Tensor:
    """Linear layer; the context's weight is (in, out)."""
    return F.linear(x, context.weight.t().to(x.device), beside(context.bias, x))


def run_layernorm_context(x: Tensor, normalized_shape: list[int], context: LayernormPackedContext) -> Tensor:
    """Layer normalisation."""
    return F.layer_norm(x, normalized_shape, context.weight.to(x.device), beside(context.bias, x), context.eps)


def create_batchnorm_context(
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enable: bool,
) -> BatchNormPackedContext:
    """Pack a batch normalisation in evaluation mode; a missing weight is all ones."""
    if weight is None and running_mean is not None:
        weight = torch.ones_like(running_mean)
    assert weight is not None
    return BatchNormPackedContext(weight, bias, running_mean, running_var, eps)


def run_batchnorm_context(x: Tensor, context: BatchNormPackedContext) -> Tensor:
    """Batch normalisation with the stored statistics."""
    mean, variance = beside(context.running_mean, x), beside(context.running_var, x)
    return F.batch_norm(
        x, mean, variance, context.weight.to(x.device), beside(context.bias, x), False, 0.0, context.eps
    )


def run_gru_context(x: Tensor, hidden: Tensor, context: GruPackedContext) -> tuple[Tensor, ...]:
    """GRU: outputs of all steps and the last hidden state."""
    parameters = [weight.to(x.device) for weight in context.layer_parameters]
    result: tuple[Tensor, ...] = torch.ops.aten.gru.input(x, hidden, parameters, *context.flags)
    return result


def run_lstm_context(x: Tensor, hidden: Tensor, cell: Tensor, context: LstmPackedContext) -> tuple[Tensor, ...]:
    """LSTM: outputs of all steps, the last hidden and the last cell state."""
    parameters = [weight.to(x.device) for weight in context.layer_parameters]
    check_lstm(x, [hidden, cell], parameters, *context.flags)
    result: tuple[Tensor, ...] = torch.ops.aten.lstm.input(x, [hidden, cell], parameters, *context.flags)
    return result


def run_qconv2d_context(x: Tensor, scale: float, zero_point: int, context: QuantizedConv2dContext) -> Tensor:
    """A convolution, or a transposed one, in floats, whose result is rounded to steps."""
    return _rounded(run_conv2d_context(x.dequantize(), context.in_floats), scale, zero_point)


def run_qlinear_context(x: Tensor, scale: float, zero_point: int, context: QuantizedLinearContext) -> Tensor:
    """The same of a linear layer."""
    return _rounded(run_linear_context(x.dequantize(), context.in_floats), scale, zero_point)


def _arithmetic(operator: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """What rounds the result of two tensors to steps."""

    def run(x: Tensor, y: Tensor, scale: float, zero_point: int) -> Tensor:
        return _rounded(operator(x.dequantize(), y.dequantize()), scale, zero_point)

    return run


def _rounded(result: Tensor, scale: float, zero_point: int) -> Tensor:
    """Steps as the kernels of Vulkan round to them, to even with the zero point, which torch's builds do or don't."""
    inverse = (1 / torch.tensor(scale)).double()
    steps = (result.double() * inverse + zero_point).float().round().clamp(0, 255).nan_to_num(0.0)
    return torch._make_per_tensor_quantized_tensor(steps.to(torch.uint8), scale, zero_point)


VULKAN_KERNELS: dict[str, Callable[..., Any]] = {
    "vulkan_prepack::create_conv2d_context": create_conv2d_context,
    "vulkan_prepack::create_tconv2d_context": create_tconv2d_context,
    "vulkan_prepack::run_conv2d_context": run_conv2d_context,
    "vulkan_prepack::run_tconv2d_context": run_conv2d_context,
    "vulkan_prepack::conv2d_clamp_prepack": VulkanConv2dOpContext,
    "vulkan_prepack::conv2d_clamp_run": clamped_convolution,
    "vulkan_prepack::create_conv1d_context": Conv1dPackedContext,
    "vulkan_prepack::run_conv1d_context": run_conv1d_context,
    "vulkan_prepack::create_linear_context": LinearPackedContext,
    "vulkan_prepack::run_linear_context": run_linear_context,
    "vulkan_prepack::create_layernorm_context": LayernormPackedContext,
    "vulkan_prepack::run_layernorm_context": run_layernorm_context,
    "vulkan_prepack::create_batchnorm_context": create_batchnorm_context,
    "vulkan_prepack::run_batchnorm_context": run_batchnorm_context,
    "vulkan_prepack::create_gru_context": GruPackedContext,
    "vulkan_prepack::run_gru_context": run_gru_context,
    "vulkan_prepack::create_lstm_context": LstmPackedContext,
    "vulkan_prepack::run_lstm_context": run_lstm_context,
    "vulkan_prepack::run_qconv2d_context": run_qconv2d_context,
    "vulkan_prepack::run_qlinear_context": run_qlinear_context,
    "vulkan_quantized::add": _arithmetic(torch.add),
    "vulkan_quantized::sub": _arithmetic(torch.sub),
    "vulkan_quantized::mul": _arithmetic(torch.mul),
    "vulkan_quantized::div": _arithmetic(torch.div),
}
"""Implementations by operator name."""
