"""Elements that move between channels and places: the usual ways go through tensors of five or six dimensions."""

from __future__ import annotations

import torch

from mobopt.ir import Value
from mobopt.passes.legalizations.building import pointwise, reshaped, size_of, slice_of, times
from mobopt.passes.legalizations.site import Refused, Site, legalizes

_LARGEST_WEIGHT = 1 << 20
"""Elements of a constant weight beyond which moving elements by a convolution wastes too much."""


@legalizes("shuffle_pixels_by_convolution", level="safe")
def shuffle_pixels_by_convolution(site: Site) -> Value:
    """A transposed convolution whose weight has a one where a channel goes to a place."""
    factor = site.const("upscale_factor")
    channels = site.sizes("self")[1] // factor**2
    weight = _places(channels, factor)
    result: Value = site.op("aten::conv_transpose2d.input", site.arg("self"), weight, None, [factor, factor])
    return result


@legalizes("unshuffle_pixels_by_convolution", level="safe")
def unshuffle_pixels_by_convolution(site: Site) -> Value:
    """A convolution whose weight has a one where a place goes to a channel."""
    factor = site.const("downscale_factor")
    weight = _places(site.sizes("self")[1], factor)
    result: Value = site.op("aten::conv2d", site.arg("self"), weight, None, [factor, factor])
    return result


def _places(channels: int, factor: int) -> torch.Tensor:
    """Ones at [channel * factor^2 + row * factor + column, channel, row, column]."""
    if channels**2 * factor**4 > _LARGEST_WEIGHT:
        raise Refused(f"{channels} channels and a factor of {factor} need too large a weight")
    channels = int(channels)
    units = torch.eye(factor**2).reshape(factor**2, factor, factor)
    weight = torch.einsum("ab,kij->akbij", torch.eye(channels), units)
    return weight.reshape(channels * factor**2, channels, factor, factor)


@legalizes("shuffle_channels_by_permutation", level="safe")
def shuffle_channels_by_permutation(site: Site) -> Value:
    """Groups, the channels of a group, and an image in one row as dimensions, of which the first two change places.

    Where the row would be too wide for an image, a 1x1 convolution that moves each channel to its place.
    """
    x, groups, rank = site.arg("self"), site.const("groups"), site.rank("self")
    sizes = site.sizes("self")
    if rank != 4:
        raise Refused("its input is not a batch of images")
    channels = sizes[1] // groups
    if sizes[2] * sizes[3] > site.limit:
        matrix = torch.eye(int(sizes[1])).reshape(groups, channels, -1).transpose(0, 1).reshape(sizes[1], sizes[1])
        return pointwise(site, x, matrix)
    rows = reshaped(site, x, [size_of(site, x, 0), groups, channels, -1])
    swapped = site.op("aten::permute", rows, [0, 2, 1, 3])
    return reshaped(site, swapped, [-1, sizes[1], size_of(site, x, 2), size_of(site, x, 3)])


@legalizes("gate_by_sigmoid", level="safe")
def gate_by_sigmoid(site: Site) -> Value:
    """One half times the sigmoid of the other."""
    x, rank = site.arg("self"), site.rank("self")
    dim = site.const("dim") % rank
    half = site.sizes(x)[dim] // 2
    left, right = slice_of(site, x, dim, 0, half), slice_of(site, x, dim, half, 2 * half)
    return times(site, left, site.op("aten::sigmoid", right))
