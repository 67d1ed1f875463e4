"""The push constants of every shader: each block is declared here, or in
``reduction_push.py``, and nowhere else.

The host makes one and packs it; a shader gets it by ``#include`` of its name in :data:`BLOCKS`
(:mod:`mobopt.shaders.expand`; no such file exists). Unless said otherwise offsets and strides count elements.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar

from .push_blocks import PUSH_CONSTANT_BYTES, Array, Named, PushConstants, Structure, Uint, Words
from .reduction_push import (
    ChannelMomentsPush,
    ExtremesPush,
    IndexMergePush,
    MomentsMergePush,
    MomentsPush,
    NormalizeChannelsPush,
    NormalizeHeldPush,
    NormalizePush,
    NormalizeRowsPush,
    ReducePush,
    ReductionPush,
    RewritingPush,
)

_Space = Annotated[Sequence[int], Named(("d", "h", "w"))]
_Volume = Annotated[Sequence[int], Named(("offset", "n", "c", "z", "y", "x"))]
"""Offset and strides."""
_Four = Annotated[Sequence[int], Named(("0", "1", "2", "3"))]
_Ends = Annotated[Sequence[int], Array(2)]
_Jobs = Annotated[Sequence[int], Array(3)]
_Rows = Annotated[Sequence[int], Structure("Rows", ("offset", "batch", "row"))]
_Nest = Annotated[Sequence[int], Structure("Operand", ("offset", "outer", "middle", "inner", "row"))]
_Sizes = Annotated[Sequence[int], Words("RANK")]
_Tensors = Annotated[Sequence[int], Words("RANK + 1", each="3")]
"""Offset and strides of three tensors, one after the other."""


@dataclass
class Link(PushConstants):
    """What a chained dispatch waits for, and whether others wait for it; beyond the constants of its shader."""

    first: ClassVar[int] = PUSH_CONSTANT_BYTES
    macro: ClassVar[str | None] = "CHAIN_FIELDS"

    arrivals_settled: Uint
    """Arrivals from which on it may empty its core's cache: nobody reads what it will read any more before that has
    been written. At most ``arrivals_before``."""
    arrivals_before: Uint
    """Arrivals of workgroups that it waits for; 0: of none."""
    arrivals_in_all: Uint
    """Arrivals of the whole run, after which the counter is zero again; 0: its workgroups don't arrive."""


NO_LINK = Link(0, 0, 0)
"""Of a dispatch that waits for nobody, and that nobody waits for."""
CHAIN_END = Link.end()
"""Where the push constants of a chained dispatch end."""


@dataclass
class ProductPush(PushConstants):
    """Products of matrices and convolutions; offsets, pitches and strides count vec4s, those of an input that is planes
    of an image floats."""

    rows: int
    inner: int
    """vec4s of one tap's channels, of one group."""
    columns: int
    input_offset: int
    input_pitch: int
    input_batch: int = 0
    height: int = 1
    width: int = 1
    out_height: int = 1
    out_width: int = 1
    taps_high: int = 1
    taps_wide: int = 1
    stride_high: int = 1
    stride_wide: int = 1
    first_high: int = 0
    first_wide: int = 0
    dilation_high: int = 1
    dilation_wide: int = 1
    weight_offset: int = 0
    weight_pitch: int = 0
    weight_batch: int = 0
    out_offset: int = 0
    out_pitch: int = 0
    out_row: int = 0
    out_batch: int = 0
    residual_offset: int = 0
    residual_pitch: int = 0
    residual_row: int = 0
    residual_batch: int = 0
    group_columns: int = 0
    column_lanes: int = 0
    """Of ``product_tiles.comp``, the logarithm."""
    start_row: int = 0
    """Of the first workgroup."""

    @classmethod
    def unpack(cls, packed: bytes) -> ProductPush:
        """What was packed."""
        return cls(*struct.unpack_from(f"<{len(fields(cls))}i", packed))


@dataclass
class DepthwisePush(PushConstants):
    """Depthwise convolutions; offsets, pitches and channels count vec4s."""

    invocations: int
    channels: int
    blocks_wide: int
    blocks_high: int
    height: int
    width: int
    out_height: int
    out_width: int
    input_offset: int
    input_pitch: int
    first_high: int
    first_wide: int
    out_offset: int
    out_pitch: int
    out_row: int
    out_batch: int
    residual_offset: int
    residual_pitch: int


