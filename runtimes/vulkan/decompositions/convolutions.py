"""Convolutions that no fast kernel takes as others that one does: see :class:`Road`; each is a function here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from mobopt.ir import Node, Value
from mobopt.ops.contexts import Conv2dPackedContext, VulkanConv2dOpContext
from mobopt.runtimes.vulkan.decompositions.convolved import convolved, padded
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes
from mobopt.runtimes.vulkan.decompositions.volumes import of_images, of_phases
from mobopt.runtimes.vulkan.kernels.convolution_parameters import CONVOLUTIONS, Convolution, convolution_of
from mobopt.runtimes.vulkan.kernels.convolution_roads import Road, road_of

_BAND_TAPS = 64
"""Of a part of a large filter; more take compilers long."""


@decomposes(*CONVOLUTIONS)
def convolution(build: NodeBuilder, node: Node) -> Value | None:
    """By the road that it takes, and then the clamp of a packed context."""
    wanted = convolution_of(node)
    road = road_of(wanted, node.output.sizes)
    if road is None:
        return None
    result = _ROADS[road](build, wanted, node.output)
    for argument in node.args:
        if isinstance(argument, (Conv2dPackedContext, VulkanConv2dOpContext)):
            low, high = argument.output_min, argument.output_max
            result = result if low is None and high is None else build("aten::clamp", result, low, high)
    return result


def _of_repeated(build: NodeBuilder, wanted: Convolution, output: Value) -> Value:
    """Each channel as often as it has filters."""
    n, channels, *area = wanted.input.sizes
    count = wanted.group_outputs
    each = build("aten::expand", build("aten::unsqueeze", wanted.input, 2), [n, channels, count, *area])
    weight = build("aten::reshape", wanted.weight, [channels * count, 1, *wanted.taps])
    repeated = build("aten::reshape", each, [n, channels * count, *area])
    return convolved(build, replace(wanted, input=repeated, weight=weight, groups=channels * count), output.sizes[2:])


def _of_spaced(build: NodeBuilder, wanted: Convolution, output: Value) -> Value:
    """The filter turned round, and steps of one."""
    spaced = wanted.input
    for d, step in enumerate(wanted.stride, start=2):
        spaced = _with_zeros_between(build, spaced, d, step)
    weight = build("aten::flip", wanted.weight, list(range(2, 2 + len(wanted.taps))))
    reach = [step * (taps - 1) for taps, step in zip(wanted.taps, wanted.dilation, strict=True)]
    padding = tuple(most - padding for most, padding in zip(reach, wanted.padding, strict=True))
    ones = (1,) * len(reach)
    ordinary = replace(wanted, input=spaced, weight=weight, stride=ones, padding=padding, transposed=False)
    return convolved(build, ordinary, output.sizes[2:])


def _with_zeros_between(build: NodeBuilder, x: Value, dimension: int, step: int) -> Value:
    """``step - 1`` zeros behind each element along a dimension."""
    if step == 1:
        return x
    before, size, after = x.sizes[:dimension], x.sizes[dimension], x.sizes[dimension + 1 :]
    behind = build("aten::reshape", x, [math.prod(before) * size, 1, math.prod(after)])
    padded = build("aten::constant_pad_nd", behind, [0, 0, 0, step - 1], 0.0)
    return build("aten::reshape", padded, [*before, size * step, *after])


def _of_padded_groups(build: NodeBuilder, wanted: Convolution, output: Value) -> Value:
    """Channels of zeros, by weights of zero, behind those of each group; none of their results is kept."""
    groups, inputs, outputs = wanted.groups, wanted.group_inputs, wanted.group_outputs
    more_inputs, more_outputs = -inputs % 4, -outputs % 4
    x, bias = _with_more(build, wanted.input, 1, groups, more_inputs), wanted.bias
    if wanted.transposed:
        weight = _with_more(build, _with_more(build, wanted.weight, 0, groups, more_inputs), 1, 1, more_outputs)
    else:
        weight = _with_more(build, _with_more(build, wanted.weight, 0, groups, more_outputs), 1, 1, more_inputs)
    if bias is not None:
        bias = _with_more(build, bias, 0, groups, more_outputs)
    result = convolved(build, replace(wanted, input=x, weight=weight, bias=bias), output.sizes[2:])
    if more_outputs:
        n, _, *area = result.sizes
        each = build("aten::reshape", result, [n, groups, outputs + more_outputs, *area])
        result = build("aten::reshape", build("aten::slice.Tensor", each, 2, 0, outputs, 1), [*output.sizes])
    return result


def _with_more(build: NodeBuilder, x: Value, dimension: int, groups: int, more: int) -> Value:
    """``more`` zeros behind the elements of each group along a dimension."""
    if more == 0:
        return x
    before, size, after = x.sizes[:dimension], x.sizes[dimension] // groups, x.sizes[dimension + 1 :]
    each = build("aten::reshape", x, [math.prod(before) * groups, size, math.prod(after)])
    padded = build("aten::constant_pad_nd", each, [0, 0, 0, more], 0.0)
    return build("aten::reshape", padded, [*before, groups * (size + more), *after])


def _of_bands(build: NodeBuilder, wanted: Convolution, output: Value) -> Value:
    """The sum of what parts of the filters make, each small enough for loops that are unrolled."""
    area = output.sizes[2:]
    x, padding = padded(build, wanted, area)
    x = _with_zeros_around(build, x, padding)
    wide = min(wanted.taps[-1], _BAND_TAPS)
    sides = (_BAND_TAPS // wide, wide)[-len(wanted.taps) :]
    cuts = [range(0, taps, side) for taps, side in zip(wanted.taps, sides, strict=True)]
    total = None
    for first in itertools.product(*cuts):
        weight, met = wanted.weight, x
        for d, (begin, side) in enumerate(zip(first, sides, strict=True)):
            end = min(begin + side, wanted.taps[d])
            weight = build("aten::slice.Tensor", weight, d + 2, begin, end, 1)
            start, reach = begin * wanted.dilation[d], (end - begin - 1) * wanted.dilation[d] + 1
            met = build("aten::slice.Tensor", met, d + 2, start, start + (area[d] - 1) * wanted.stride[d] + reach, 1)
        bias = wanted.bias if total is None else None
        part = replace(wanted, input=met, weight=weight, bias=bias, padding=(0,) * len(area))
        made = convolved(build, part, area)
        total = made if total is None else build("aten::add.Tensor", total, made)
    assert total is not None
    return total


def _with_zeros_around(build: NodeBuilder, x: Value, padding: Sequence[int]) -> Value:
    if not any(padding):
        return x
    return build("aten::constant_pad_nd", x, [side for size in reversed(padding) for side in (size, size)], 0.0)


def _as_product(build: NodeBuilder, wanted: Convolution, output: Value) -> Value:
    """Patches of the image are the columns of a matrix, and filters the rows of another."""
    n, _, *area = output.sizes
    x, padding = padded(build, wanted, area)
    x = _with_zeros_around(build, x, padding)
    met = [_met_by(build, x, wanted, tap, area) for tap in itertools.product(*map(range, wanted.taps))]
    patches = met[0] if len(met) == 1 else build("aten::stack", met, 2)
    inner = wanted.group_inputs * len(met)
    columns = build("aten::reshape", patches, [n, wanted.groups, inner, math.prod(area)])
    rows = build("aten::reshape", wanted.weight, [1, wanted.groups, wanted.group_outputs, inner])
    result = build("aten::reshape", build("aten::matmul", rows, columns), list(output.sizes))
    if wanted.bias is None:
        return result
    return build("aten::add.Tensor", result, build("aten::reshape", wanted.bias, [1, -1, 1, 1]))


def _met_by(build: NodeBuilder, x: Value, wanted: Convolution, tap: Sequence[int], area: Sequence[int]) -> Value:
    """What one tap of the filter is multiplied with, for each pixel of the result."""
    for d, (place, dilation, stride, count) in enumerate(zip(tap, wanted.dilation, wanted.stride, area, strict=True)):
        first = place * dilation
        x = build("aten::slice.Tensor", x, d + 2, first, first + (count - 1) * stride + 1, stride)
    return x


_ROADS: dict[Road, Callable[[NodeBuilder, Convolution, Value], Value]] = {
    Road.IMAGES: of_images,
    Road.PHASES: of_phases,
    Road.REPEATED: _of_repeated,
    Road.SPACED: _of_spaced,
    Road.PADDED_GROUPS: _of_padded_groups,
    Road.BANDS: _of_bands,
    Road.PRODUCT: _as_product,
}
