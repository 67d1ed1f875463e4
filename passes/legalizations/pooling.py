"""Pooling in the forms that PyTorch's Vulkan kernels compute right.

They read zeros where max pooling pads, divide every average by the kernel's whole size, and take 4-d tensors only
(``aten/src/ATen/native/vulkan/ops/Pool.cpp``, ``glsl/max_pool2d.glsl``, ``glsl/avg_pool2d.glsl``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mobopt.ir import Value
from mobopt.passes.legalizations.building import (
    joined,
    size_of,
    slice_of,
    spread,
    with_dimension,
    without_dimension,
)
from mobopt.passes.legalizations.site import Refused, Site, legalizes

_LOWEST = -3.4028234663852886e38
"""The lowest number of float32; infinity times zero would not be a number."""
_TINY = 1e-30
"""Changes no count, and keeps unused lanes of a texel from becoming zero by zero, which convolutions would spread."""


@dataclass(frozen=True)
class _Window:
    """Parameters of a 2-d pooling, each (vertical, horizontal)."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    ceil_mode: bool


def _window(site: Site) -> _Window:
    kernel = spread(site.const("kernel_size"), 2)
    stride = spread(site.const("stride") or kernel, 2)
    dilation = spread(site.const("dilation"), 2) if site.node.op == "aten::max_pool2d" else [1, 1]
    return _Window(kernel, stride, spread(site.const("padding"), 2), dilation, site.const("ceil_mode"))


def _behind(window: _Window) -> list[int]:
    """How much more padding behind makes the floor of a size its ceiling, for every size.

    The floor of (n + stride - 1) / stride is the ceiling of n / stride. Torch drops a last window that would start in
    the padding behind the input, which needs padding + stride > kernel to happen; rows admit only smaller ones.
    """
    return [step - 1 if window.ceil_mode else 0 for step in window.stride]


def _max_pool(site: Site, x: Value, window: _Window) -> Value:
    result: Value = site.op("aten::max_pool2d", x, window.kernel, window.stride, [0, 0], window.dilation, False)
    return result


def _average_pool(site: Site, x: Value, window: _Window, padding: Sequence[int] = (0, 0)) -> Value:
    result: Value = site.op("aten::avg_pool2d", x, window.kernel, window.stride, list(padding), False, True, None)
    return result


@legalizes("pool_after_replication", level="safe")
def pool_after_replication(site: Site) -> Value:
    """The edges copied outwards, then max pooling without padding.

    A window that sees a copy sees the edge element that it is a copy of, too.
    """
    window = _window(site)
    (top, left), (bottom, right) = window.padding, _behind(window)
    sides = [left, left + right, top, top + bottom]
    return _max_pool(site, site.op("aten::replication_pad2d", site.arg("self"), sides), window)


@legalizes("pool_after_filling", level="safe")
def pool_after_filling(site: Site) -> Value:
    """The lowest number put around, then max pooling without padding."""
    window = _window(site)
    (top, left), (bottom, right) = window.padding, _behind(window)
    return _filled_pool(site, window, [left, left + right, top, top + bottom])


@legalizes("pool_after_filling_to_size", level="full")
def pool_after_filling_to_size(site: Site) -> Value:
    """The lowest number put around as far as the example's windows reach, then max pooling without padding."""
    window = _window(site)
    sides: list[int] = []
    for axis in (1, 0):
        before = window.padding[axis]
        size, count = site.sizes("self")[2 + axis], site.sizes(site.node.output)[2 + axis]
        reach = (count - 1) * window.stride[axis] + window.dilation[axis] * (window.kernel[axis] - 1) + 1
        sides += [before, reach - before - size]
    return _filled_pool(site, window, sides)


def _filled_pool(site: Site, window: _Window, sides: list[int]) -> Value:
    return _max_pool(site, site.op("aten::constant_pad_nd", site.arg("self"), sides, _LOWEST), window)


@legalizes("average_by_counts", level="safe")
def average_by_counts(site: Site) -> Value:
    """The average of zero-padded elements, divided by that of ones in their places."""
    window = _window(site)
    x = site.arg("self")
    ones = site.op("aten::clamp", x, 1.0, 1.0)
    if not window.ceil_mode:
        parts = [_average_pool(site, item, window, window.padding) for item in (x, ones)]
    else:
        (top, left), (bottom, right) = window.padding, _behind(window)
        sides = [left, left + right, top, top + bottom]
        if site.const("count_include_pad") and any(window.padding):
            around = site.op("aten::replication_pad2d", x, [left, left, top, top])
            counted = _zero_padded(site, site.op("aten::clamp", around, 1.0, 1.0), [0, right, 0, bottom])
        else:
            counted = _zero_padded(site, ones, sides)
        parts = [_average_pool(site, item, window) for item in (_zero_padded(site, x, sides), counted)]
    counts = site.op("aten::add.Scalar", parts[1], _TINY, 1)
    result: Value = site.op("aten::div.Tensor", parts[0], counts)
    return result


