"""The node of a convolution whose result has given sizes."""

from __future__ import annotations

from collections.abc import Sequence

from mobopt.ir import Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder
from mobopt.runtimes.vulkan.kernels.convolution_parameters import Convolution


def convolved(build: NodeBuilder, wanted: Convolution, area: Sequence[int]) -> Value:
    """A convolution whose result has the spatial sizes ``area``."""
    spatial = len(wanted.taps)
    stride, dilation = list(wanted.stride), list(wanted.dilation)
    if not wanted.transposed:
        x, padding = padded(build, wanted, area)
        ordinary = (stride, list(padding), dilation, wanted.groups)
        return build(f"aten::conv{spatial}d", x, wanted.weight, wanted.bias, *ordinary)
    along = (stride, list(wanted.padding), _output_padding(wanted, area), wanted.groups, dilation)
    operator = f"aten::conv_transpose{spatial}d" + (".input" if spatial > 1 else "")
    return build(operator, wanted.input, wanted.weight, wanted.bias, *along)


def _output_padding(wanted: Convolution, area: Sequence[int]) -> list[int]:
    along = zip(wanted.input.sizes[2:], area, wanted.taps, wanted.stride, wanted.padding, wanted.dilation, strict=True)
    return [
        made - ((size - 1) * stride - 2 * padding + dilation * (taps - 1) + 1)
        for size, made, taps, stride, padding, dilation in along
    ]


def padded(build: NodeBuilder, wanted: Convolution, area: Sequence[int]) -> tuple[Value, tuple[int, ...]]:
    """The input, and the padding of an operator, which is as much behind as before; else the input with its own."""
    along = zip(wanted.input.sizes[2:], area, wanted.taps, wanted.stride, wanted.dilation, strict=True)
    needed = [(made - 1) * stride + step * (taps - 1) + 1 - size for size, made, taps, stride, step in along]
    behind = [most - before for most, before in zip(needed, wanted.padding, strict=True)]
    is_even = all(
        before >= 0 and before - stride < rest <= before
        for before, rest, stride in zip(wanted.padding, behind, wanted.stride, strict=True)
    )
    if is_even:
        return wanted.input, wanted.padding
    around = [side for pair in reversed(list(zip(wanted.padding, behind, strict=True))) for side in pair]
    return build("aten::constant_pad_nd", wanted.input, around, 0.0), (0,) * len(around[::2])
