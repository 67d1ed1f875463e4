"""Convolutions of volumes as those of images, whose kernels are an order of magnitude faster.

Filters of one row and column are those of an image whose rows are the frames. For others every frame of the result is
an image: its channels are those of all the frames that its filter reaches, or, where each channel has a filter of its
own, it is the sum of an image for each of these frames. Transposed ones are so for each residue of a frame's number
modulo the stride.
"""

from __future__ import annotations

from collections.abc import Sequence

from mobopt.ir import Value
from mobopt.runtimes.vulkan.decompositions.convolved import convolved
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder
from mobopt.runtimes.vulkan.kernels.convolution_parameters import Convolution, Phase, phases
from mobopt.runtimes.vulkan.kernels.convolution_roads import is_of_columns


def of_images(build: NodeBuilder, wanted: Convolution, output: Value) -> Value:
    """With constant weights, and a batch dimension."""
    if is_of_columns(wanted):
        return _of_columns(build, wanted, output)
    parts = _frames_of_taps(build, wanted, output.sizes[2])
    make = _of_each_channel if wanted.is_depthwise and wanted.groups > 1 else _of_all_channels
    images = make(build, wanted, parts, output.sizes[3:])
    return build("aten::clone", _as_volume(build, images, output), memory_format=0)


def of_phases(build: NodeBuilder, wanted: Convolution, output: Value) -> Value:
    """A transposed one, where each frame of the result has a tap."""
    size, stride = output.sizes[2], wanted.stride[0]
    count = -(-size // stride)
    found = phases(size, wanted.taps[0], stride, wanted.padding[0], wanted.dilation[0])
    volumes = [_of_phase(build, wanted, phase, count, output) for phase in found]
    whole = build("aten::stack", volumes, 3)
    every = build("aten::reshape", whole, [*output.sizes[:2], count * len(volumes), *output.sizes[3:]])
    return build("aten::clone", build("aten::slice.Tensor", every, 2, 0, size, 1), memory_format=0)


def _of_phase(build: NodeBuilder, wanted: Convolution, phase: Phase, count: int, output: Value) -> Value:
    """``count`` frames of the result, each ``stride`` behind the one before."""
    frames = wanted.input.sizes[2]
    starts = [phase.first + number * phase.step for number in range(len(phase.taps))]
    before, after = max(-starts[0], 0), max(starts[-1] + count - frames, 0)
    padded = wanted.input
    if before or after:
        padded = build("aten::constant_pad_nd", padded, [0, 0, 0, 0, before, after], 0.0)
    begins = [start + before for start in starts]
    parts = [build("aten::slice.Tensor", padded, 2, begin, begin + count, 1) for begin in begins]
    inputs, outputs, _, *taps = wanted.weight.sizes
    chosen = build("aten::stack", [build("aten::select.int", wanted.weight, 2, tap) for tap in phase.taps], 1)
    weight = build("aten::reshape", chosen, [inputs * len(parts), outputs, *taps])
    images = _images_of(build, parts)
    made = convolved(build, _of_frames(wanted, images, weight, wanted.bias), output.sizes[3:])
    return _as_volume(build, made, output)


def _as_volume(build: NodeBuilder, images: Value, output: Value) -> Value:
    """Images of frames, those of one volume one after the other, as volumes."""
    n, frames = output.sizes[0], images.sizes[0] // output.sizes[0]
    batched = build("aten::reshape", images, [n, frames, *images.sizes[1:]])
    return build("aten::permute", batched, [0, 2, 1, 3, 4])


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


def _of_all_channels(build: NodeBuilder, wanted: Convolution, parts: list[Value], area: Sequence[int]) -> Value:
    """One convolution of images whose channels are those of all parts."""
    outputs, group_inputs, _, *taps = wanted.weight.sizes
    weight = build("aten::reshape", wanted.weight, [outputs, group_inputs * len(parts), *taps])
    return convolved(build, _of_frames(wanted, _images_of(build, parts), weight, wanted.bias), area)


def _images_of(build: NodeBuilder, parts: Sequence[Value]) -> Value:
    """Every frame an image, whose channels are those of all parts, the parts of one channel together."""
    n, channels, count, *area = parts[0].sizes
    moved = build("aten::permute", build("aten::stack", list(parts), 2), [0, 3, 1, 2, 4, 5])
    return build("aten::reshape", moved, [n * count, channels * len(parts), *area])


def _of_each_channel(build: NodeBuilder, wanted: Convolution, parts: list[Value], area: Sequence[int]) -> Value:
    """The sum of one convolution of images for each part."""
    n, channels, count, *sizes = parts[0].sizes
    total = None
    for tap, part in enumerate(parts):
        images = build("aten::reshape", build("aten::permute", part, [0, 2, 1, 3, 4]), [n * count, channels, *sizes])
        weight = build("aten::select.int", wanted.weight, 2, tap)
        made = convolved(build, _of_frames(wanted, images, weight, wanted.bias if total is None else None), area)
        total = made if total is None else build("aten::add.Tensor", total, made)
    assert total is not None
    return total


def _of_frames(wanted: Convolution, images: Value, weight: Value, bias: Value | None) -> Convolution:
    """What is done with rows and columns, to images."""
    along = (wanted.stride[1:], wanted.padding[1:], wanted.dilation[1:])
    return Convolution(images, weight, bias, *along, wanted.groups, wanted.transposed)
