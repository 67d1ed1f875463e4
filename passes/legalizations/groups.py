"""Grouped convolutions as dense ones, which are all that PyTorch's Vulkan kernels compute right.

A dense convolution of several groups has zeros in its weight: it is fewer operators, and more arithmetic. How many
groups go together is chosen by :mod:`mobopt.ops.costs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch

from mobopt.ir import Value
from mobopt.ops import costs
from mobopt.ops.targets.device_profiles import weight_extent
from mobopt.passes.legalizations.building import is_release, joined, slice_of, weight_of
from mobopt.passes.legalizations.site import Site, legalizes

_USUAL_PIXELS = 28 * 28
"""Of an image whose size is not known."""


@legalizes("split_groups", level="safe")
def split_groups(site: Site) -> Value:
    """Dense convolutions for groups of channels, as many together as are cheapest, put together again."""
    weight, groups = weight_of(site), site.const("groups")
    rows = weight.shape[0] // groups
    pixels = _pixels(site, site.node.output)
    bounds = _cheapest(site, groups, weight.shape[1], rows, pixels, weight.shape[2:])
    blocks = [_block_diagonal(weight[rows * start : rows * end], end - start) for start, end in pairwise(bounds)]
    inputs = [weight.shape[1] * bound for bound in bounds]
    order = ["stride", "padding", "dilation", 1]
    return _in_parts(site, "aten::conv2d", blocks, inputs, [rows * bound for bound in bounds], order)


@legalizes("split_transposed_groups", level="safe")
def split_transposed_groups(site: Site) -> Value:
    """Dense transposed convolutions for groups of channels, as many together as are cheapest, put together again."""
    weight, groups = weight_of(site), site.const("groups")
    inputs = weight.shape[0] // groups
    pixels = _pixels(site, site.arg("input"))
    bounds = _cheapest(site, groups, inputs, weight.shape[1], pixels, weight.shape[2:])
    blocks = [_block_diagonal(weight[inputs * start : inputs * end], end - start) for start, end in pairwise(bounds)]
    outputs = [weight.shape[1] * bound for bound in bounds]
    order = ["stride", "padding", "output_padding", 1, "dilation"]
    return _in_parts(site, "aten::conv_transpose2d.input", blocks, [inputs * bound for bound in bounds], outputs, order)


def _pixels(site: Site, image: Value) -> int:
    """Elements in each channel of an image."""
    sizes = site.facts(image).known_sizes
    return _USUAL_PIXELS if sizes is None else sizes[0] * math.prod(sizes[2:]) if len(sizes) == 4 else sizes[-1]


def _cheapest(site: Site, groups: int, inputs: int, outputs: int, pixels: int, kernel: Sequence[int]) -> list[int]:
    """Where the parts of a convolution with so many groups begin and end, in groups.

    Args:
        site: the convolution.
        groups: its groups.
        inputs: input channels of each group.
        outputs: output channels of each group.
        pixels: of the image that is convolved.
        kernel: sizes of the kernel.
    """
    processor = costs.gpu(site.runtime)

    def time(together: int) -> float:
        sizes = [min(together, groups - start) for start in range(0, groups, together)]
        parts = costs.total(
            costs.convolution(pixels, size * outputs, size * inputs, math.prod(kernel)) for size in sizes
        )
        if len(sizes) > 1:
            parts += costs.total(costs.copying(pixels * size * inputs) for size in sizes)
            parts += costs.copying(pixels * groups * outputs)
            if not is_release(site, "2.6") and together * outputs % 4 != 0:  # joined with slices of slices
                parts += costs.copying(pixels * together * outputs) * (2 * len(sizes))
        return parts.on(processor)

    def is_image(together: int) -> bool:
        extent = weight_extent("aten::conv2d", (together * outputs, together * inputs, *kernel), 1, False, site.runtime)
        return extent is not None and max(extent) <= site.weight_limit

    times = {together: time(together) for together in range(1, groups + 1)}
    best = min(filter(is_image, times), key=times.__getitem__, default=1)
    count = -(-groups // best)
    site.remark = (
        f"{groups} groups in {count} convolutions, about {times[best]:.0f} us by the cost model; {groups} would take "
        f"{times[1]:.0f} us, 1 {times[groups]:.0f} us"
    )
    return [*range(0, groups, best), groups]


def _block_diagonal(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """A dense weight that computes what a grouped one does; both have the groups along the first dimension."""
    first, second = weight.shape[0] // groups, weight.shape[1]
    dense = weight.new_zeros(weight.shape[0], second * groups, *weight.shape[2:])
    for group in range(groups):
        rows = slice(group * first, (group + 1) * first)
        dense[rows, group * second : (group + 1) * second] = weight[rows]
    return dense


def _in_parts(
    site: Site, op: str, weights: list[torch.Tensor], inputs: list[int], outputs: list[int], order: list[object]
) -> Value:
    """A convolution for each weight; ``inputs`` and ``outputs`` are where its channels begin, and end last."""
    x, bias = site.arg("input"), site.const("bias")
    parameters = [site.arg(item) if isinstance(item, str) else item for item in order]
    parts = []
    for weight, (first, end), (low, high) in zip(weights, pairwise(inputs), pairwise(outputs), strict=True):
        part = slice_of(site, x, 1, first, end) if len(weights) > 1 else x
        own_bias = None if bias is None else bias[low:high].clone()
        parts.append(site.op(op, part, weight.contiguous(), own_bias, *parameters))
    return joined(site, parts, 1)