@dataclass
class ImageRowsPush(PushConstants):
    """Images with zeros around them, as pixels beside each other."""

    pixels: int
    """Of all results."""
    out_width: int
    """In places of some pixels."""
    out_height: int
    width: int
    """Of an image."""
    height: int
    left: int
    """Zeros before each line of an image."""
    top: int
    """Lines of zeros before it."""
    input_offset: int


@dataclass
class WinogradPush(PushConstants):
    """Tiles of 4 x 4 results, and an image that they are made of or go to; offsets, pitches and ``vectors`` count
    vec4s."""

    tiles: int
    """Of a band."""
    first_tile: int
    """Of the band, counted through all images."""
    vectors: int
    """Of the image's channels."""
    tiles_high: int
    """Of an image."""
    tiles_wide: int
    height: int
    """Of an image."""
    width: int
    image_offset: int
    image_pitch: int
    """From pixel to pixel."""
    image_row: int
    image_batch: int
    top: int = 0
    """Lines of zeros before an image that is read."""
    left: int = 0
    """Zeros before each of its lines."""
    residual_offset: int = 0
    residual_pitch: int = 0
    residual_row: int = 0
    residual_batch: int = 0


@dataclass
class SpacePush(PushConstants):
    """What all kernels on volumes have: sizes of the result, and where the tensors lie."""

    batch: int
    channels: int
    out: _Space
    source: _Volume
    target: _Volume


@dataclass
class PoolPush(SpacePush):
    """Windows over volumes."""

    extent: _Space
    """Of the source."""
    step: _Space
    pad: _Space
    gap: _Space
    """Dilation."""
    divisor: int
    """0: the size of the window."""


@dataclass
class ResamplePush(SpacePush):
    """Volumes of other sizes."""

    table: _Space
    """Where the taps of each dimension start."""


@dataclass
class AttentionPush(PushConstants):
    """Nests of three dimensions, the innermost last; offsets and strides count vec4s, those of the mask elements."""

    batches: int
    middle_size: int
    inner_size: int
    query_count: int
    key_count: int
    query: _Nest
    key: _Nest
    value: _Nest
    place: _Nest
    """Of the result."""
    bias: _Nest
    """Of the mask."""
    bias_column: int


@dataclass
class RotaryPush(PushConstants):
    """Up to three jobs, of which those that there aren't have no heads; offsets and strides count vec4s, but for that
    of the places. Results and caches are dense."""

    batches: int
    heads: _Jobs
    rows: _Jobs
    """Of results."""
    source_offset: _Jobs
    source_batch: _Jobs
    source_head: _Jobs
    source_row: _Jobs
    cache_offset: _Jobs
    result_offset: _Jobs
    cosines_place: _Rows
    sines_place: _Rows
    places_offset: int


@dataclass
class RecurrentPush(PushConstants):
    """Steps of a recurrent layer, of up to two directions; the second goes from the last step to the first."""

    rows: int
    directions: int
    steps: int
    gates_of_units: int
    """From one gate to the next."""
    gates_start: _Ends
    gates_row: int
    gates_step: int
    previous_start: _Ends
    previous_row: int
    states_start: _Ends
    states_row: int
    states_step: int
    cells_row: int
    cells_direction: int


@dataclass
class DequantizePush(PushConstants):
    """Four dimensions; strides of scales are 0 where one scale is for all."""

    count: int
    held: int
    """Bytes of a row."""
    size: _Four
    block: _Four
    stride: _Four


@dataclass
class FactorPush(PushConstants):
    """Small matrices that are factored."""

    count: int
    rows: int
    columns: int


@dataclass
class ReflectionsPush(PushConstants):
    """Products of the reflections of small matrices."""

    count: int
    rows: int
    columns: int
    steps: int
    """Reflections of each."""
    width: int
    """Columns of a product."""


@dataclass
class SubstitutePush(PushConstants):
    """Triangular systems, and where the coefficients of each lie."""

    count: int
    rows: int
    columns: int
    """Of a right side."""
    offset: int
    system_stride: int
    row_stride: int
    column_stride: int


@dataclass
class MergePush(PushConstants):
    """Sorted runs that are merged in pairs."""

    count: int
    """Elements of all lines."""
    length: int
    """Of a line."""
    width: int
    """Of a run."""


@dataclass
class RoiAlignPush(PushConstants):
    """Regions of images."""

    sizes: Annotated[Sequence[int], Array(4)]
    """Of the result: regions, channels, rows, columns."""
    image_count: int
    image_sizes: Annotated[Sequence[int], Array(2)]
    result_offset: int
    result_strides: Annotated[Sequence[int], Array(4)]
    image_offset: int
    image_strides: Annotated[Sequence[int], Array(4)]
    region_offset: int
    region_strides: Annotated[Sequence[int], Array(2)]
    region_scale: float
    """From the coordinates of regions to those of images."""


