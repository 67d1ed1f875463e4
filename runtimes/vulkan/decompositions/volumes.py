"""Convolutions of volumes as those of images, whose kernels are an order of magnitude faster.

Filters of one row and column are those of an image whose rows are the frames. For others every frame of the result is
an image: its channels are those of all the frames that its filter reaches, or, where each channel has a filter of its
own, it is the sum of an image for each of these frames.
"""

from __future__ import annotations

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes
from mobopt.runtimes.vulkan.kernels.convolution_parameters import (
    Convolution,
    convolution_of,
    is_of_columns,
    is_of_images,
)


@decomposes(
    "aten::conv3d", "aten::conv3d.padding", "aten::convolution", "aten::_convolution", "aten::_convolution.deprecated"
)
def volume_convolution(build: NodeBuilder, node: Node) -> Value | None:
    """With constant weights, and a batch dimension."""
    wanted = convolution_of(node)
    if not is_of_images(wanted, node.output.sizes):
        return None
    if is_of_columns(wanted):
        return _of_columns(build, wanted, node.output)
    n, _, count, *_ = node.output.sizes
    parts = _frames_of_taps(build, wanted, count)
    make = _of_each_channel if wanted.is_depthwise and wanted.groups > 1 else _of_all_channels
    images = make(build, wanted, parts)
    batched = build("aten::reshape", images, [n, count, *images.sizes[1:]])
    return build("aten::clone", build("aten::permute", batched, [0, 2, 1, 3, 4]), memory_format=0)


def _of_columns(build: NodeBuilder, wanted: Convolution, output: Value) -> Value:
    """Filters along the frames only: pixels of a frame are a row of the image."""
    n, channels, frames, *_ = wanted.input.sizes
    image = build("aten::reshape", wanted.input, [n, channels, frames, -1])
    weight = build("aten::reshape", wanted.weight, [*wanted.weight.sizes[:3], 1])
    along = ([wanted.stride[0], 1], [wanted.padding[0], 0], [wanted.dilation[0], 1])
    result = build("aten::conv2d", image, weight, wanted.bias, *along, wanted.groups)
    return build("aten::reshape", result, list(output.sizes))


def _frames_of_taps(build: NodeBuilder, wanted: Convolution, count: int) -> list[Value]:
    """What each tap of the first dimension meets: a frame for each of the ``count`` frames of the result."""
    frames, reach = wanted.input.sizes[2], wanted.taps[0]
    stride, before, dilation = wanted.stride[0], wanted.padding[0], wanted.dilation[0]
    span = (count - 1) * stride + 1
    after = span + (reach - 1) * dilation - frames - before
    padded = wanted.input
    if before or after > 0:
        padded = build("aten::constant_pad_nd", padded, [0, 0, 0, 0, before, max(after, 0)], 0.0)
    starts = [tap * dilation for tap in range(reach)]
    return [build("aten::slice.Tensor", padded, 2, start, start + span, stride) for start in starts]


def _of_all_channels(build: NodeBuilder, wanted: Convolution, parts: list[Value]) -> Value:
    """One convolution of images whose channels are those of all parts."""
    n, channels, count, *area = parts[0].sizes
    moved = build("aten::permute", build("aten::stack", parts, 2), [0, 3, 1, 2, 4, 5])
    images = build("aten::reshape", moved, [n * count, channels * len(parts), *area])
    outputs, group_inputs, _, *taps = wanted.weight.sizes
    weight = build("aten::reshape", wanted.weight, [outputs, group_inputs * len(parts), *taps])
    return _convolved(build, wanted, images, weight, wanted.bias)


def _of_each_channel(build: NodeBuilder, wanted: Convolution, parts: list[Value]) -> Value:
    """The sum of one convolution of images for each part."""
    n, channels, count, *area = parts[0].sizes
    total = None
    for tap, part in enumerate(parts):
        images = build("aten::reshape", build("aten::permute", part, [0, 2, 1, 3, 4]), [n * count, channels, *area])
        weight = build("aten::select.int", wanted.weight, 2, tap)
        made = _convolved(build, wanted, images, weight, wanted.bias if total is None else None)
        total = made if total is None else build("aten::add.Tensor", total, made)
    assert total is not None
    return total


def _convolved(build: NodeBuilder, wanted: Convolution, images: Value, weight: Value, bias: Value | None) -> Value:
    along = (wanted.stride[1:], wanted.padding[1:], wanted.dilation[1:])
    return build("aten::conv2d", images, weight, bias, *map(list, along), wanted.groups)
