"""Convolutions of volumes as those of images, whose kernels are an order of magnitude faster.

Filters of one row and column are those of an image whose rows are the frames. For others every frame of the result is
an image: its channels are those of all the frames that its filter reaches.
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
    return _of_columns(build, wanted, node.output) if is_of_columns(wanted) else _of_frames(build, wanted, node)


def _of_columns(build: NodeBuilder, wanted: Convolution, output: Value) -> Value:
    """Filters along the frames only: pixels of a frame are a row of the image."""
    n, channels, frames, *_ = wanted.input.sizes
    image = build("aten::reshape", wanted.input, [n, channels, frames, -1])
    weight = build("aten::reshape", wanted.weight, [*wanted.weight.sizes[:3], 1])
    along = ([wanted.stride[0], 1], [wanted.padding[0], 0], [wanted.dilation[0], 1])
    result = build("aten::conv2d", image, weight, wanted.bias, *along, wanted.groups)
    return build("aten::reshape", result, list(output.sizes))


def _of_frames(build: NodeBuilder, wanted: Convolution, node: Node) -> Value:
    """Each frame of the result is one image of a batch."""
    n, channels, frames, *_ = wanted.input.sizes
    count, reach = node.output.sizes[2], wanted.taps[0]
    (stride, *steps), (before, *padding), (dilation, *dilations) = wanted.stride, wanted.padding, wanted.dilation
    span = (count - 1) * stride + 1
    after = span + (reach - 1) * dilation - frames - before
    padded = wanted.input
    if before or after > 0:
        padded = build("aten::constant_pad_nd", padded, [0, 0, 0, 0, before, max(after, 0)], 0.0)
    starts = [tap * dilation for tap in range(reach)]
    parts = [build("aten::slice.Tensor", padded, 2, start, start + span, stride) for start in starts]
    seen = build("aten::stack", parts, 2)
    moved = build("aten::permute", seen, [0, 3, 1, 2, 4, 5])
    images = build("aten::reshape", moved, [n * count, channels * reach, *wanted.input.sizes[3:]])
    outputs, group_inputs, _, *taps = wanted.weight.sizes
    weight = build("aten::reshape", wanted.weight, [outputs, group_inputs * reach, *taps])
    result = build("aten::conv2d", images, weight, wanted.bias, steps, padding, dilations, wanted.groups)
    batched = build("aten::reshape", result, [n, count, *result.sizes[1:]])
    return build("aten::clone", build("aten::permute", batched, [0, 2, 1, 3, 4]), memory_format=0)
