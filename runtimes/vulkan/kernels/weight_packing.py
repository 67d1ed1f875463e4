"""Weights as the kernels read them, made once from constants on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, aligned_channels
from mobopt.runtimes.vulkan.kernels.product_kernels import panel_columns

if TYPE_CHECKING:
    from mobopt.runtimes.vulkan.kernels.plan import Plan

PackMatrix = Callable[[], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Factors:
    """The right operand of a product; offsets, pitches and strides count vec4s."""

    tensor: DeviceTensor
    pitch: int
    """From row to row, rows running along the inner dimension. Columns beyond the first ``pitch`` lie in further panels
    of as many, one after the other, each with all the rows."""
    batch_stride: int = 0


def _in_panels(plan: Plan, sources: Sequence[torch.Tensor], packing: tuple[Any, ...], pack: PackMatrix) -> Factors:
    """The constant matrix that ``pack`` makes, of whole vec4s both ways, in panels."""
    rows, columns = packing[:2]
    width = panel_columns(plan.device, columns // 4)

    def arranged() -> torch.Tensor:
        return pack().reshape(rows, columns // (4 * width), 4 * width).transpose(0, 1).contiguous()

    tensor = plan.packed(sources, (*packing, width), arranged)
    return Factors(tensor, width)


def product_weights(
    plan: Plan,
    weight: torch.Tensor,
    taps: Sequence[tuple[int, int]] | None = None,
    transposed_groups: int = 0,
) -> Factors:
    """A filter (out, in/groups, high, wide) as the matrix of an implicit GEMM.

    Its rows are (taps, in/groups rounded up to 4), its columns out rounded up to 4, padded with zeros. ``taps`` picks
    some of the filter's taps; ``transposed_groups`` says that the filter is (in, out/groups, high, wide), and how many
    groups it has.
    """
    inner = weight.shape[0] // transposed_groups if transposed_groups else weight.shape[1]
    columns = weight.shape[1] * transposed_groups if transposed_groups else weight.shape[0]
    count = weight[0, 0].numel() if taps is None else len(taps)
    sizes = (max(count, 1) * aligned_channels(inner), aligned_channels(columns))

    def pack() -> torch.Tensor:
        source = weight.detach()
        if transposed_groups:
            inputs, outer, *size = source.shape
            split = source.reshape(transposed_groups, inputs // transposed_groups, outer, *size)
            source = split.transpose(1, 2).reshape(transposed_groups * outer, -1, *size)
        out, _, high, wide = source.shape
        places = [(y, x) for y in range(high) for x in range(wide)] if taps is None else list(taps)
        packed = torch.zeros(max(len(places), 1), aligned_channels(inner), aligned_channels(out), dtype=source.dtype)
        for index, (y, x) in enumerate(places):
            packed[index, :inner, :out] = source[:, :, y, x].t()
        return packed

    name = (*sizes, "product", transposed_groups, None if taps is None else tuple(taps))
    return _in_panels(plan, [weight], name, pack)


def matrix_weights(plan: Plan, matrix: torch.Tensor, sizes: tuple[int, int]) -> Factors:
    """A constant as a matrix (inner, columns) of ``sizes``, both rounded up to 4 with zeros."""

    def pack() -> torch.Tensor:
        inner, columns = sizes
        packed = torch.zeros(max(aligned_channels(inner), 4), aligned_channels(columns), dtype=matrix.dtype)
        packed[:inner, :columns] = matrix.detach().reshape(sizes)
        return packed

    rows, columns = max(aligned_channels(sizes[0]), 4), aligned_channels(sizes[1])
    return _in_panels(plan, [matrix], (rows, columns, "matrix", *sizes), pack)


def depthwise_weights(plan: Plan, weight: torch.Tensor) -> DeviceTensor:
    """A filter (channels, 1, high, wide) as (high, wide, channels rounded up to 4)."""

    def pack() -> torch.Tensor:
        source = weight.detach()
        channels, _, high, wide = source.shape
        packed = torch.zeros(high, wide, aligned_channels(channels), dtype=source.dtype)
        packed[..., :channels] = source[:, 0].permute(1, 2, 0)
        return packed

    return plan.packed([weight], ("depthwise",), pack)


def bias_vector(plan: Plan, bias: torch.Tensor, scale: float = 1.0) -> DeviceTensor:
    """A constant vector times ``scale``, as float32, rounded up to whole vec4s."""

    def pack() -> torch.Tensor:
        source = bias.detach().to(torch.float32).reshape(-1)
        packed = torch.zeros(aligned_channels(source.numel()))
        packed[: source.numel()] = source * scale
        return packed

    return plan.packed([bias], ("bias", scale), pack)
