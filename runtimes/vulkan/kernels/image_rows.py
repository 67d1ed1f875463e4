"""Images of at most four channels whose pixels lie beside each other, four numbers each, with the zeros around them: so
the taps of a row of a filter are one run of the inner dimension of a product, which kernels read as it is.

The copy is ``shaders/glsl/image_rows.comp``. The convolution becomes one whose input channels are several pixels, and
whose filter has fewer columns of taps; what neighbouring results read overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mobopt.ir import Value
from mobopt.runtimes.vulkan.engine.stream import bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, channels_last_strides
from mobopt.runtimes.vulkan.kernels.convolution_parameters import Convolution
from mobopt.runtimes.vulkan.kernels.kernel_access import element_form, local_size, spread, writing
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.shaders.push_constants import ImageRowsPush

_CHANNELS = 4
"""Numbers of a pixel."""
_PAIR = 2
"""Pixels of eight halves, which matrix units take at once."""


@dataclass(frozen=True)
class ImageRows:
    """How images lie for a convolution; a line is places, each of some pixels.

    Attributes:
        run: pixels that are the input channels of a tap.
        taps_wide: how many such runs a row of the filter reads.
        between: places from run to run.
        stride: places from a result to its neighbour.
        held: pixels of a place.
        repeats: whether a place begins one pixel after the one before, so that pixels lie twice in memory.
        height: lines of an image, with those of zeros.
        width: places of a line.
    """

    run: int
    taps_wide: int
    between: int
    stride: int
    held: int
    repeats: bool
    height: int
    width: int

    @staticmethod
    def of(convolution: Convolution, result: DeviceTensor, pairs: bool) -> ImageRows:
        """The layout for a convolution of one group; ``pairs``: runs are whole pairs of pixels, of which each starts at
        an even pixel of memory."""
        (high, wide), (_, step) = convolution.taps, convolution.stride
        height = (result.sizes[2] - 1) * convolution.stride[0] + (high - 1) * convolution.dilation[0] + 1
        last = (result.sizes[3] - 1) * step
        if pairs and step % _PAIR:
            runs = -(-wide // _PAIR)
            return ImageRows(_PAIR, runs, _PAIR, step, _PAIR, True, height, last + _PAIR * (runs - 1) + 1)
        run = -(-wide // _PAIR) * _PAIR if pairs else wide
        return ImageRows(run, 1, 1, 1, step, False, height, -(-(last + run) // step))

    def image(self, plan: Plan, source: DeviceTensor, elements: torch.dtype) -> DeviceTensor:
        """Room for the images, with a pixel for each place."""
        sizes = (source.sizes[0], _CHANNELS * self.held, self.height, self.width)
        return plan.empty(sizes, source.dtype, channels_last_strides(sizes), elements)

    def convolution(self, plan: Plan, convolution: Convolution) -> Convolution:
        """The convolution of such images."""
        weight = convolution.weight.elements
        assert weight is not None
        name = ("rows of taps", self.run, self.taps_wide)
        filters = plan.constants.derived([weight], name, lambda: self._filters(weight))
        return replace(
            convolution,
            weight=Value.of_elements(filters, convolution.weight.dtype),
            stride=(convolution.stride[0], self.stride),
            padding=(0, 0),
            dilation=(convolution.dilation[0], self.between),
        )

    def _filters(self, weight: torch.Tensor) -> torch.Tensor:
        """(out, channels, high, wide) as (out, pixels of a run and their numbers, high, runs)."""
        out, channels, high, wide = weight.shape
        filters = weight.new_zeros(out, self.taps_wide * self.run, _CHANNELS, high)
        filters[:, :wide, :channels] = weight.detach().permute(0, 3, 1, 2)
        split = filters.reshape(out, self.taps_wide, self.run * _CHANNELS, high)
        return split.permute(0, 2, 3, 1).contiguous()


@replayable
def append_image_rows(
    plan: Plan, source: DeviceTensor, image: DeviceTensor, rows: ImageRows, padding: Sequence[int]
) -> None:
    """Copy images that lie in planes to rows of pixels, with zeros around.

    Args:
        plan: where it goes.
        source: (batch, up to 4 channels, height, width), of floats or halves.
        image: what ``rows.image`` gave.
        rows: the layout.
        padding: pixels of zeros before the first line and before the first column.
    """
    pixels = image.numel // _CHANNELS
    size = local_size(plan.device, pixels)
    plan.dispatch(
        "image_rows",
        (writing(image), bind(source)),
        spread(-(-pixels // size)),
        (size, source.sizes[1], element_form(source), element_form(image), rows.held, int(rows.repeats)),
        ImageRowsPush(
            pixels=pixels,
            out_width=rows.width,
            out_height=rows.height,
            width=source.sizes[3],
            height=source.sizes[2],
            left=padding[1],
            top=padding[0],
            input_offset=source.offset,
        ),
        iterations=1,
    )
