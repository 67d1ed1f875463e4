"""Padding in the forms that PyTorch's Vulkan kernels compute right: around the last two dimensions of a 4-d tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mobopt.ir import Value
from mobopt.passes.legalizations.building import joined, reshaped, slice_of, spread, with_dimension, without_dimension
from mobopt.passes.legalizations.site import Refused, Site, legalizes


@legalizes("pad_by_convolution", level="safe")
def pad_by_convolution(site: Site) -> Value:
    """A depthwise convolution whose kernel is a single one and whose padding puts the zeros around.

    To put ``l`` zeros before and ``r`` behind, the kernel has ``abs(l - r) + 1`` elements, all but the first or last
    zero, and the padding is ``max(l, r)``. Where these differ much, as many go on both sides, and are cut off.
    """
    if site.rank("self") != 4:
        raise Refused(f"its input has {site.rank('self')} dimensions, and convolutions are for batches of images")
    return _convolved(site, site.arg("self"), site.sizes("self")[1])


@legalizes("pad_planes_by_convolution", level="full")
def pad_planes_by_convolution(site: Site) -> Value:
    """All dimensions but the last two as channels, and a depthwise convolution that puts zeros around."""
    *leading, height, width = site.sizes("self")
    planes = reshaped(site, site.arg("self"), [1, math.prod(leading), height, width])
    return reshaped(site, _convolved(site, planes, math.prod(leading)), site.sizes(site.node.output))


def _convolved(site: Site, x: Value, channels: int) -> Value:
    if len(site.const("pad")) > 4:
        raise Refused("it pads other dimensions than the last two")
    left, right, top, bottom = (*site.const("pad"), 0, 0)[:4]
    if site.backend == "vulkan" and max(abs(left - right), abs(top - bottom)) > _MOST_UNEVEN:  # Metal can't cut
        return _cut(
            site, _convolved_evenly(site, x, channels, max(left, right), max(top, bottom)), left - right, top - bottom
        )
    kernel = torch.outer(_tap(top, bottom), _tap(left, right)).expand(int(channels), 1, -1, -1).contiguous()
    padding = [max(top, bottom), max(left, right)]
    result: Value = site.op("aten::conv2d", x, kernel, None, [1, 1], padding, [1, 1], channels)
    return result


_MOST_UNEVEN = 2
"""A kernel that puts more zeros on one side than on the other is larger by the difference; slices cost less."""


def _convolved_evenly(site: Site, x: Value, channels: int, wide: int, high: int) -> Value:
    """The same number of zeros on both sides."""
    ones = torch.ones(int(channels), 1, 1, 1)
    result: Value = site.op("aten::conv2d", x, ones, None, [1, 1], [high, wide], [1, 1], channels)
    return result


def _cut(site: Site, x: Value, wide: int, high: int) -> Value:
    """An image without so many columns and rows at its end, or at its beginning where the number is below zero."""
    for dim, more in ((3, wide), (2, high)):
        if more > 0:
            x = slice_of(site, x, dim, 0, -more)
        elif more < 0:
            x = slice_of(site, x, dim, -more, 2**63 - 1)
    return x


def _tap(before: int, behind: int) -> torch.Tensor:
    kernel = torch.zeros(abs(before - behind) + 1)
    kernel[max(before, behind) - before] = 1.0
    return kernel


@legalizes("pad_by_joining", level="safe")
def pad_by_joining(site: Site) -> Value:
    """Slices whose elements are clamped to the padding's value, joined to the input; a negative width cuts off."""
    pad, value, rank = site.const("pad"), float(site.const("value")), site.rank("self")
    x = site.arg("self")
    for index in range(0, len(pad), 2):
        x = _padded(site, x, rank - 1 - index // 2, pad[index], pad[index + 1], value)
    return x


def _padded(site: Site, x: Value, dim: int, before: int, behind: int, value: float) -> Value:
    if before < 0 or behind < 0:
        end = behind if behind < 0 else 2**63 - 1
        x = slice_of(site, x, dim, max(-before, 0), end)
    if before <= 0 and behind <= 0:
        return x
    border = site.op("aten::clamp", slice_of(site, x, dim, 0, 1), value, value)
    return joined(site, [*[border] * max(before, 0), x, *[border] * max(behind, 0)], dim)


@legalizes("pad_by_mode", level="safe")
def pad_by_mode(site: Site) -> Value:
    """The padding operator of this mode and number of dimensions."""
    x, pad, mode = site.arg("self"), list(site.const("pad")), site.const("mode")
    result: Value
    if mode == "constant":
        value = site.const("value")
        result = site.op("aten::constant_pad_nd", x, pad, 0.0 if value is None else value)
        return result
    if mode == "circular":
        return _circular(site, x, pad)
    kinds = {"reflect": "reflection", "replicate": "replication"}
    if mode not in kinds or len(pad) not in (2, 4):
        raise Refused(f"mode {mode!r} of {len(pad) // 2} dimensions has no other form")
    result = site.op(f"aten::{kinds[mode]}_pad{len(pad) // 2}d", x, pad)
    return result


def _circular(site: Site, x: Value, pad: Sequence[int]) -> Value:
    rank = site.rank(x)
    if min(pad) < 0:
        raise Refused("a width is negative")
    for index in range(0, len(pad), 2):
        dim, before, behind = rank - 1 - index // 2, pad[index], pad[index + 1]
        parts = [x]
        if before:
            parts.insert(0, slice_of(site, x, dim, -before, 2**63 - 1))
        if behind:
            parts.append(slice_of(site, x, dim, 0, behind))
        x = joined(site, parts, dim)
    return x


@legalizes("pad_1d_as_2d", level="safe")
def pad_1d_as_2d(site: Site) -> Value:
    """The same padding of an image of height 1."""
    x, rank = site.arg("self"), site.rank("self")
    left, right = spread(site.const("padding"), 2)
    plane = with_dimension(site, x, rank, rank - 1)
    padded = site.op(site.node.qualified_op.replace("1d", "2d"), plane, [left, right, 0, 0])
    return without_dimension(site, padded, rank + 1, rank - 1)


@legalizes("one_image", level="safe")
def one_image(site: Site) -> Value:
    """A batch of one around an image without batch."""
    plane = with_dimension(site, site.node.inputs[0], 3, 0)
    result = site.op(site.node.qualified_op, plane, *site.node.inputs[1:])
    return without_dimension(site, result, 4, 0)
