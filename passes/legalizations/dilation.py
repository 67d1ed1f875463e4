"""Dilated convolutions with padding, without the taps that read nothing but padding.

PyTorch's Vulkan kernels begin such a kernel at the wrong tap where it begins in the padding (``glsl/conv2d.glsl``).
Padding before the convolution is right for every size, and makes the kernel multiply the zeros. Where the sizes are
known, taps that no output needs can go, and the result can be computed in regions in which every tap that is left
reads the image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, product

from mobopt.ir import Value
from mobopt.ops import costs
from mobopt.ops.costs import Cost
from mobopt.passes.legalizations.building import is_release, joined, plus, slice_of, spread, weight_of
from mobopt.passes.legalizations.site import Refused, Site, legalizes

_WORTH = 0.9
"""Of the time of padding: what fixes a file to sizes must save more than this leaves."""
_MOST_WEIGHTS = 2
"""Times the weights that the layer has: regions have weights of their own, and the file grows with them."""


@dataclass(frozen=True)
class _Region:
    """Outputs in a row that need the same taps, along one dimension."""

    outputs: range
    taps: range
    inputs: range
    """What they read; it begins below zero, or ends behind the image, where padding is read."""
    size: int
    """Of the image."""

    @property
    def inside(self) -> range:
        """What they read of the image itself."""
        return range(max(self.inputs.start, 0), min(self.inputs.stop, self.size))

    @property
    def padding(self) -> tuple[int, int]:
        """Zeros before and behind."""
        return max(-self.inputs.start, 0), max(self.inputs.stop - self.size, 0)

    @property
    def is_whole(self) -> bool:
        """Whether the whole image is read."""
        return len(self.inside) == self.size


Form = tuple[Sequence[_Region], Sequence[_Region]]
"""Regions of rows and of columns."""


@dataclass(frozen=True)
class _Axis:
    """A convolution along one dimension."""

    size: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    def forms(self) -> list[list[_Region]]:
        """One region with padding, and regions without, where every output needs a tap."""
        needed = [self._needed(output) for output in range(self.outputs)]
        used = [tap for taps in needed for tap in taps]
        if not used:
            raise Refused("it reads nothing but padding")
        whole = [self._region(range(self.outputs), range(min(used), max(used) + 1))]
        if not all(needed):
            return [whole]
        runs = [list(run) for _, run in groupby(range(self.outputs), key=needed.__getitem__)]
        regions = [self._region(range(run[0], run[-1] + 1), needed[run[0]]) for run in runs]
        return [whole] if len(regions) == 1 else [whole, regions]

    def _needed(self, output: int) -> range:
        """The taps of an output that read the image."""
        first = output * self.stride - self.padding
        return range(max(0, -(first // self.dilation)), min(self.kernel, (self.size - 1 - first) // self.dilation + 1))

    def _region(self, outputs: range, taps: range) -> _Region:
        start = outputs.start * self.stride - self.padding + taps.start * self.dilation
        end = (outputs[-1]) * self.stride - self.padding + taps[-1] * self.dilation + 1
        return _Region(outputs, taps, range(start, end), self.size)


@legalizes("convolve_inside", level="full")
def convolve_inside(site: Site) -> Value:
    """Convolutions of regions of the image with the taps that read the image there, or a sum of what each tap gives."""
    sizes, made = site.sizes("input"), site.sizes(site.node.output)
    if len(sizes) != 4:
        raise Refused("its input is not a batch of images")
    weight = weight_of(site)
    stride, padding, dilation = (spread(site.const(name), 2) for name in ("stride", "padding", "dilation"))
    axes = [
        _Axis(sizes[2 + item], made[2 + item], weight.shape[2 + item], stride[item], padding[item], dilation[item])
        for item in range(2)
    ]
    most = _MOST_WEIGHTS * math.prod(weight.shape[2:])
    forms = [form for form in product(axes[0].forms(), axes[1].forms()) if _taps(form) <= most]
    before = _time(site, ([_region_of_all(axes[0])], [_region_of_all(axes[1])]))
    times = [_time(site, form) for form in forms]
    best = min(times)
    taps = _by_taps(axes) if site.const("groups") == 1 else []
    of_taps = _time_of_taps(site, taps) if taps else math.inf
    if min(best, of_taps) > _WORTH * before:
        raise Refused(
            f"padding takes about {before:.0f} us by the cost model, and {min(best, of_taps):.0f} us without its zeros"
        )
    if of_taps < best:
        site.remark = f"{len(taps)} taps, about {of_taps:.0f} us by the cost model; padding would take {before:.0f} us"
        return _sum_of_taps(site, taps)
    rows, columns = forms[times.index(best)]
    regions = f"{len(rows)} x {len(columns)} regions"
    site.remark = f"{regions}, about {best:.0f} us by the cost model; padding would take {before:.0f} us"
    return joined(site, [joined(site, [_convolved(site, row, item) for item in columns], 3) for row in rows], 2)


def _taps(form: Form) -> int:
    """Taps of all regions, each of which has weights of its own."""
    rows, columns = (sum(len(region.taps) for region in regions) for regions in form)
    return rows * columns


def _region_of_all(axis: _Axis) -> _Region:
    """What padding alone does: every output, with every tap."""
    end = (axis.outputs - 1) * axis.stride - axis.padding + (axis.kernel - 1) * axis.dilation + 1
    return _Region(range(axis.outputs), range(axis.kernel), range(-axis.padding, end), axis.size)


def _time(site: Site, form: Form) -> float:
    """Microseconds that a form takes, by the cost model."""
    weight, groups = weight_of(site), site.const("groups")
    channels, outputs = weight.shape[1] * groups, weight.shape[0]
    rows, columns = form
    cost = Cost()
    for row, column in product(rows, columns):
        read = len(row.inside) * len(column.inside) * channels
        if not (row.is_whole and column.is_whole):
            cost += costs.copying(read)
        if any((*row.padding, *column.padding)):
            cost += costs.copying(len(row.inputs) * len(column.inputs) * channels)
        pixels, kernel = len(row.outputs) * len(column.outputs), len(row.taps) * len(column.taps)
        is_dense = groups == 1
        cost += (
            costs.convolution(pixels, outputs, channels, kernel)
            if is_dense
            else costs.depthwise(pixels, channels, kernel)
        )
    pixels = math.prod(sum(len(item.outputs) for item in regions) for regions in form)
    if len(columns) > 1:
        # Before 2.6 columns are joined as rows of another shape, which takes two copies more.
        cost += costs.copying(pixels * outputs) * (len(rows) * (1 if is_release(site, "2.6") else 3))
    if len(rows) > 1:
        cost += costs.copying(pixels * outputs)
    return cost.on(costs.gpu(site.runtime)) * site.sizes("input")[0]


def _convolved(site: Site, row: _Region, column: _Region, has_bias: bool = True) -> Value:
    """The convolution of one region."""
    x = site.arg("input")
    for dim, region in ((2, row), (3, column)):
        if not region.is_whole:
            x = slice_of(site, x, dim, region.inside.start, region.inside.stop)
    sides = [*column.padding, *row.padding]
    if any(sides):
        x = site.op("aten::constant_pad_nd", x, sides, 0.0)
    weight = weight_of(site)[:, :, row.taps.start : row.taps.stop, column.taps.start : column.taps.stop].contiguous()
    steps = [step if len(region.taps) > 1 else 1 for step, region in zip(_dilation(site), (row, column), strict=True)]
    rest = [site.arg("stride"), [0, 0], steps, site.arg("groups")]
    bias = site.arg("bias") if has_bias else None
    result: Value = site.op("aten::conv2d", x, weight, bias, *rest)
    return result


def _by_taps(axes: Sequence[_Axis]) -> list[tuple[_Region, _Region]]:
    """Where each tap reads the image, a tap that every output needs first; empty where there is no such tap."""
    rows, columns = (
        [region for tap in range(axis.kernel) if (region := _region_of(axis, tap)) is not None] for axis in axes
    )
    taps = list(product(rows, columns))
    whole = [
        tap for tap in taps if all(len(item.outputs) == axis.outputs for item, axis in zip(tap, axes, strict=True))
    ]
    return [whole[0], *(tap for tap in taps if tap is not whole[0])] if whole else []


def _region_of(axis: _Axis, tap: int) -> _Region | None:
    """The outputs for which a tap reads the image."""
    offset = tap * axis.dilation - axis.padding
    first = max(-(offset // axis.stride), 0)
    end = min((axis.size - 1 - offset) // axis.stride + 1, axis.outputs)
    if first >= end:
        return None
    start = first * axis.stride + offset
    inputs = range(start, (end - 1) * axis.stride + offset + 1)
    return _Region(range(first, end), range(tap, tap + 1), inputs, axis.size)


def _time_of_taps(site: Site, taps: Sequence[tuple[_Region, _Region]]) -> float:
    """Microseconds that a sum of taps takes, by the cost model."""
    outputs, channels = weight_of(site).shape[:2]
    everything = math.prod(site.sizes(site.node.output)[2:]) * outputs
    cost = (costs.copying(everything) + costs.copying(everything)) * (len(taps) - 1)  # padded, and added
    for row, column in taps:
        cost += costs.copying(len(row.inputs) * len(column.inputs) * channels)
        cost += costs.convolution(len(row.outputs) * len(column.outputs), outputs, channels, 1)
    return cost.on(costs.gpu(site.runtime)) * site.sizes("input")[0]


def _sum_of_taps(site: Site, taps: Sequence[tuple[_Region, _Region]]) -> Value:
    """What each tap gives, with zeros where it reads padding, added; the first one reads none."""
    height, width = site.sizes(site.node.output)[2:]
    total = _convolved(site, *taps[0])
    for row, column in taps[1:]:
        part = _convolved(site, row, column, has_bias=False)
        sides = [column.outputs.start, width - column.outputs.stop, row.outputs.start, height - row.outputs.stop]
        if any(sides):
            part = site.op("aten::constant_pad_nd", part, sides, 0.0)
        total = plus(site, total, part)
    return total


def _dilation(site: Site) -> list[int]:
    return spread(site.const("dilation"), 2)
