"""Which convolutions are computed as others, whose kernels are an order of magnitude faster than the general one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

import torch

from mobopt.ops.quantized import Quantized
from mobopt.runtimes.vulkan.kernels.convolution_kernels import depthwise_fits
from mobopt.runtimes.vulkan.kernels.convolution_parameters import Convolution, phases, with_leading_dimension


class Road(Enum):
    """What a convolution is computed as."""

    IMAGES = "convolutions of images: those of volumes with filters known beforehand"
    PHASES = (
        "convolutions of images, for each residue of a frame's number modulo the stride: transposed ones of volumes"
    )
    REPEATED = "a depthwise convolution of repeated channels: one input channel and several outputs in each group"
    SPACED = "an ordinary convolution of an input with zeros between its elements: transposed depthwise ones"
    PADDED_GROUPS = "a convolution whose groups are of multiples of four channels"
    BANDS = "a sum of depthwise convolutions with parts of the filters: depthwise ones of large filters"
    PRODUCT = "a product of matrices: weights that are computed"


_LARGEST_PATCHES = 1 << 26
"""Elements of the matrix of patches that a product of computed weights reads."""
_MOST_TAPS = 25
"""Of a filter whose weights are computed: each is a view of the image."""


def road_of(convolution: Convolution, output_sizes: Sequence[int]) -> Road | None:
    """As what a convolution is computed; None if it is one for a kernel.

    Args:
        convolution: what is asked for.
        output_sizes: of its result, (batch, channels, spatial...), the batch may be missing.
    """
    if convolution.weight.elements is None:
        return Road.PRODUCT if _is_product(convolution, output_sizes) else None
    if 0 in (*convolution.input.sizes, *output_sizes) or convolution.input.rank != len(convolution.taps) + 2:
        return None
    if is_of_images(convolution, output_sizes):
        return Road.IMAGES
    if convolution.groups > 1:
        if convolution.group_inputs == 1:
            if convolution.group_outputs > 1:
                return Road.REPEATED
            if convolution.transposed:
                return Road.SPACED
            return Road.BANDS if len(convolution.taps) < 3 and not _is_depthwise(convolution) else None
        if (convolution.group_inputs % 4 or convolution.group_outputs % 4) and not _is_depthwise(convolution):
            return Road.PADDED_GROUPS
    return Road.PHASES if _is_in_phases(convolution, output_sizes) else None


def _is_product(convolution: Convolution, output_sizes: Sequence[int]) -> bool:
    sizes = convolution.input.sizes
    if convolution.transposed or Quantized.of(convolution.weight) is not None or 0 in (*sizes, *output_sizes):
        return False
    if len(sizes) != 4 or convolution.input.dtype != torch.float32 or math.prod(convolution.taps) > _MOST_TAPS:
        return False
    return sizes[0] * sizes[1] * math.prod(convolution.taps) * math.prod(output_sizes[2:]) <= _LARGEST_PATCHES


def _is_depthwise(convolution: Convolution) -> bool:
    """Whether there is a kernel for it as it is."""
    return depthwise_fits(with_leading_dimension(convolution) if len(convolution.taps) == 1 else convolution)


def _is_in_phases(convolution: Convolution, output_sizes: Sequence[int]) -> bool:
    """Whether a convolution is a transposed one of volumes with a tap, at least, for each frame of the result."""
    if not convolution.transposed or len(convolution.taps) != 3 or convolution.input.dtype != torch.float32:
        return False
    along = (
        numbers[0] for numbers in (convolution.taps, convolution.stride, convolution.padding, convolution.dilation)
    )
    return all(phase.taps for phase in phases(output_sizes[2], *along))


def is_of_images(convolution: Convolution, output_sizes: Sequence[int]) -> bool:
    """Whether a convolution is one of volumes that kernels for images compute: with filters known beforehand, as much
    padding behind rows and columns as before them, and groups that such kernels take."""
    sizes, reach = convolution.input.sizes, 1 if is_of_columns(convolution) else convolution.taps[0]
    if len(convolution.taps) != 3 or len(sizes) != 5 or convolution.transposed or 0 in (*sizes, *output_sizes):
        return False
    if convolution.weight.elements is None or convolution.input.dtype != torch.float32:
        return False
    whole_groups = convolution.group_inputs * reach % 4 == 0 and convolution.group_outputs % 4 == 0
    if convolution.groups != 1 and not whole_groups and not convolution.is_depthwise:
        return False
    both = [size + 2 * padding for size, padding in zip(sizes[2:], convolution.padding, strict=True)]
    spans = [step * (size - 1) + 1 for size, step in zip(convolution.taps, convolution.dilation, strict=True)]
    results = [(size - span) // step + 1 for size, span, step in zip(both, spans, convolution.stride, strict=True)]
    return results == list(output_sizes[2:])


def is_of_columns(convolution: Convolution) -> bool:
    """Whether every pixel of a frame is computed from the same pixel of other frames."""
    return (convolution.taps[1:], convolution.stride[1:], convolution.padding[1:]) == ((1, 1), (1, 1), (0, 0))