@dataclass
class GridSamplePush(PushConstants):
    """Places of images; ``RANK`` is that of their space."""

    sizes: Annotated[Sequence[int], Words("2 + RANK")]
    """Of the result: batch, channels, space."""
    image_sizes: Annotated[Sequence[int], Words("RANK")]
    """Of the space alone."""
    result: Annotated[Sequence[int], Words("3 + RANK")]
    """Offset and strides."""
    image: Annotated[Sequence[int], Words("3 + RANK")]
    grid: Annotated[Sequence[int], Words("3 + RANK")]
    """Offset, and strides of batch, space and coordinates."""


@dataclass
class PointwisePush(PushConstants):
    """The result's nest; offset and strides of the result and of each operand; numbers that instructions name."""

    sizes: _Sizes
    tensor: Annotated[Sequence[int], Words("RANK + 1", each="OPERANDS + 1")]
    immediates: Annotated[Sequence[int], Words("IMMEDIATES")]


@dataclass
class SelectAlongPush(PushConstants):
    """The result, the data, whose chosen dimension has a length and a stride, and the indices."""

    sizes: _Sizes
    tensor: _Tensors
    length: int
    stride: int


@dataclass
class ScatterPush(PushConstants):
    """The target, the source and the indices: all dimensions but the chosen one, then that one."""

    sizes: _Sizes
    tensor: _Tensors
    count: int
    """Of the indices."""
    length: int
    """Of the target."""
    target_step: int
    source_step: int
    index_step: int


@dataclass
class OrderedScatterPush(PushConstants):
    """The same with indices that are sorted, side by side."""

    sizes: _Sizes
    tensor: _Tensors
    count: int
    length: int
    target_step: int
    source_step: int
    skipped: int
    """Elements of each run of equal indices that other dispatches put."""


@dataclass
class SearchPush(PushConstants):
    """The result, where sorted lines begin, and the values that are looked for."""

    sizes: _Sizes
    tensor: _Tensors
    length: int
    """Of a line."""
    stride: int


@dataclass
class SortPush(PushConstants):
    """Lines at the places of a nest."""

    sizes: _Sizes
    data: Annotated[Sequence[int], Words("RANK + 1")]
    count: int
    """Elements of all lines."""
    length: int
    stride: int


@dataclass
class DoorbellPush(PushConstants):
    """A wait for the host."""

    most_polls: Uint
    """After so many it gives up."""


BLOCKS: dict[str, type[PushConstants]] = {
    "doorbell_push.glsl": DoorbellPush,
    "link_push.glsl": Link,
    "product_push.glsl": ProductPush,
    "depthwise_push.glsl": DepthwisePush,
    "image_rows_push.glsl": ImageRowsPush,
    "winograd_push.glsl": WinogradPush,
    "pool_push.glsl": PoolPush,
    "resample_push.glsl": ResamplePush,
    "attention_push.glsl": AttentionPush,
    "rotary_push.glsl": RotaryPush,
    "recurrent_push.glsl": RecurrentPush,
    "dequantize_push.glsl": DequantizePush,
    "factor_push.glsl": FactorPush,
    "substitute_push.glsl": SubstitutePush,
    "reflections_push.glsl": ReflectionsPush,
    "merge_push.glsl": MergePush,
    "roi_align_push.glsl": RoiAlignPush,
    "grid_sample_push.glsl": GridSamplePush,
    "pointwise_push.glsl": PointwisePush,
    "select_along_push.glsl": SelectAlongPush,
    "scatter_push.glsl": ScatterPush,
    "scatter_ordered_push.glsl": OrderedScatterPush,
    "search_push.glsl": SearchPush,
    "sort_push.glsl": SortPush,
    "reduction_push.glsl": ReductionPush,
    "extremes_push.glsl": ExtremesPush,
    "reduce_push.glsl": ReducePush,
    "moments_push.glsl": MomentsPush,
    "moments_merge_push.glsl": MomentsMergePush,
    "index_merge_push.glsl": IndexMergePush,
    "rewriting_push.glsl": RewritingPush,
    "normalize_push.glsl": NormalizePush,
    "normalize_rows_push.glsl": NormalizeRowsPush,
    "normalize_held_push.glsl": NormalizeHeldPush,
    "channel_moments_push.glsl": ChannelMomentsPush,
    "normalize_channels_push.glsl": NormalizeChannelsPush,
}
"""The blocks that shaders include, by the names that they include."""
