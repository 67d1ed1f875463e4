"""Weights as the kernels read them, made once from constants on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from mobopt.ops.quantized import Quantized
from mobopt.runtimes.half_ranges import HALVES
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, aligned_channels
from mobopt.runtimes.vulkan.kernels.balanced_rounding import balanced_halves
from mobopt.runtimes.vulkan.kernels.product_kernels import panel_columns

if TYPE_CHECKING:
    from mobopt.runtimes.vulkan.kernels.plan import Plan

PackMatrix = Callable[[], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Scales:
    """What makes floats of weights of few bits; see ``shaders/glsl/quantized.glsl``."""

    tensor: DeviceTensor
    bits: int
    group: int
    """The logarithm of how many vec4s of the inner dimension share a scale."""
    has_offsets: bool

    @property
    def constants(self) -> tuple[int, ...]:
        """The last specialization constants of the kernels."""
        return self.bits, self.group, int(self.has_offsets)


@dataclass(frozen=True, eq=False)
class Factors:
    """The right operand of a product; offsets, pitches and strides count vec4s, or, with scales, blocks of 4 x 4."""

    tensor: DeviceTensor
    pitch: int
    """From row to row, rows running along the inner dimension. Columns beyond the first ``pitch`` lie in further panels
    of as many, one after the other, each with all the rows."""
    batch_stride: int = 0
    scales: Scales | None = None


def _in_panels(plan: Plan, sources: Sequence[torch.Tensor], packing: tuple[Any, ...], pack: PackMatrix) -> Factors:
    """The constant matrix that ``pack`` makes, of whole vec4s both ways, in panels."""
    rows, columns = packing[:2]
    width = panel_columns(plan.device, columns // 4)

    def arranged() -> torch.Tensor:
        return pack().reshape(rows, columns // (4 * width), 4 * width).transpose(0, 1).contiguous()

    tensor = plan.packed(sources, (*packing, width), arranged)
    return Factors(tensor.of(torch.float32), width)


def product_weights(
    plan: Plan,
    weight: torch.Tensor | Quantized,
    taps: Sequence[tuple[int, int]] | None = None,
    transposed_groups: int = 0,
) -> Factors:
    """A filter (out, in/groups, high, wide) as the matrix of an implicit GEMM.

    Its rows are (taps, in/groups rounded up to 4), its columns out rounded up to 4, padded with zeros. ``taps`` picks
    some of the filter's taps; ``transposed_groups`` says that the filter is (in, out/groups, high, wide), and how many
    groups it has. A filter of few bits has a scale for each output channel; see :func:`has_channel_scales`.
    """
    shape = weight.sizes if isinstance(weight, Quantized) else weight.shape
    inner = shape[0] // transposed_groups if transposed_groups else shape[1]
    columns = shape[1] * transposed_groups if transposed_groups else shape[0]
    count = shape[2] * shape[3] if taps is None else len(taps)
    sizes = (max(count, 1) * aligned_channels(inner), aligned_channels(columns))
    elements = torch.int8 if isinstance(weight, Quantized) else plan.weight_elements(weight)

    def filter_matrix(source: torch.Tensor) -> torch.Tensor:
        if transposed_groups:
            inputs, outer, *size = source.shape
            split = source.reshape(transposed_groups, inputs // transposed_groups, outer, *size)
            source = split.transpose(1, 2).reshape(transposed_groups * outer, -1, *size)
        out, _, high, wide = source.shape
        source = _rounded(source.reshape(out, -1), elements).reshape(source.shape)
        places = [(y, x) for y in range(high) for x in range(wide)] if taps is None else list(taps)
        packed = torch.zeros(max(len(places), 1), aligned_channels(inner), aligned_channels(out), dtype=elements)
        for index, (y, x) in enumerate(places):
            packed[index, :inner, :out] = source[:, :, y, x].t()
        return packed

    name = (*sizes, "product", elements, transposed_groups, None if taps is None else tuple(taps))
    if isinstance(weight, Quantized):
        integers = partial(_integers_of, weight, filter_matrix)
        return _in_blocks(plan, weight, name, integers, (_one_scale(columns), _WHOLE))
    return _in_panels(plan, [weight], name, lambda: filter_matrix(weight.detach()))


_MOST_BALANCED = 1 << 22
"""Elements of a matrix whose errors are made to cancel, which takes some 20 ns for each."""


def _rounded(rows: torch.Tensor, elements: torch.dtype) -> torch.Tensor:
    """Weights, a row for each output channel, as elements; floats become halves whose errors cancel, but for the
    matrices of large language models, where that would take seconds and inputs have hardly a mean."""
    is_rounded = rows.dtype == torch.float32 and elements in HALVES.values() and rows.numel() <= _MOST_BALANCED
    return balanced_halves(rows, elements) if is_rounded else rows


def rounded_matrix(matrix: torch.Tensor, elements: torch.dtype) -> torch.Tensor:
    """A constant (inner, columns) with the elements that :func:`matrix_weights` packs."""
    return _rounded(matrix.t(), elements).t().to(elements)


def _integers_of(weight: Quantized, arrange: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return arrange(weight.integers())


_WHOLE = 30
"""The logarithm of a group that is larger than any inner dimension."""
Arrangement = tuple[Callable[[torch.Tensor], torch.Tensor], int]
"""How scales become (groups, columns), and the logarithm of how many vec4s of the inner dimension a group has."""


def _one_scale(columns: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda scales: scales.reshape(1, -1).expand(1, columns)


def has_channel_scales(weight: Quantized, transposed_groups: int = 0) -> bool:
    """Whether a filter has one scale for each output channel, or one for all."""
    counts = weight.scales.shape
    if weight.scales.numel() == 1:
        return True
    if transposed_groups:
        return weight.block_size[0] * transposed_groups == weight.sizes[0] and counts.numel() == counts[0] * counts[1]
    return counts.numel() == counts[0] and weight.block_size[0] == 1


def has_row_scales(weight: Quantized) -> bool:
    """Whether a matrix (columns, inner) has scales that the kernels of products take: for each column, of all of the
    inner dimension or of groups of 4, 8, 16, ... of it."""
    block = weight.block_size
    if len(block) != 2 or (block[0] != 1 and weight.scales.shape[0] != 1):
        return False
    return weight.scales.shape[1] == 1 or (block[1] % 4 == 0 and block[1].bit_count() == 1)


def row_weights(plan: Plan, weight: Quantized) -> Factors:
    """A matrix (columns, inner) of few bits, of which :func:`has_row_scales` is true, as the right operand."""
    columns, inner = weight.sizes
    rows, width = max(aligned_channels(inner), 4), aligned_channels(columns)

    def integers() -> torch.Tensor:
        packed = torch.zeros(rows, width, dtype=torch.int8)
        packed[:inner, :columns] = weight.integers().t()
        return packed

    def arrange(scales: torch.Tensor) -> torch.Tensor:
        return scales.t().expand(-1, columns)

    group = _WHOLE if weight.scales.shape[1] == 1 else weight.block_size[1].bit_length() - 3
    return _in_blocks(plan, weight, (rows, width, "rows"), integers, (arrange, group))


def _in_blocks(
    plan: Plan, weight: Quantized, packing: tuple[Any, ...], integers: PackMatrix, arrangement: Arrangement
) -> Factors:
    """Weights of few bits in blocks of 4 x 4, in panels as floats are, and their scales. On GPUs lines of blocks are
    whole vec4s of memory."""
    rows, columns = packing[:2]
    width = panel_columns(plan.device, columns // 4, 8 // weight.bits)
    arrange, group = arrangement

    def blocks() -> torch.Tensor:
        lines = _aligned_columns(integers(), max(columns, 4 * width)).reshape(rows // 4, 4, -1, width, 4)
        flat = lines.permute(2, 0, 3, 1, 4).reshape(-1)
        if weight.bits == 4:
            flat = (flat[::2] & 15) | (flat[1::2] << 4)
        return flat.contiguous().view(torch.int32)

    def scale_vectors() -> torch.Tensor:
        factors = _aligned_columns(arrange(weight.scales.float()), columns)
        if centers is None:
            return factors
        offsets = _aligned_columns(arrange(-centers.float() * weight.scales.float()), columns)
        both = torch.stack([part.reshape(-1, columns // 4, 4) for part in (factors, offsets)], 2)
        return both.reshape(factors.shape[0], -1)

    centers = weight.centers()
    tensor = plan.packed(weight.sources, (*packing, weight.bits, width, "blocks"), blocks)
    vectors = plan.packed(weight.sources, (*packing, weight.bits, "scales"), scale_vectors)
    return Factors(tensor, width, scales=Scales(vectors, weight.bits, group, centers is not None))


def _aligned_columns(matrix: torch.Tensor, columns: int) -> torch.Tensor:
    return torch.nn.functional.pad(matrix, (0, columns - matrix.shape[-1]))


def matrix_weights(plan: Plan, matrix: torch.Tensor, sizes: tuple[int, int]) -> Factors:
    """A constant as a matrix (inner, columns) of ``sizes``, both rounded up to 4 with zeros."""
    elements = plan.weight_elements(matrix)

    def pack() -> torch.Tensor:
        inner, columns = sizes
        packed = torch.zeros(max(aligned_channels(inner), 4), aligned_channels(columns), dtype=elements)
        packed[:inner, :columns] = rounded_matrix(matrix.detach().reshape(sizes), elements)
        return packed

    rows, columns = max(aligned_channels(sizes[0]), 4), aligned_channels(sizes[1])
    return _in_panels(plan, [matrix], (rows, columns, "matrix", elements, *sizes), pack)


def depthwise_weights(plan: Plan, weight: torch.Tensor) -> DeviceTensor:
    """A filter (channels, those of a group, high, wide) as (those of a group, high, wide, channels rounded up to 4)."""
    elements = plan.weight_elements(weight)

    def pack() -> torch.Tensor:
        source = weight.detach()
        channels, *sizes = source.shape
        packed = torch.zeros(*sizes, aligned_channels(channels), dtype=elements)
        source = _rounded(source.reshape(channels, -1), elements).reshape(source.shape)
        packed[..., :channels] = source.permute(1, 2, 3, 0)
        return packed

    return plan.packed([weight], ("depthwise", elements), pack).of(torch.float32)


def bias_vector(plan: Plan, bias: torch.Tensor, scale: float = 1.0) -> DeviceTensor:
    """A constant vector times ``scale``, as float32, rounded up to whole vec4s."""

    def pack() -> torch.Tensor:
        source = bias.detach().to(torch.float32).reshape(-1)
        packed = torch.zeros(aligned_channels(source.numel()))
        packed[: source.numel()] = source * scale
        return packed

    return plan.packed([bias], ("bias", scale), pack)
