"""The kernels for GPUs and how their blocks are chosen: from the shape, the device's limits and its number of cores.

A dependent dispatch costs a GPU about 2 us before it computes anything, and the layers of a network at batch 1 are so
small that most are bound by latency, by how many cores have work, and by what the second-level cache can feed them. So
blocks are small, and the inner dimension is divided, first among the invocations of a workgroup, then among workgroups.
What each of these costs is a fact of the device: ``device_costs.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS
from mobopt.runtimes.vulkan.kernels.costs import DeviceCosts
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, device_costs
from mobopt.runtimes.vulkan.kernels.fragment_kernels import FragmentKernel, fragment_kernels, fragment_nanoseconds
from mobopt.runtimes.vulkan.kernels.matrix_kernels import MatrixKernel, matrix_kernels, matrix_nanoseconds
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.row_kernels import RowKernel, row_kernels, row_nanoseconds
from mobopt.runtimes.vulkan.kernels.unit_row_kernels import UnitRowKernel, unit_row_kernels, unit_row_nanoseconds


@dataclass(frozen=True)
class SharedKernel:
    """``product_shared.comp``: a workgroup computes ``block_rows`` x ``block_columns`` vec4s from shared memory."""

    block_rows: int
    block_columns: int
    rows: int
    """Rows of one invocation."""
    columns: int
    """vec4s of one invocation."""
    inner_block: int
    """vec4s of the inner dimension in a tile."""
    teams: int = 1
    """Invocations that share an element of the result, within a workgroup."""
    parts: int = 1
    """Workgroups that share an element of the result; their sums are added by ``product_sum.comp``."""
    joins: bool = False
    """Whether the last of them to arrive adds them up instead."""
    quantized: bool = False
    """Whether weights are of few bits."""
    scaled: bool = False
    """Whether the input is scaled as it is read."""
    planar: bool = False
    """Whether the input is planes of an image."""
    reads_ahead: bool = False
    """Whether a chained dispatch reads its first weights before those end that it waits for."""

    texels = False

    @property
    def shader(self) -> str:
        """The variant's name."""
        if self.quantized:
            return "product_shared_quantized"
        return (
            f"product_shared{'_joins' if self.joins else ''}"
            f"{'_scaled' if self.scaled else '_planar' if self.planar else ''}"
        )

    @cached_property
    def invocations(self) -> int:
        """Of a workgroup."""
        return (self.block_rows // self.rows) * (self.block_columns // self.columns) * self.teams

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a workgroup: two pairs of tiles, and at the end the teams' sums."""
        tiles = 2 * (self.block_rows * (self.inner_block + 1) + 4 * self.inner_block * self.block_columns)
        sums = self.teams * self.block_rows * self.block_columns if self.teams > 1 else 0
        return 16 * max(tiles, sums)

    @cached_property
    def fetches(self) -> int:
        """vec4s that an invocation fetches in a step."""
        factors = 4 * self.inner_block * self.block_columns
        return -(-self.block_rows * self.inner_block // self.invocations) + -(-factors // self.invocations)

    @cached_property
    def instructions(self) -> int:
        """What an invocation does in a step by instructions of their own: products of a vec4 with four, and fetches."""
        return self.inner_block // self.teams * self.rows * self.columns + self.fetches

    @property
    def partial_sums(self) -> int:
        """vec4s that a workgroup writes where parts are joined: as many of each invocation."""
        return -(-self.block_rows * self.block_columns // self.invocations) * self.invocations

    @property
    def constants(self) -> tuple[int, ...]:
        """Specialization constants from 12 on."""
        return (
            self.block_rows,
            self.block_columns,
            self.rows,
            self.columns,
            self.inner_block,
            self.teams,
            self.parts,
            self.invocations,
            int(self.reads_ahead),
        )

    @property
    def group_rows(self) -> int:
        """Rows of a workgroup."""
        return self.block_rows

    def iterations(self, shape: ProductShape) -> int:
        """How often an invocation goes round its loops: over tiles, and over the taps that they cross."""
        tiles = -(-shape.inner // (self.parts * self.inner_block))
        crossed = (tiles + 1) * self.inner_block * shape.taps // max(shape.inner, 1) + 1
        return tiles + (crossed if shape.taps > 1 and shape.inner else 0)

    def groups(self, shape: ProductShape) -> tuple[int, int, int]:
        """Workgroups of a dispatch."""
        return (
            -(-shape.group_columns // self.block_columns),
            -(-shape.rows // self.block_rows),
            shape.batches * shape.group_count * self.parts,
        )

    def fits(self, device: DeviceInfo) -> bool:
        """Whether the device's limits allow it."""
        limits = device.limits
        invocations = min(limits.max_compute_work_group_invocations, limits.max_compute_work_group_size[0])
        return self.invocations <= invocations and self.shared_bytes <= device.shared_memory_bytes


# The first is within the limits that every Vulkan device must have.
BLOCKS = (
    SharedKernel(64, 8, rows=4, columns=1, inner_block=4),
    SharedKernel(128, 32, rows=8, columns=2, inner_block=4),
    SharedKernel(96, 32, rows=6, columns=2, inner_block=4),
    SharedKernel(80, 32, rows=5, columns=2, inner_block=4),
    SharedKernel(128, 16, rows=8, columns=1, inner_block=4),
    SharedKernel(96, 16, rows=6, columns=1, inner_block=4),
    SharedKernel(128, 8, rows=8, columns=1, inner_block=4),
    SharedKernel(64, 16, rows=8, columns=1, inner_block=8, teams=2),
    SharedKernel(32, 8, rows=8, columns=1, inner_block=8, teams=4),
    SharedKernel(32, 8, rows=4, columns=1, inner_block=16, teams=4),
    SharedKernel(16, 8, rows=4, columns=1, inner_block=8, teams=4),
    SharedKernel(16, 4, rows=4, columns=1, inner_block=16, teams=8),
    SharedKernel(32, 8, rows=4, columns=1, inner_block=16, teams=8),
    SharedKernel(16, 8, rows=4, columns=1, inner_block=16, teams=8),
    SharedKernel(16, 4, rows=4, columns=1, inner_block=32, teams=16),
    SharedKernel(8, 8, rows=2, columns=1, inner_block=32, teams=16),
    SharedKernel(8, 4, rows=2, columns=1, inner_block=32, teams=16),
    SharedKernel(1, 4, rows=1, columns=1, inner_block=64, teams=64),
    SharedKernel(1, 4, rows=1, columns=1, inner_block=32, teams=32),
)
_UNDIVIDED = SharedKernel(96, 16, rows=6, columns=1, inner_block=4)
"""Its parts never were the fastest, and cost more than the model says."""
_PARTS = (2, 4, 8)
_PARTS_OF_LARGE = (2, 3, 4, 5, 6, 7, 8)
_LARGE = 2048
"""vec4s of a block from which on any number of parts may be what gives all cores the same work; small blocks take as
long as their loads, and more parts than are needed cost more than the model says."""
_JOINING_BUFFERS = 9
"""Storage buffers of the kernels that join parts, at most."""

KEPT_CHOICES = 4096
"""Shapes for which the choice of a kernel is remembered: layers of a model share them."""

SUM_INVOCATIONS = 64
"""Of a workgroup of ``product_sum.comp``, each of which adds up one vec4."""


GpuKernel = SharedKernel | MatrixKernel | FragmentKernel | RowKernel | UnitRowKernel
_ROWS_OF_UNITS = 3
"""From so many on, matrix units are faster than ``product_rows.comp``, which is the fastest where there are none."""
_LEAST_LONG_INNER, _LEAST_MULTIPLICATIONS = 576, 9_000_000_000
"""vec4s of the inner dimension, and multiplications, of products of halves that are large."""


def choose_gpu_kernel(device: DeviceInfo, shape: ProductShape) -> GpuKernel:
    """The kernel that should take the least time, of those within the device's limits if there is one."""
    return _choose(device, device_costs(device), shape)


def predicted_nanoseconds(device: DeviceInfo, shape: ProductShape) -> float:
    """What a product of a shape takes by the kernel that is chosen for it, apart from what every dispatch does."""
    costs = device_costs(device)
    return nanoseconds(_choose(device, costs, shape), shape, costs, core_count(device))


@lru_cache(maxsize=KEPT_CHOICES)
def _choose(device: DeviceInfo, costs: DeviceCosts, shape: ProductShape) -> GpuKernel:
    cores = core_count(device)
    found: list[GpuKernel] = [*unit_row_kernels(device, costs, shape)] or _without_unit_rows(device, costs, shape)

    def predicted(kernel: GpuKernel) -> float:
        return nanoseconds(kernel, shape, costs, cores)

    chosen = min(found, key=predicted)
    if _excess(chosen, shape, device) or "second-product" in device.switches:
        kernels = sorted(found, key=lambda kernel: (_excess(kernel, shape, device), predicted(kernel)))
        chosen = kernels[0]
        if "second-product" in device.switches:
            chosen = next((kernel for kernel in kernels if _block(kernel) != _block(chosen)), chosen)
    if not isinstance(chosen, SharedKernel) or not may_join(device, chosen):
        return chosen
    return min(chosen, replace(chosen, joins=True), key=predicted)


def _without_unit_rows(device: DeviceInfo, costs: DeviceCosts, shape: ProductShape) -> list[GpuKernel]:
    """Every kernel for a product that isn't one of a few rows by weights of 4 bits with matrix units."""
    found: list[GpuKernel] = [*fragment_kernels(device, costs, shape)]
    only_fragments = bool(found) and shape.shortcut > 0
    # Halves take no longer where they can go straight to registers, unless many rows share many long columns.
    if not found or not ((shape.half_run and not _is_large(shape)) or only_fragments):
        found += matrix_kernels(device, costs, shape)
    if not found or not (only_fragments or "emulated-matrix-units" in device.switches):
        few = [*row_kernels(device, shape)] if not shape.half_run or not found or shape.rows < _ROWS_OF_UNITS else []
        others = [] if shape.is_normalized else shared_kernels(device, costs, shape)
        found = [*few] or [*found, *others]
    return found


def _is_large(shape: ProductShape) -> bool:
    """Whether tiles in shared memory are read often enough to pay for halves: as of an H200's 3 x 3 convolutions of 512
    channels at 64 x 64 pixels, which they took to 248 TFLOP/s from 162, and not of 128 at 512 x 512."""
    multiplications = 16 * shape.batches * shape.rows * shape.columns * shape.inner
    is_long = shape.inner >= _LEAST_LONG_INNER and not shape.is_normalized
    return is_long and multiplications >= _LEAST_MULTIPLICATIONS


def _block(kernel: GpuKernel) -> GpuKernel:
    """The kernel with an inner dimension that isn't divided."""
    return kernel if isinstance(kernel, (RowKernel, UnitRowKernel)) else replace(kernel, parts=1)


def may_join(device: DeviceInfo, kernel: SharedKernel) -> bool:
    """Whether the last workgroup may add up the parts of a kernel, in the order of ``product_sum.comp``."""
    enough = device.limits.max_storage_buffers >= _JOINING_BUFFERS
    return kernel.parts in _PARTS_OF_LARGE and enough and "no-joins" not in device.switches


def shared_kernels(device: DeviceInfo, costs: DeviceCosts, shape: ProductShape) -> Iterator[SharedKernel]:
    """Every kernel that can compute a product on a device; parts are added up by a second dispatch."""
    blocks = [block for block in BLOCKS if block.fits(device) and block.rows * block.columns <= costs.most_sums]
    if "no-64" in device.switches:
        blocks = [block for block in blocks if block.invocations != 64]
    return (kernel for block in blocks for kernel in _divisions(block, shape))


def _divisions(block: SharedKernel, shape: ProductShape) -> Iterator[SharedKernel]:
    """A block whose inner dimension is divided into as many parts as it may be."""
    kernel = block
    while kernel.iterations(shape) > USUAL_ITERATIONS:
        kernel = _divided(block, 2 * kernel.parts)
    yield kernel
    if block == _UNDIVIDED:
        return
    choices = _PARTS_OF_LARGE if block.block_rows * block.block_columns >= _LARGE else _PARTS
    for parts in choices:
        if parts > kernel.parts and parts * block.inner_block <= shape.inner:
            yield _divided(block, parts)


@lru_cache(maxsize=KEPT_CHOICES)
def _divided(block: SharedKernel, parts: int) -> SharedKernel:
    """A block with its inner dimension in parts. New sizes ask for hundreds, and making takes longer than judging."""
    return replace(block, parts=parts)


def _excess(kernel: GpuKernel, shape: ProductShape, device: DeviceInfo) -> int:
    """Workgroups beyond the device's limits."""
    counts = zip(kernel.groups(shape), device.limits.max_compute_work_group_count, strict=True)
    return max(0, *(count - limit for count, limit in counts))


def nanoseconds(kernel: GpuKernel, shape: ProductShape, costs: DeviceCosts, cores: int) -> float:
    """What a product takes, apart from what every dispatch does."""
    if isinstance(kernel, MatrixKernel):
        return matrix_nanoseconds(kernel, shape, costs, cores)
    if isinstance(kernel, FragmentKernel):
        return fragment_nanoseconds(kernel, shape, costs, cores)
    if isinstance(kernel, RowKernel):
        return row_nanoseconds(kernel, shape, costs, cores)
    if isinstance(kernel, UnitRowKernel):
        return unit_row_nanoseconds(kernel, shape, costs, cores)
    across, down, deep = kernel.groups(shape)
    queue = -(-across * down * deep // cores)
    steps = -(-shape.inner // (kernel.parts * kernel.inner_block))
    block = kernel.block_rows * kernel.block_columns
    # A vec4 of a row times four vec4s of columns are 16 pairs of floats.
    multiplications = block * kernel.inner_block * 16 / costs.multiplications_per_cycle
    reads = kernel.invocations * kernel.inner_block / kernel.teams * (kernel.rows + 4 * kernel.columns) / 32
    fetches = kernel.inner_block * (kernel.block_rows + 4 * kernel.block_columns) / 32
    step = multiplications + costs.read_cycles * reads + costs.fetch_cycles * fetches
    latency = costs.latency_cycles + costs.turn_cycles * kernel.fetches
    stores = queue * (costs.start_cycles + costs.store_cycles * block * kernel.teams / 32)
    stores += costs.team_cycles * kernel.teams * -(-block // kernel.invocations)
    stores += costs.code_cycles * kernel.instructions
    nanoseconds = (steps * max(latency + step, queue * step) + stores) / costs.cycles_per_nanosecond
    if kernel.parts == 1:
        return nanoseconds
    partial_sums = shape.batches * shape.rows * shape.columns * kernel.parts
    nanoseconds += costs.partial_sum_nanoseconds * partial_sums
    if kernel.joins:
        joined = costs.joined_sum_nanoseconds * kernel.partial_sums * kernel.parts
        return nanoseconds + costs.arrival_nanoseconds * queue + joined
    return nanoseconds + costs.second_dispatch_nanoseconds


DEPTHWISE_INVOCATIONS = 32
"""Of a workgroup of ``depthwise.comp`` on a GPU."""


class DepthwiseDivision(NamedTuple):
    """What an invocation of ``depthwise.comp`` computes: a block of pixels, or what some rows of a filter add."""

    high: int
    wide: int
    teams: int = 1
    """Invocations among which the rows of the filter are divided; blocks are one pixel high then."""


_LINE = 4
"""Pixels of a block of one line: they share most of what they read."""
_MANY, _SOME = 12, 3
"""Results, in ``depthwise_invocations_per_core`` of a core, from which on an invocation has pixels of two lines, and
from which on teams have two rows each: measured on an H200, filters of 3x3, 5x5 and 7x7, at batch 1 and 8."""
_MOST_UNROLLED_TAPS = 49
"""Of four pixels at once: more are more code than a core's cache holds. Teams have the code of one row."""
_MOST_TEAMS = 8
"""The sums of 32 blocks of four pixels fill the shared memory that every device has then."""


def depthwise_division(
    device: DeviceInfo, rows: int, columns: int, vectors: int, taps: Sequence[int]
) -> DepthwiseDivision:
    """How a depthwise convolution is divided among invocations. One that computes all of a block waits for its loads,
    where there are few others.

    Args:
        device: where it runs.
        rows: of all images of a batch.
        columns: of an image.
        vectors: of channels.
        taps: rows and columns of the filter.
    """
    results = rows * columns * vectors / (device_costs(device).depthwise_invocations_per_core * core_count(device))
    if results >= _MANY and math.prod(taps) <= _MOST_UNROLLED_TAPS:
        return DepthwiseDivision(min(2, rows), min(2, columns))
    teams = min(_MOST_TEAMS, taps[0] if results < _SOME else -(-taps[0] // 2))
    most = device.workgroup(DEPTHWISE_INVOCATIONS * teams) // DEPTHWISE_INVOCATIONS
    return DepthwiseDivision(1, min(_LINE, columns), max(1, min(teams, most)))
