"""Convolutions that PyTorch's Vulkan kernels compute wrongly, or not at all, in terms of those they compute right.

Right is a 2-d convolution of one sample that is dense or plainly depthwise, with dilation only where there is no
padding (``aten/src/ATen/native/vulkan/ops/Convolution.cpp``, ``glsl/conv2d.glsl``).
"""

from __future__ import annotations

import torch

from mobopt.ir import Value
from mobopt.passes.legalizations.building import (
    is_release,
    joined,
    pointwise,
    reshaped,
    slice_of,
    spread,
    weight_of,
    with_dimension,
    without_dimension,
)
from mobopt.passes.legalizations.site import Refused, Site, legalizes


@legalizes("repeat_channels", level="safe")
def repeat_channels(site: Site) -> Value:
    """A 1x1 convolution that copies each channel, then a depthwise convolution without multiplier."""
    weight, groups = weight_of(site), site.const("groups")
    multiplier = weight.shape[0] // groups
    copies = torch.eye(groups).repeat_interleave(multiplier, 0)
    repeated = pointwise(site, site.arg("input"), copies)
    parameters = [site.arg(name) for name in ("stride", "padding", "dilation")]
    result: Value = site.op("aten::conv2d", repeated, weight, site.arg("bias"), *parameters, weight.shape[0])
    return result


@legalizes("pad_before_convolution", level="safe")
def pad_before_convolution(site: Site) -> Value:
    """Zeros put around the input, then a convolution without padding."""
    high, wide = spread(site.const("padding"), 2)
    padded = site.op("aten::constant_pad_nd", site.arg("input"), [wide, wide, high, high], 0.0)
    names = ("weight", "bias", "stride")
    rest = [site.arg(name) for name in ("dilation", "groups")]
    result: Value = site.op("aten::conv2d", padded, *(site.arg(name) for name in names), [0, 0], *rest)
    return result


@legalizes("spread_transposed_kernel", level="safe")
def spread_transposed_kernel(site: Site) -> Value:
    """Zeros put between the kernel's elements in place of dilation."""
    weight, dilation = weight_of(site), spread(site.const("dilation"), 2)
    stride, output_padding = (spread(site.const(name), 2) for name in ("stride", "output_padding"))
    # Without dilation, more padding than the stride leaves is not allowed; zeros at the kernel's end are the same.
    zeros = [more if more >= step else 0 for more, step in zip(output_padding, stride, strict=True)]
    sizes = [step * (size - 1) + 1 for step, size in zip(dilation, weight.shape[2:], strict=True)]
    wide = weight.new_zeros(*weight.shape[:2], sizes[0] + zeros[0], sizes[1] + zeros[1])
    wide[:, :, : sizes[0] : dilation[0], : sizes[1] : dilation[1]] = weight
    left = [more - less for more, less in zip(output_padding, zeros, strict=True)]
    arguments = [site.arg("bias"), stride, site.arg("padding"), left, site.arg("groups"), [1, 1]]
    result: Value = site.op("aten::conv_transpose2d.input", site.arg("input"), wide, *arguments)
    return result


@legalizes("convolve_samples", level="full")
def convolve_samples(site: Site) -> Value:
    """A convolution for each sample of the batch, put together again.

    Runtimes before 2.6 neither slice nor join batches: there the samples are made channels of one sample first.
    """
    x, batch = site.arg("input"), site.sizes("input")[0]
    if is_release(site, "2.6"):
        samples = [slice_of(site, x, 0, index, index + 1) for index in range(batch)]
        return joined(site, [_convolved(site, sample) for sample in samples], 0)
    channels, *space = site.sizes("input")[1:]
    flat = reshaped(site, x, [1, batch * channels, *space])
    samples = [slice_of(site, flat, 1, index * channels, (index + 1) * channels) for index in range(batch)]
    whole = joined(site, [_convolved(site, sample) for sample in samples], 1)
    return reshaped(site, whole, site.sizes(site.node.output))


def _convolved(site: Site, x: Value) -> Value:
    result: Value = site.op(site.node.qualified_op, x, *site.node.inputs[1:])
    return result


@legalizes("convolve_as_one_sample", level="safe")
def convolve_as_one_sample(site: Site) -> Value:
    """A batch of one around an input without batch."""
    x, rank = site.arg("input"), site.rank("input")
    return without_dimension(site, _convolved(site, with_dimension(site, x, rank, 0)), rank + 1, 0)


@legalizes("give_zero_bias", level="safe")
def give_zero_bias(site: Site) -> Value:
    """A bias of zeros."""
    bias = torch.zeros(weight_of(site).shape[0])
    result: Value = site.op("aten::conv1d", site.arg("input"), site.arg("weight"), bias, *site.node.inputs[3:])
    return result


@legalizes("convolve_1d_as_2d", level="safe")
def convolve_1d_as_2d(site: Site) -> Value:
    """A 2-d convolution of height 1; a batch becomes the height."""
    stride, padding, dilation = (spread(site.const(name), 1)[0] for name in ("stride", "padding", "dilation"))
    parameters = [[1, stride], [0, padding], [1, dilation], site.arg("groups")]
    return _as_2d(site, "aten::conv2d", parameters)


@legalizes("convolve_transposed_1d_as_2d", level="safe")
def convolve_transposed_1d_as_2d(site: Site) -> Value:
    """A 2-d transposed convolution of height 1; a batch becomes the height."""
    names = ("stride", "padding", "output_padding", "dilation")
    stride, padding, output_padding, dilation = (spread(site.const(name), 1)[0] for name in names)
    parameters = [[1, stride], [0, padding], [0, output_padding], site.arg("groups"), [1, dilation]]
    return _as_2d(site, "aten::conv_transpose2d.input", parameters)


def _as_2d(site: Site, op: str, parameters: list[object]) -> Value:
    sizes = site.sizes("input")
    if len(sizes) != 3:
        raise Refused("its input has no batch dimension")
    plane = with_dimension(site, site.arg("input"), 3, 2)
    weight = weight_of(site)[:, :, None].contiguous()
    if sizes[0] == 1:
        return without_dimension(site, site.op(op, plane, weight, site.arg("bias"), *parameters), 4, 2)
    rows = site.op("aten::permute", plane, [2, 1, 0, 3])
    convolved = site.op(op, rows, weight, site.arg("bias"), *parameters)
    return without_dimension(site, site.op("aten::permute", convolved, [2, 1, 0, 3]), 4, 2)