@legalizes("average_within_image", level="safe")
def average_within_image(site: Site) -> Value:
    """The average of what windows see of the image, which may be far smaller: windows are as large as it is, and only
    behind larger images zeros are put, divided by that of ones in their places."""
    window, x = _window(site), site.arg("self")
    kernel, behind = [], []
    for axis in range(2):
        size, step = size_of(site, x, 2 + axis), window.stride[axis] - 1
        kernel.append(site.op("prim::min.int", size, window.kernel[axis]))
        rest = site.op("aten::sub.int", size, kernel[axis])
        behind.append(site.op("prim::min.int", site.op("aten::mul.int", rest, step), step))
    sides = [0, behind[1], 0, behind[0]]
    ones = site.op("aten::clamp", x, 1.0, 1.0)
    padded = [site.op("aten::constant_pad_nd", item, sides, 0.0) for item in (x, ones)]
    parts = [site.op("aten::avg_pool2d", item, kernel, window.stride, [0, 0], False, True, None) for item in padded]
    result: Value = site.op("aten::div.Tensor", parts[0], site.op("aten::add.Scalar", parts[1], _TINY, 1))
    return result


@legalizes("average_of_image", level="full")
def average_of_image(site: Site) -> Value:
    """The average over the whole image, which is all that its one window sees (transformers' EfficientNet)."""
    result: Value = site.op("aten::adaptive_avg_pool2d", site.arg("self"), [1, 1])
    return result


@legalizes("average_with_divisor", level="safe")
def average_with_divisor(site: Site) -> Value:
    """The average over the whole window, times its size, divided by the given divisor."""
    window = _window(site)
    x, padding = site.arg("self"), window.padding
    if window.ceil_mode:
        (top, left), (bottom, right) = window.padding, _behind(window)
        x, padding = _zero_padded(site, x, [left, left + right, top, top + bottom]), [0, 0]
    average = _average_pool(site, x, window, padding)
    factor = window.kernel[0] * window.kernel[1] / site.const("divisor_override")
    result: Value = site.op("aten::mul.Scalar", average, factor)
    return result


def _zero_padded(site: Site, x: Value, sides: list[int]) -> Value:
    result: Value = site.op("aten::constant_pad_nd", x, sides, 0.0)
    return result


@legalizes("pool_1d_as_2d", level="safe")
def pool_1d_as_2d(site: Site) -> Value:
    """The same pooling of images of height 1."""
    rank, name = site.rank("self"), site.node.op
    plane = with_dimension(site, site.arg("self"), rank, rank - 1)

    def wide(argument: str, other: int) -> list[int]:
        numbers = spread(site.const(argument), 1)
        return [other, *numbers] if numbers else []

    pooled: Value
    if name == "aten::adaptive_avg_pool1d":
        pooled = site.op("aten::adaptive_avg_pool2d", plane, wide("output_size", 1))
    else:
        arguments: list[object] = [wide("kernel_size", 1), wide("stride", 1), wide("padding", 0)]
        arguments += [wide("dilation", 1)] if name == "aten::max_pool1d" else []
        arguments += [site.arg("ceil_mode")]
        arguments += [site.arg("count_include_pad")] if name == "aten::avg_pool1d" else []
        pooled = site.op(name.replace("1d", "2d"), plane, *arguments)
    return without_dimension(site, pooled, rank + 1, rank - 1)


@legalizes("pool_without_indices", level="safe")
def pool_without_indices(site: Site) -> tuple[Value, Value]:
    """Max pooling that does not say where the maxima are."""
    _refuse_indices(site)
    pooled = site.op("aten::max_pool2d", *site.node.inputs)
    return pooled, pooled


@legalizes("pool_windows", level="full")
def pool_windows(site: Site) -> tuple[Value, Value]:
    """Max pooling with the windows of the example's sizes: one operator if they are alike, or one for each."""
    _refuse_indices(site)
    x = site.arg("self")
    if site.rank(x) != 4:
        raise Refused("its input is not a batch of images")
    sizes, counts = site.sizes(x)[2:], spread(site.const("output_size"), 2)
    if all(size % count == 0 for size, count in zip(sizes, counts, strict=True)):
        kernel = [size // count for size, count in zip(sizes, counts, strict=True)]
        pooled = _max_pool(site, x, _Window(kernel, kernel, [0, 0], [1, 1], False))
        return pooled, pooled
    for axis, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        x = _pooled_along(site, x, axis, size, count)
    return x, x


def _pooled_along(site: Site, x: Value, axis: int, size: int, count: int) -> Value:
    """The maximum of each window of an adaptive pooling along one spatial axis."""
    parts = []
    for index in range(count):
        start, end = index * size // count, -(-(index + 1) * size // count)
        kernel = [end - start, 1] if axis == 0 else [1, end - start]
        part = slice_of(site, x, 2 + axis, start, end)
        parts.append(_max_pool(site, part, _Window(kernel, kernel, [0, 0], [1, 1], False)))
    return joined(site, parts, 2 + axis)


def _refuse_indices(site: Site) -> None:
    if site.node.outputs[1].uses:
        raise Refused("the places of the maxima are used")
