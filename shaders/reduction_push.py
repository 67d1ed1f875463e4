"""The push constants of reductions and norms; as ``push_constants.py``, which names them for shaders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from .push_blocks import PushConstants, Words


@dataclass
class ReductionPush(PushConstants):
    """What all reductions have: sizes of kept and reduced dimensions, and where the input and the output lie."""

    sizes: Annotated[Sequence[int], Words("DIMS")]
    input: Annotated[Sequence[int], Words("1 + DIMS")]
    output: Annotated[Sequence[int], Words("1 + KEPT_RANK")]


@dataclass
class ExtremesPush(PushConstants):
    """A run of elements."""

    start: int
    count: int


@dataclass
class ReducePush(ReductionPush):
    """Numbers of what is done to elements and results."""

    exponent: float
    """Of each element."""
    scale: float
    """A factor or exponent of the result."""


@dataclass
class MomentsPush(ReductionPush):
    """Mean and variance; those of a part need the first number only."""

    share: float
    """1 / count."""
    narrower: float = 0.0
    """1 / (count - correction)."""
    added: float = 0.0
    """To the variance."""


@dataclass
class MomentsMergePush(ReductionPush):
    """Mean and variance of parts, all as long as the first one but for the last."""

    count: float
    """In all."""
    narrower: float
    """1 / (count - correction)."""
    added: float
    """To the variance."""
    part_count: float
    part_share: float
    """Of the whole."""
    last_count: float
    last_share: float


@dataclass
class IndexMergePush(ReductionPush):
    """Indices of parts."""

    part_length: int


@dataclass
class RewritingPush(ReductionPush):
    """Of kernels that write all elements."""

    output_reduced: Annotated[Sequence[int], Words("REDUCED_RANK")]


@dataclass
class NormalizePush(RewritingPush):
    """Normalisation in one dispatch; the bias has the strides of the weight."""

    weight: Annotated[Sequence[int], Words("1 + DIMS")]
    bias: int
    """Its offset."""
    share: float
    """1 / count."""
    eps: float


@dataclass
class NormalizeRowsPush(PushConstants):
    """Normalisation of dense rows; places and pitches count vec4s."""

    rows: int
    width: int
    data_start: int
    data_pitch: int
    result_start: int
    result_pitch: int
    weight_start: int
    bias_start: int
    share: float
    """1 / elements of a row."""
    eps: float


@dataclass
class NormalizeHeldPush(PushConstants):
    """Normalisation of items that are runs of whole vec4s; places, distances and the width count vec4s. The number of
    an item is ``outer * inner_items + inner``."""

    items: int
    inner_items: int
    runs: int
    """Of an item."""
    width: int
    """Of a run."""
    data_start: int
    data_outer: int
    data_inner: int
    data_pitch: int
    """From run to run."""
    result_start: int
    result_outer: int
    result_inner: int
    result_pitch: int
    weight_start: int
    weight_inner: int
    bias_start: int
    share: float
    eps: float


@dataclass
class ChannelGroupsPush(PushConstants):
    """How groups of channels of images are walked; places and distances count vec4s."""

    images: int
    pixels: int
    """Of an image."""
    part_pixels: int
    """Of a workgroup, but for the last one of an image, which has the rest."""
    data_start: int
    data_image: int
    """From image to image."""
    data_pitch: int
    """From pixel to pixel."""


@dataclass
class ChannelMomentsPush(ChannelGroupsPush):
    """Their moments."""

    narrower: float
    """What sums of squares are multiplied by."""
    added: float
    """To the variance."""


@dataclass
class NormalizeChannelsPush(ChannelGroupsPush):
    """Their normalisation."""

    result_start: int
    result_image: int
    result_pitch: int
    weight_start: int
    bias_start: int
