"""Tables of ``shaders/glsl/resample.comp``: which input places make each output place, and with what weights.

Places and weights are computed as PyTorch does (ATen/native/UpSample.h), in float32 where it does, so that rounding
falls the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch

from mobopt.ir import Value
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.copies import strided_copy
from mobopt.runtimes.vulkan.kernels.kernel_access import VECTOR, owns_storage
from mobopt.runtimes.vulkan.kernels.loops import loop_iterations
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.space_kernel import SPACE, as_volume, run_space_kernel
from mobopt.runtimes.vulkan.kernels.views import sliced
from mobopt.shaders.enumerations import LoadMode
from mobopt.shaders.push_constants import ResamplePush

CUBIC_A = -0.75
"""The cubic convolution kernel's parameter, as in PyTorch."""


@dataclass(frozen=True)
class AxisTable:
    """For each output place of a dimension, the input places (taps) and their weights; both of shape (outputs,
    taps)."""

    places: torch.Tensor
    weights: torch.Tensor | None = None

    @property
    def taps(self) -> int:
        """Input places of one output place."""
        return int(self.places.shape[1])

    def packed(self) -> torch.Tensor:
        """What the shader reads: a place per output, or (two places, bits of their two weights) for each pair of
        taps."""
        places = self.places.to(torch.int32)
        if self.weights is None:
            return places.flatten()
        bits = self.weights.to(torch.float32).view(torch.int32)
        outputs, taps = places.shape
        return torch.cat([places.view(outputs, taps // 2, 2), bits.view(outputs, taps // 2, 2)], dim=2).flatten()

    def with_pairs(self) -> AxisTable:
        """The same with weights, and an even number of taps."""
        weights = torch.ones(self.places.shape) if self.weights is None else self.weights
        odd = self.taps % 2
        places = torch.cat([self.places, self.places[:, :odd]], dim=1)
        return AxisTable(places, torch.nn.functional.pad(weights.to(torch.float32), (0, odd)).contiguous())


def scale_of(size: int, outputs: int, factor: float | None, align_corners: bool) -> float:
    """Input places per output place."""
    if align_corners:
        return (size - 1) / (outputs - 1) if outputs > 1 else 0.0
    return 1.0 / factor if factor is not None and factor > 0 else size / outputs


def nearest_table(size: int, outputs: int, factor: float | None, exact: bool) -> AxisTable:
    """Nearest neighbour: the place below, or with ``exact`` the place whose centre is nearest."""
    scale = torch.tensor(scale_of(size, outputs, factor, False), dtype=torch.float32)
    places = torch.arange(outputs, dtype=torch.float32)
    source = torch.floor((places + 0.5) * scale if exact else places * scale)
    return AxisTable(source.to(torch.int64).clamp(max=size - 1)[:, None])


def _centers(size: int, outputs: int, factor: float | None, align_corners: bool, *, cubic: bool) -> torch.Tensor:
    scale = torch.tensor(scale_of(size, outputs, factor, align_corners), dtype=torch.float32)
    places = torch.arange(outputs, dtype=torch.float32)
    if align_corners:
        return scale * places
    source = scale * (places + 0.5) - 0.5
    return source if cubic else source.clamp(min=0)


def linear_table(size: int, outputs: int, factor: float | None, align_corners: bool) -> AxisTable:
    """Linear interpolation."""
    source = _centers(size, outputs, factor, align_corners, cubic=False)
    low = source.to(torch.int64).clamp(max=size - 1)
    high = (low + 1).clamp(max=size - 1)
    weight = (source - low).clamp(0, 1)
    return AxisTable(torch.stack([low, high], 1), torch.stack([1 - weight, weight], 1))


def cubic_table(size: int, outputs: int, factor: float | None, align_corners: bool) -> AxisTable:
    """Cubic convolution over four places; those outside are the edge."""
    source = _centers(size, outputs, factor, align_corners, cubic=True)
    first = torch.floor(source)
    t = source - first
    places = first.to(torch.int64)[:, None] + torch.arange(-1, 3)
    weights = [_cubic_outer(t + 1), _cubic_inner(t), _cubic_inner(1 - t), _cubic_outer(2 - t)]
    return AxisTable(places.clamp(0, size - 1), torch.stack(weights, 1))


def _cubic_inner(x: torch.Tensor) -> torch.Tensor:
    return ((CUBIC_A + 2) * x - (CUBIC_A + 3)) * x * x + 1


def _cubic_outer(x: torch.Tensor) -> torch.Tensor:
    return ((CUBIC_A * x - 5 * CUBIC_A) * x + 8 * CUBIC_A) * x - 4 * CUBIC_A


def antialias_table(size: int, outputs: int, factor: float | None, align_corners: bool, cubic: bool) -> AxisTable:
    """Interpolation whose filter widens with the reduction, as Pillow's (ATen/native/cpu/UpSampleKernel.cpp)."""
    scale = scale_of(size, outputs, factor, align_corners)
    width = 2.0 if cubic else 1.0
    support = width * max(scale, 1.0)
    centers = scale * (torch.arange(outputs, dtype=torch.float64) + 0.5)
    first = (centers - support + 0.5).to(torch.int64).clamp(min=0)
    end = (centers + support + 0.5).to(torch.int64).clamp(max=size)
    taps = int((end - first).max())
    places = first[:, None] + torch.arange(taps)
    x = ((places - centers[:, None] + 0.5) / max(scale, 1.0)).abs()
    weights = _antialias_cubic(x) if cubic else (1 - x).clamp(min=0)
    weights = torch.where(places < end[:, None], weights, 0.0)
    return AxisTable(places.clamp(max=size - 1), weights / weights.sum(1, keepdim=True))


def _antialias_cubic(x: torch.Tensor) -> torch.Tensor:
    a = -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def padding_table(size: int, before: int, after: int, mode: str) -> AxisTable:
    """Places of a padded dimension: ``reflect``, ``replicate`` or ``circular``; negative padding crops, and what is
    left after that goes round (ATen/native/PadNd.cpp, ``_pad_circular_symint``)."""
    places = torch.arange(-before, size + after)
    if mode == "replicate":
        places = places.clamp(0, size - 1)
    elif mode == "circular":
        first = max(-before, 0)
        places = first + (places - first) % (size + min(before, 0) + min(after, 0))
    else:
        period = max(2 * (size - 1), 1)
        places = places % period
        places = torch.minimum(places, period - places) if size > 1 else torch.zeros_like(places)
    return AxisTable(places[:, None])


Table: TypeAlias = "partial[AxisTable]"
"""What makes a table, with all its arguments, which name it."""


def resample(
    plan: Plan, source: DeviceTensor, sizes: Sequence[int], tables: Sequence[Table], output: Value | None = None
) -> DeviceTensor:
    """Make every output place from input places.

    Args:
        plan: where the dispatch goes.
        source: (N, C, space...) or (C, space...).
        sizes: of the result.
        tables: for each dimension of space.
        output: the call's result that it is, if it is one.
    """
    target = plan.empty(sizes, source.dtype) if output is None else plan.result(output)
    _resample_into(plan, source, target, tables)
    return target


@replayable
def _resample_into(plan: Plan, source: DeviceTensor, target: DeviceTensor, tables: Sequence[Table | None]) -> None:
    """See :func:`resample`; where there is no table, places stay as they are."""
    spatial = len(tables)
    volume, result = as_volume(source, spatial), as_volume(target, spatial)
    made = [None if table is None else table() for table in tables]
    places = [1 if table is None else table.taps for table in made]
    if loop_iterations(places) > USUAL_ITERATIONS and sum(count > 1 for count in places) > 1:
        _resample_in_turn(plan, source, target, tables)
        return
    weighted = any(table is not None and table.weights is not None for table in made)
    taps, starts = [0] * (SPACE - spatial), [0] * (SPACE - spatial)
    parts: list[torch.Tensor] = []
    unit = VECTOR if weighted else 1
    for table in made:
        starts.append(sum(part.numel() for part in parts) // unit)
        if table is not None:
            table = table.with_pairs() if weighted else table
            parts.append(table.packed())
        taps.append(0 if table is None else table.taps)
    names = [None if table is None else (table.func.__name__, table.args) for table in tables]
    packed = plan.packed([], ("resample", *names), lambda: torch.cat(parts))
    push = partial(ResamplePush, table=starts)
    mode = LoadMode.VECTOR if weighted else LoadMode.SINGLES
    iterations = loop_iterations([max(count, 1) for count in taps])
    run_space_kernel(plan, "resample", volume, [result], taps, push, [(packed, mode)], iterations=iterations)


def _resample_in_turn(plan: Plan, source: DeviceTensor, target: DeviceTensor, tables: Sequence[Table | None]) -> None:
    """One dimension after the other, the last one first: what takes many places is a product of a table for each."""
    leading = source.rank - len(tables)
    turns = [d for d, table in enumerate(tables) if table is not None]
    for d in reversed(turns):
        sizes = [*source.sizes]
        sizes[leading + d] = target.sizes[leading + d]
        between = target if d == turns[0] else plan.empty(sizes, source.dtype)
        _resample_into(plan, source, between, [table if k == d else None for k, table in enumerate(tables)])
        source = between


def repeated(plan: Plan, source: DeviceTensor, factors: Sequence[int], output: Value) -> DeviceTensor:
    """Each place of the last dimensions repeated a whole number of times: one strided copy, to a call's result."""
    leading = source.rank - len(factors)
    if output.dtype.is_floating_point:
        target = plan.result(output)
    else:
        target = plan.empty(output.sizes, source.dtype, elements=source.storage.elements)
    fine_sizes, from_strides, to_strides = (
        list(source.sizes[:leading]),
        list(source.strides[:leading]),
        list(target.strides[:leading]),
    )
    for d, factor in enumerate(factors, leading):
        fine_sizes += [source.sizes[d], factor]
        from_strides += [source.strides[d], 0]
        to_strides += [target.strides[d] * factor, target.strides[d]]
    fine = target.view(fine_sizes, to_strides)
    strided_copy(plan, source.view(fine_sizes, from_strides), fine, fresh=owns_storage(target))
    return target


def cropped(tensor: DeviceTensor, padding: Sequence[tuple[int, int]]) -> DeviceTensor:
    """The tensor without what negative padding takes away; ``padding`` has a pair for each dimension."""
    for d, (before, after) in enumerate(padding):
        start, lost = max(-before, 0), max(-before, 0) + max(-after, 0)
        tensor = sliced(tensor, d, start, tensor.sizes[d] - lost)
    return tensor
