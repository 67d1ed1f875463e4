"""Convolutions in one to three dimensions, transposed or not."""

from __future__ import annotations

from dataclasses import replace

import torch

from mobopt.ir import Node, Value
from mobopt.ops.quantized import Quantized
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.convolution_kernels import (
    AppendConvolution,
    append_depthwise,
    append_general,
    append_product_convolution,
    append_transposed_phases,
    depthwise_fits,
)
from mobopt.runtimes.vulkan.kernels.convolution_parameters import (
    CONVOLUTIONS,
    Convolution,
    convolution_of,
    with_leading_dimension,
)
from mobopt.runtimes.vulkan.kernels.convolution_roads import road_of
from mobopt.runtimes.vulkan.kernels.epilogue import epilogue_of
from mobopt.runtimes.vulkan.kernels.kernel_access import VECTOR
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.product_scaling import ScaledInput
from mobopt.runtimes.vulkan.kernels.weight_packing import has_channel_scales
from mobopt.runtimes.vulkan.lowerings.registry import lowers


def check_convolution(call: Node) -> str | None:
    """Only floating operands; at most three spatial dimensions."""
    convolution = convolution_of(call)
    for tensor in (convolution.input, convolution.weight):
        if not tensor.dtype.is_floating_point or tensor.dtype == torch.float64:
            return f"convolution of {tensor.dtype} operands; only float32 is computed"
    if convolution.weight.rank - 2 > 3:
        return f"convolution in {convolution.weight.rank - 2} dimensions; at most 3 are computed"
    road = road_of(convolution, call.output.sizes)
    return None if road is None else f"convolution that is computed as {road.value}"


@lowers(*CONVOLUTIONS, check=check_convolution)
def convolution(plan: Plan, call: Node) -> DeviceTensor:
    """One dispatch (one per phase if transposed), with the call's epilogue in it."""
    wanted = _with_own_scaling(plan, call, _of_few_bits(call) or convolution_of(call))
    epilogue = epilogue_of(call)
    spatial = wanted.weight.rank - 2
    source = _batched(plan.tensor(wanted.input), spatial)
    sizes = call.output.sizes if call.output.rank == spatial + 2 else (1, *call.output.sizes)
    residual = None if epilogue.residual is None else _batched(plan.tensor(epilogue.residual), spatial)
    as_images = spatial == 1 and wanted.filters is not None
    if as_images:
        wanted = with_leading_dimension(wanted)
        source, residual = _as_image(source), None if residual is None else _as_image(residual)
        sizes = (*sizes[:2], 1, sizes[2])
    result = plan.result(call.output) if sizes == call.output.sizes else plan.own_result(call.output, sizes)
    if result.numel:
        append = _kernel(wanted, source)
        append(plan, wanted, source, result, epilogue, residual)
    if as_images:
        result = result.view((*sizes[:2], sizes[3]), (*result.strides[:2], result.strides[3]))
    return result if call.output.rank == spatial + 2 else result.view(result.sizes[1:], result.strides[1:])


def _with_own_scaling(plan: Plan, call: Node, wanted: Convolution) -> Convolution:
    """A convolution of what its input is a scaling of, if that was folded into it."""
    found = ScaledInput.folded_into(call)
    return wanted if found is None else replace(wanted, input=found.source, scaling=found.lowered(plan))


def takes_scaling(call: Node) -> bool:
    """Whether the kernel of a convolution for GPUs can scale its input as it reads it: it does for single pixels."""
    return convolution_of(call).is_of_single_pixels and is_expansion(call)


def is_expansion(call: Node) -> bool:
    """Whether a call is a convolution of images, of one group and by floats, that the kernels of products compute."""
    if call.qualified_op not in CONVOLUTIONS:
        return False
    wanted = convolution_of(call)
    if wanted.input.rank != 4 or wanted.groups != 1 or wanted.input.numel == 0 or wanted.input.dtype != torch.float32:
        return False
    return Quantized.of(wanted.weight) is None and _kernel_of(wanted) is append_product_convolution


def takes_channels(call: Node) -> bool:
    """Whether the kernel of a convolution can add channels to each pixel of its result: they are read by fours."""
    return is_expansion(call) and call.output.sizes[1] % VECTOR == 0 and not convolution_of(call).transposed


def is_depthwise(call: Node) -> bool:
    """Whether a call is a depthwise convolution of images with as much padding after them as before."""
    if call.qualified_op not in CONVOLUTIONS:
        return False
    wanted = convolution_of(call)
    if wanted.input.rank != 4 or not wanted.is_depthwise or wanted.input.dtype != torch.float32:
        return False
    lopsided = any(step * (taps - 1) % 2 for step, taps in zip(wanted.dilation, wanted.taps, strict=True))
    is_even = not (lopsided and call.qualified_op.endswith(".padding"))
    return is_even and _kernel_of(wanted) is append_depthwise and wanted.input.numel > 0


def _batched(tensor: DeviceTensor, spatial: int) -> DeviceTensor:
    """The tensor with a batch dimension."""
    if tensor.rank == spatial + 2:
        return tensor
    return tensor.view((1, *tensor.sizes), (tensor.numel, *tensor.strides))


def _as_image(tensor: DeviceTensor) -> DeviceTensor:
    """A (batch, channel, length) tensor as images of height 1."""
    (n, c, length), (batch, channel, step) = tensor.sizes, tensor.strides
    return tensor.view((n, c, 1, length), (batch, channel, length * step, step))


def _kernel(convolution: Convolution, source: DeviceTensor) -> AppendConvolution:
    return append_general if source.numel == 0 else _kernel_of(convolution)


def _kernel_of(convolution: Convolution) -> AppendConvolution:
    """For an input with elements, which has a batch dimension."""
    constant = convolution.filters is not None and _is_constant(convolution.bias)
    if not constant or len(convolution.taps) != 2:
        return append_general
    if depthwise_fits(convolution):
        return append_depthwise
    whole_groups = convolution.group_inputs % 4 == 0 and convolution.group_outputs % 4 == 0
    if convolution.groups != 1 and not whole_groups:
        return append_general
    return append_transposed_phases if convolution.transposed else append_product_convolution


def takes_quantized(call: Node) -> bool:
    """Whether a convolution reads its weight, a constant of few bits, as it is."""
    return _of_few_bits(call) is not None


def _of_few_bits(call: Node) -> Convolution | None:
    """A convolution whose kernel reads a weight of few bits, if it is one."""
    wanted = convolution_of(call)
    quantized = Quantized.of(wanted.weight)
    if quantized is None or wanted.input.dtype != torch.float32 or 0 in wanted.input.sizes or len(wanted.taps) > 2:
        return None
    wanted = replace(wanted, quantized=quantized)
    kernel = _kernel_of(with_leading_dimension(wanted) if len(wanted.taps) == 1 else wanted)
    has_scales = has_channel_scales(quantized, wanted.groups if wanted.transposed else 0)
    return wanted if has_scales and kernel in (append_product_convolution, append_transposed_phases) else None


def _is_constant(tensor: Value | None) -> bool:
    return tensor is None or tensor.elements is not None
