"""The kernels for products by matrix units, and how their blocks are chosen.

Units multiply halves, which are of float16 or, where the device has units for these, of bfloat16. Of floats, each is
split into two halves of float16, and three products of them are added up in float32.
They are used on devices only whose profile in ``device_costs.toml`` has costs of them, or where ``mobopt tune`` has
measured that they take less time: a driver may offer cooperative matrices without having hardware for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.fragment_order import ORDERED_FRAGMENTS
from mobopt.runtimes.vulkan.engine.matrix_units import SHAPE
from mobopt.runtimes.vulkan.engine.stream import MAX_ITERATIONS, USUAL_ITERATIONS
from mobopt.runtimes.vulkan.kernels.costs import DeviceCosts, MatrixCosts
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, device_costs
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.shaders import is_built

MATRIX_SHADER = "product_matrix"
"""What names of the variants begin with."""
SPLIT_SHADER = f"{MATRIX_SHADER}_split"
"""The same of those for floats."""
_BFLOAT_SHADER = f"{MATRIX_SHADER}_bfloat"
FRAGMENT = SHAPE[0]
"""M, N and K."""
EMULATED_UNITS = "emulated-matrix-units"
"""The switch by which ordinary arithmetic stands for them."""
SUBGROUP_LANES = 32
"""Of the subgroups that kernels which fill fragments are written for, and that are emulated."""
EMULATED_FRAGMENT_BYTES = 4 * FRAGMENT * FRAGMENT + 8 * SUBGROUP_LANES
"""Of shared memory, by which a subgroup emulates units with fragments from registers, ``matrix_fragments.glsl``."""
EMULATED_ITERATIONS = 160
"""How often an invocation goes round loops for a product of two fragments that is emulated, at most."""
EXTREMES_BYTES = 16
"""Of what ``split.glsl`` has in shared memory besides."""
SPLIT_PRODUCTS, NO_SPLIT_PRODUCTS = "split-products", "no-split-products"
"""The switches by which units compute products of floats also where nobody has measured it, and nowhere."""
_EMULATED = MatrixCosts(*(1.0,) * 9)
"""Of ordinary arithmetic, beside which nothing else counts."""


@dataclass(frozen=True)
class MatrixKernel:
    """``product_matrix.comp``: a workgroup computes ``block_rows`` x ``block_columns`` vec4s from tiles of halves in
    shared memory."""

    block_rows: int
    block_columns: int
    rows: int
    """Rows of one subgroup."""
    columns: int
    """vec4s of one subgroup."""
    inner_block: int
    """vec4s of the inner dimension in a tile."""
    teams: int = 1
    """Subgroups that share an element of the result, within a workgroup."""
    buffers: int = 2
    """Pairs of tiles."""
    parts: int = 1
    """Workgroups that share an element of the result; their sums are added by ``product_sum.comp``."""
    lanes: int = 32
    """Invocations of a subgroup."""
    narrow: bool = False
    """Whether halves are read by four, rather than by eight."""
    emulated: bool = False
    split: bool = False
    """Whether operands are floats, each of which becomes two halves (``product_split.glsl``)."""
    column_tail: int = 0
    """Of split operands: numbers in the last vec4 of columns, 0 if it is full or what is beside them is zero."""
    is_weight_split: bool = False
    """Of split operands: whether the weights lie as halves already (:func:`split_weights`)."""
    scaled: bool = False
    """Whether the input is scaled as it is read, and rounded again if halves are multiplied."""
    planar: bool = False
    """Whether the input is planes of an image, whose taps are read by four."""
    bfloats: bool = False
    """Whether halves are of bfloat16."""
    normalized: bool = False
    """Whether the input's rows are normalised (``product_normalized.glsl``)."""
    quantized: bool = False
    """Never: weights of few bits have kernels of their own."""
    reads_ahead: bool = False
    """Whether a chained dispatch reads its first weights before those end that it waits for."""

    texels = False

    @property
    def shader(self) -> str:
        """The variant's name."""
        if self.normalized:
            return (
                f"product_matrix{'_split' if self.split else '_bfloat' if self.bfloats else ''}_normalized"
                f"{'_narrow' if self.narrow else ''}{'_emulated' if self.emulated else ''}"
            )
        if self.planar:
            return (
                f"product_matrix{'_split' if self.split else '_bfloat' if self.bfloats else ''}_planar"
                f"{'_emulated' if self.emulated else ''}"
            )
        return (
            f"product_matrix{'_split' if self.split else '_bfloat' if self.bfloats else ''}"
            f"{'_scaled' if self.scaled else ''}"
            f"{'_narrow' if self.narrow else ''}{'_emulated' if self.emulated else ''}"
        )

    @property
    def team_size(self) -> int:
        """Subgroups of a team."""
        return (self.block_rows // self.rows) * (self.block_columns // self.columns)

    @property
    def invocations(self) -> int:
        """Of a workgroup."""
        return self.team_size * self.teams * self.lanes

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a workgroup: tiles, and at the end a row of fragments of each subgroup."""
        tile = self.block_rows * (8 * self.inner_block + 16) + 4 * self.inner_block * (8 * self.block_columns + 16)
        sums = self.team_size * self.teams * FRAGMENT * (16 * self.columns + 16)
        rows = 16 * self.block_rows + EXTREMES_BYTES if self.normalized else 0
        return max(self.buffers * tile * (2 if self.split else 1), sums) + (EXTREMES_BYTES if self.split else 0) + rows

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
            self.buffers,
            *(FRAGMENT,) * 3,
            int(self.reads_ahead),
            *((self.column_tail, int(self.is_weight_split)) if self.split else ()),
        )

    @property
    def group_rows(self) -> int:
        """Rows of a workgroup."""
        return self.block_rows

    def iterations(self, shape: ProductShape) -> int:
        """How often an invocation goes round its loops: over tiles, over the taps that they cross, and over results."""
        tiles = -(-shape.inner // (self.parts * self.inner_block))
        crossed = (tiles + 1) * self.inner_block * shape.taps // max(shape.inner, 1) + 1
        stores = -(-self.block_rows * self.block_columns // self.invocations) + self.rows // FRAGMENT
        return tiles + stores + (crossed if shape.taps > 1 and shape.inner else 0)

    def loops_too_long(self, shape: ProductShape) -> bool:
        """Whether an invocation goes round its loops more often than it should, or than it can where it is emulated."""
        sides = (self.rows // FRAGMENT) * (4 * self.columns // FRAGMENT)
        products = sides * (4 * self.inner_block // FRAGMENT) * (3 if self.split else 1)
        emulated = -(-shape.inner // (self.parts * self.inner_block)) * products * EMULATED_ITERATIONS
        return self.iterations(shape) > USUAL_ITERATIONS or (self.emulated and emulated > MAX_ITERATIONS)

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


# The first is within 32 KB of shared memory. Of 41 that were measured on an H200, these are within 2 % of the best.
BLOCKS = (
    MatrixKernel(64, 8, rows=32, columns=8, inner_block=16, teams=2),
    MatrixKernel(128, 64, rows=64, columns=16, inner_block=8, buffers=1),
    MatrixKernel(96, 32, rows=48, columns=16, inner_block=8, buffers=1),
    MatrixKernel(128, 16, rows=32, columns=8, inner_block=16, buffers=1),
    MatrixKernel(96, 16, rows=48, columns=8, inner_block=16, buffers=1),
    MatrixKernel(64, 32, rows=32, columns=8, inner_block=16, buffers=1),
    MatrixKernel(64, 16, rows=32, columns=8, inner_block=32, teams=4, buffers=1),
    MatrixKernel(64, 16, rows=32, columns=8, inner_block=16, teams=2, buffers=1),
    MatrixKernel(64, 8, rows=32, columns=8, inner_block=32, teams=8, buffers=1),
    MatrixKernel(32, 16, rows=32, columns=8, inner_block=32, teams=8, buffers=1),
    MatrixKernel(32, 8, rows=16, columns=8, inner_block=64, teams=8, buffers=1),
    MatrixKernel(32, 8, rows=16, columns=8, inner_block=64, teams=4, buffers=1),
    MatrixKernel(32, 8, rows=16, columns=8, inner_block=32, teams=4, buffers=1),
    MatrixKernel(16, 8, rows=16, columns=8, inner_block=64, teams=8, buffers=1),
    MatrixKernel(16, 8, rows=16, columns=8, inner_block=32, teams=4),
    MatrixKernel(16, 4, rows=16, columns=4, inner_block=64, teams=8, buffers=1),
    MatrixKernel(16, 4, rows=16, columns=4, inner_block=128, teams=16, buffers=1),
)
# Likewise: of 31 that were measured on an H100, these are within 1 % of the best. Larger ones spill.
SPLIT_BLOCKS = (
    MatrixKernel(64, 8, rows=32, columns=8, inner_block=8, teams=2),
    MatrixKernel(128, 32, rows=64, columns=8, inner_block=8, buffers=1),
    MatrixKernel(128, 32, rows=32, columns=16, inner_block=8, buffers=1),
    MatrixKernel(96, 32, rows=48, columns=8, inner_block=8, buffers=1),
    MatrixKernel(128, 16, rows=32, columns=8, inner_block=8, buffers=1),
    MatrixKernel(64, 16, rows=32, columns=8, inner_block=16, teams=4, buffers=1),
    MatrixKernel(64, 16, rows=32, columns=8, inner_block=16, teams=2, buffers=1),
    MatrixKernel(32, 16, rows=16, columns=8, inner_block=16, teams=4, buffers=1),
    MatrixKernel(32, 8, rows=16, columns=8, inner_block=32, teams=8, buffers=1),
    MatrixKernel(32, 8, rows=16, columns=8, inner_block=16, teams=4, buffers=1),
    MatrixKernel(16, 8, rows=16, columns=8, inner_block=32, teams=8, buffers=1),
)
_PARTS = (2, 4, 8)
_SPLIT_PARTS = (*_PARTS, 16)
_CROWDED_ROWS = 96
"""Blocks of halves of so many rows have few subgroups, each with many sums: they are up to 1.6 times as fast as others
where a core has more than one workgroup to turn to, and up to 1.5 times as slow where it hasn't."""
_CROWD = 1.5
"""Workgroups per core, at least."""


def units_lanes(device: DeviceInfo, costs: DeviceCosts) -> int:
    """Invocations of the subgroups whose matrix units are used, or emulated; 0 where none are."""
    if "no-matrix-units" in device.switches:
        return 0
    if EMULATED_UNITS in device.switches:
        return SUBGROUP_LANES
    is_known = costs.matrix is not None and (costs.uses_units or SPLIT_PRODUCTS in device.switches)
    offered = is_known and SHAPE in device.matrix_shapes and is_built(MATRIX_SHADER)
    return device.subgroup_size if offered else 0


def offers_bfloats(device: DeviceInfo) -> bool:
    """Whether a device's matrix units, where they are used, multiply bfloat16."""
    return SHAPE in device.bfloat_shapes and is_built(_BFLOAT_SHADER)


def multiplies(device: DeviceInfo, elements: torch.dtype) -> bool:
    """Whether matrix units are used for products of elements of a type as they lie, or emulated."""
    if units_lanes(device, device_costs(device)) == 0:
        return False
    if elements != torch.bfloat16:
        return elements == torch.float16
    return offers_bfloats(device) or EMULATED_UNITS in device.switches


def knows_fragments(device: DeviceInfo, costs: DeviceCosts) -> bool:
    """Whether kernels may fill the fragments of a device's units from registers: they are used, and elements lie as
    these kernels have it."""
    is_ordered = ORDERED_FRAGMENTS in device.features or EMULATED_UNITS in device.switches
    return is_ordered and units_lanes(device, costs) == SUBGROUP_LANES


def matrix_kernels(device: DeviceInfo, costs: DeviceCosts, shape: ProductShape) -> Iterator[MatrixKernel]:
    """Every kernel with matrix units that can compute a product on a device; none where they aren't used."""
    lanes = units_lanes(device, costs)
    run = shape.half_run or (shape.float_run if _splits(device, costs) else 0)
    if not run or not lanes:
        return
    for kernel in _blocks(lanes, run < 8, EMULATED_UNITS in device.switches, not shape.half_run, shape.is_normalized):
        if not kernel.fits(device):
            continue
        for divided in [kernel] if shape.is_normalized else _divisions(kernel, shape):
            is_crowd = math.prod(divided.groups(shape)) >= _CROWD * core_count(device)
            if is_crowd or divided.split or divided.block_rows != _CROWDED_ROWS:
                yield divided


def splits(device: DeviceInfo, costs: DeviceCosts | None = None) -> bool:
    """Whether products of floats may be computed by matrix units, which take halves: by the costs of the device, or by
    others."""
    costs = costs or device_costs(device)
    return units_lanes(device, costs) > 0 and _splits(device, costs)


def _splits(device: DeviceInfo, costs: DeviceCosts) -> bool:
    if NO_SPLIT_PRODUCTS in device.switches or "subgroup_arithmetic" not in device.features:
        return False
    is_known = SPLIT_PRODUCTS in device.switches or any(name in device.name for name in costs.split_names)
    return (costs.split is not None and is_known) or EMULATED_UNITS in device.switches


@lru_cache
def _blocks(lanes: int, narrow: bool, emulated: bool, split: bool, normalized: bool) -> tuple[MatrixKernel, ...]:
    alike: dict[str, Any] = {"narrow": narrow, "emulated": emulated, "split": split, "normalized": normalized}
    return tuple(replace(block, lanes=lanes, **alike) for block in (SPLIT_BLOCKS if split else BLOCKS))


def _divisions(kernel: MatrixKernel, shape: ProductShape) -> Iterator[MatrixKernel]:
    """A kernel whose inner dimension is divided into as many parts as it may be."""
    least = kernel
    while least.loops_too_long(shape):
        least = _divided(kernel, 2 * least.parts)
    yield least
    for parts in _SPLIT_PARTS if kernel.split else _PARTS:
        if parts > least.parts and parts * kernel.inner_block <= shape.inner:
            yield _divided(kernel, parts)


@lru_cache(maxsize=1024)
def _divided(kernel: MatrixKernel, parts: int) -> MatrixKernel:
    return replace(kernel, parts=parts)


def matrix_nanoseconds(kernel: MatrixKernel, shape: ProductShape, costs: DeviceCosts, cores: int) -> float:
    """What a product takes, apart from what every dispatch does."""
    matrix = (costs.split if kernel.split else costs.matrix) or _EMULATED
    across, down, deep = kernel.groups(shape)
    queue = -(-across * down * deep // cores)
    steps = -(-shape.inner // (kernel.parts * kernel.inner_block))
    block = kernel.block_rows * kernel.block_columns
    multiplications = 16 * block * kernel.inner_block / matrix.multiplications_per_cycle
    # Runs of eight halves are two vec4s.
    fetches = kernel.inner_block * (kernel.block_rows + 4 * kernel.block_columns) / 2 / 32
    reads = kernel.team_size * kernel.inner_block * (kernel.rows + 4 * kernel.columns) / 2 / 32
    step = multiplications + matrix.fetch_cycles * fetches + matrix.read_cycles * reads
    latency = matrix.latency_cycles + matrix.turn_cycles * 32 * fetches / kernel.invocations
    stores = queue * (matrix.start_cycles + matrix.store_cycles * block * kernel.teams / 32)
    stores += matrix.finish_cycles * block / kernel.invocations + matrix.code_cycles
    cycles = steps * max(latency + step, queue * step) + stores
    nanoseconds = cycles / costs.cycles_per_nanosecond + queue * _statistics_nanoseconds(kernel, steps)
    if kernel.parts == 1:
        return nanoseconds
    partial_sums = shape.batches * shape.rows * shape.columns * kernel.parts
    return nanoseconds + costs.second_dispatch_nanoseconds + costs.partial_sum_nanoseconds * partial_sums


def _statistics_nanoseconds(kernel: MatrixKernel, steps: int) -> float:
    """What statistics of rows add to the time of a workgroup: fitted to 16 products of GPT-2, ViT-small and
    ConvNeXt-tiny on an H100, of which most are within 1 us. Invocations that fetch parts of many rows run out of
    registers."""
    if not kernel.normalized:
        return 0.0
    fetches = -(-kernel.block_rows * kernel.inner_block // ((1 if kernel.narrow else 2) * kernel.invocations))
    return 400.0 + (fetches - 1) * (600.0 + 60.0 * steps)
