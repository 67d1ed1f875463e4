"""Normalisations in steps that PyTorch's Vulkan kernels compute right.

A reciprocal square root is a power from 2.6 on; before, only the kernel of ``layer_norm`` over whole images has one
(``aten/src/ATen/native/vulkan/glsl/layernorm.glsl``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mobopt.ir import Value
from mobopt.passes.legalizations.building import (
    joined,
    plus,
    reshaped,
    size_of,
    slice_of,
    times,
    weight_of,
)
from mobopt.passes.legalizations.site import Refused, Site, legalizes

_MOST_GROUPS = 64
"""Groups that are normalised one by one; more would be slower than the CPU."""
_MOST_READS = 1 << 28
"""Texels that the kernels may read; each workgroup, of 64 texels, reads the whole image for its mean and variance."""


@legalizes("scale_and_shift", level="safe")
def scale_and_shift(site: Site) -> Value:
    """A product and a sum with one constant for each channel."""
    mean, variance = (weight_of(site, name).double() for name in ("running_mean", "running_var"))
    scale = (variance + site.const("eps")).rsqrt()
    weight, bias = site.const("weight"), site.const("bias")
    scale = scale if weight is None else scale * weight.double()
    shift = -mean * scale if bias is None else bias.double() - mean * scale
    rank = site.rank("input")
    shape = [1, -1, *[1] * (rank - 2)]
    x = times(site, site.arg("input"), scale.float().reshape(shape))
    return plus(site, x, shift.float().reshape(shape))


@legalizes("layer_norm_with_weights", level="safe")
def layer_norm_with_weights(site: Site) -> Value:
    """The same normalisation with weights of ones and zeros."""
    shape = site.const("normalized_shape")
    given = {"weight": torch.ones(shape), "bias": torch.zeros(shape)}
    weights = [default if site.const(name) is None else site.arg(name) for name, default in given.items()]
    rest = [site.arg(name) for name in ("eps", "cudnn_enable")]
    result: Value = site.op("aten::layer_norm", site.arg("input"), site.arg("normalized_shape"), *weights, *rest)
    return result


@legalizes("native_layer_norm_as_layer_norm", level="safe")
def native_layer_norm_as_layer_norm(site: Site) -> tuple[Value, Value, Value]:
    """``layer_norm``, where only its first result is read."""
    if any(value.uses for value in site.node.outputs[1:]):
        raise Refused("its mean or deviation is used")
    normal = site.op("aten::layer_norm", *site.node.inputs, False)
    return normal, normal, normal


@legalizes("rms_norm_in_steps", level="safe")
def rms_norm_in_steps(site: Site) -> Value:
    """Mean of squares and power, one by one."""
    x, eps = site.arg("input"), site.const("eps")
    dims = list(range(-len(site.const("normalized_shape")), 0))
    squares = site.op("aten::mean.dim", times(site, x, x), dims, True)
    smallest = torch.finfo(torch.float32).eps if eps is None else eps
    normal = times(site, x, _reciprocal_root(site, squares, smallest))
    return _with_affine(site, normal, site.const("weight"), None)


@legalizes("group_norm_in_steps", level="safe")
def group_norm_in_steps(site: Site) -> Value:
    """The channels of a group put together as one image, then mean, deviation and power, one by one."""
    x, rank, channels = site.arg("input"), site.rank("input"), site.sizes("input")[1]
    groups = channels if site.node.op == "aten::instance_norm" else site.const("num_groups")
    images = reshaped(site, x, [size_of(site, x, 0), groups, -1, 1 if rank < 4 else size_of(site, x, rank - 1)])
    normal = _normalised(site, images, [2, 3])
    back = reshaped(site, normal, [-1, channels, *(size_of(site, x, dim) for dim in range(2, rank))])
    return _with_affine(site, back, *_channel_weights(site, rank))


@legalizes("group_norm_by_layer_norms", level="full")
def group_norm_by_layer_norms(site: Site) -> Value:
    """A layer normalisation for each group of channels of each sample, put together again."""
    x, sizes = site.arg("input"), site.sizes("input")
    groups = sizes[1] if site.node.op == "aten::instance_norm" else site.const("num_groups")
    parts = sizes[0] * groups
    if parts > _MOST_GROUPS:
        raise Refused(f"it has {parts} groups, and more than {_MOST_GROUPS} one by one are slow")
    channels = sizes[1] // groups
    image = list(sizes[2:]) if len(sizes) == 4 else [1, math.prod(sizes[2:])]
    shape = [int(size) for size in (channels, *image)]
    texels = -(-channels // 4) * math.prod(image)
    if parts * texels**2 // 64 > _MOST_READS:
        raise Refused(f"its groups of {channels * math.prod(image)} elements are slow on this runtime")
    weights = torch.ones(shape), torch.zeros(shape)
    flat = reshaped(site, x, [1, sizes[0] * sizes[1], *image])
    normal = [
        site.op("aten::layer_norm", slice_of(site, flat, 1, start, start + channels), shape, *weights, site.arg("eps"))
        for start in range(0, parts * channels, channels)
    ]
    back = reshaped(site, joined(site, normal, 1), sizes)
    return _with_affine(site, back, *_channel_weights(site, len(sizes)))


def _channel_weights(site: Site, rank: int) -> list[torch.Tensor | None]:
    """Weight and bias of one number for each channel, shaped to be used on a tensor of a rank."""
    shape = [1, -1, *[1] * (rank - 2)]
    known = [site.const(name) for name in ("weight", "bias")]
    return [None if item is None else item.reshape(shape) for item in known]


def _with_affine(site: Site, x: Value, weight: torch.Tensor | None, bias: torch.Tensor | None) -> Value:
    scaled = x if weight is None else times(site, x, weight)
    return scaled if bias is None else plus(site, scaled, bias)


def _normalised(site: Site, x: Value, dims: Sequence[int]) -> Value:
    """Zero mean and unit variance over some dimensions."""
    centred = site.op("aten::sub.Tensor", x, site.op("aten::mean.dim", x, list(dims), True), 1)
    variance = site.op("aten::mean.dim", times(site, centred, centred), list(dims), True)
    return times(site, centred, _reciprocal_root(site, variance, site.const("eps")))


def _reciprocal_root(site: Site, x: Value, eps: float) -> Value:
    result: Value = site.op("aten::pow.Tensor_Scalar", site.op("aten::add.Scalar", x, eps, 1), -0.5)
    return result
