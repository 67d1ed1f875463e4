"""Which kernel computes a product of matrices, per device and shape, and the kernels for CPU drivers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS
from mobopt.runtimes.vulkan.kernels.costs import CpuCosts
from mobopt.runtimes.vulkan.kernels.device_costs import cpu_costs
from mobopt.runtimes.vulkan.kernels.gpu_kernels import KEPT_CHOICES, GpuKernel, choose_gpu_kernel
from mobopt.runtimes.vulkan.kernels.kernel_access import reads_texels
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape


@dataclass(frozen=True)
class TileKernel:
    """``product_tiles.comp``: eight invocations, each with a tile of ``rows`` x ``columns`` vec4s of its own."""

    rows: int
    columns: int
    column_lanes: int
    texels: bool = False
    parts: int = 1
    """Workgroups that share an element of the result; their sums are added by ``product_sum.comp``."""
    quantized: bool = False
    """Whether weights are of few bits."""
    broadcasts: bool = False
    """Whether it is ``product_broadcast.comp``: the lanes, all along columns, share ``rows`` rows, which each of them
    loads some of. It reads through texel buffers only."""
    turn: int = 1
    """Steps along the inner dimension in each turn of the loop."""
    rolls: bool = False
    """Whether the stores are a loop: see :attr:`CpuCosts.rolls_stores`."""

    @property
    def shader(self) -> str:
        """The variant's name."""
        if self.broadcasts:
            return "product_broadcast_quantized" if self.quantized else "product_broadcast"
        if self.quantized:
            return "product_tiles_quantized_texels" if self.texels else "product_tiles_quantized"
        return "product_tiles_texels" if self.texels else "product_tiles"

    @property
    def constants(self) -> tuple[int, ...]:
        """Specialization constants from 12 on."""
        return (self.rows, self.columns, self.parts, self.turn, int(self.rolls))

    @property
    def group_rows(self) -> int:
        """Rows of a workgroup."""
        return self.rows * (LANES // self.column_lanes)

    def iterations(self, shape: ProductShape) -> int:
        """How often an invocation goes round its loop."""
        return -(-shape.inner // (self.parts * self.turn))

    def groups(self, shape: ProductShape) -> tuple[int, int, int]:
        """Workgroups of a dispatch."""
        return (
            -(-shape.columns // (self.columns * self.column_lanes)),
            -(-shape.rows // self.group_rows),
            shape.batches * self.parts,
        )


ProductKernel = TileKernel | GpuKernel

LANES = 8
"""Invocations of a workgroup of ``product_tiles.comp``: the vector of a CPU driver with 256-bit registers."""


_SUMS_OF_LONG_TURNS = 16
"""Of a plain tile: two steps of more of them are more code than a processor's nearest cache holds."""

_WIDE_TILES = ((4, 4),)
"""For results so wide that the device can't count workgroups of narrower ones."""
_MOST_STEPS = 2 * USUAL_ITERATIONS
_STEPS_OF_A_PART = USUAL_ITERATIONS // 2
_LARGE = 2**20
"""vec4s of a result of which there aren't more partial sums than need be."""


def choose_product_kernel(device: DeviceInfo, shape: ProductShape, texels: bool) -> ProductKernel:
    """The kernel for a shape on a device; ``texels`` says whether it reads through texel buffers."""
    if use_shared_memory(device):
        return choose_gpu_kernel(device, shape)
    return _choose(device, shape, texels)


def predicted_tile_nanoseconds(device: DeviceInfo, shape: ProductShape) -> float:
    """What a product of a shape takes on a CPU driver by the tile that is chosen for it."""
    return tile_nanoseconds(_choose(device, shape, reads_texels(device)), shape, cpu_costs(device))


def _choose(device: DeviceInfo, shape: ProductShape, texels: bool) -> TileKernel:
    place = 1 if "second-product" in device.switches else 0
    broadcasts = texels and broadcasts_lanes(device)
    widest = device.limits.max_compute_work_group_count[0]
    return _choose_tile(widest, cpu_costs(device), shape, place, broadcasts, texels)


def use_shared_memory(device: DeviceInfo) -> bool:
    """Whether the kernels with shared memory are used: on everything but CPU drivers."""
    return not device.is_cpu or not device.switches.isdisjoint(("shared-products", "emulated-matrix-units"))


def broadcasts_lanes(device: DeviceInfo) -> bool:
    """Whether the lanes of a workgroup of a CPU driver are one subgroup, which can hand registers around."""
    return device.subgroup_size == LANES and "subgroup_shuffle" in device.features and reads_texels(device)


_MOST_PANEL_COLUMNS = 16


def panel_columns(device: DeviceInfo, columns: int, aligned: int = 1) -> int:
    """Columns of a panel: a CPU reads a narrow panel as one run of memory, which its prefetcher follows; GPUs have one
    panel, of a multiple of ``aligned``."""
    if use_shared_memory(device):
        return -(-columns // aligned) * aligned
    return max(width for width in range(1, _MOST_PANEL_COLUMNS + 1) if columns % width == 0)


@lru_cache(maxsize=KEPT_CHOICES)
def _choose_tile(
    widest: int, costs: CpuCosts, shape: ProductShape, place: int, broadcasts: bool, texels: bool
) -> TileKernel:
    """The best tile, or one that comes after it."""
    row, parts = replace(shape, rows=1), _parts(shape)
    tiles = _tiles_of_a_row(costs, row, parts, broadcasts)
    if all(tile.across > widest for tile in tiles):
        tiles = _tiles_of_a_row(replace(costs, tiles=_WIDE_TILES), row, parts, broadcasts)

    def cost(tile: _RowTile) -> tuple[bool, float]:
        groups = tile.groups * -(-shape.rows // tile.group_rows)
        return tile.across > widest, -(-groups // costs.threads) * tile.nanoseconds

    best = sorted(tiles, key=cost)[min(place, len(tiles) - 1)]
    return replace(best.kernel, texels=texels, rolls=costs.rolls_stores)


class _RowTile(NamedTuple):
    """What a tile costs, but for the number of rows, which most new sizes of a model differ in."""

    kernel: TileKernel
    group_rows: int
    across: int
    """Workgroups beside each other."""
    groups: int
    """Of a row of them, in all batches and parts."""
    nanoseconds: float
    """Of one."""


@lru_cache(maxsize=KEPT_CHOICES)
def _tiles_of_a_row(costs: CpuCosts, shape: ProductShape, parts: int, broadcasts: bool) -> list[_RowTile]:
    """The tiles for a shape with one row, in the order of :func:`tile_kernels`."""
    tiles = []
    for kernel in tile_kernels(shape, costs, broadcasts):
        kernel = replace(kernel, parts=parts)
        across, _, deep = kernel.groups(shape)
        nanoseconds = _group_nanoseconds(kernel, shape, costs)
        tiles.append(_RowTile(kernel, kernel.group_rows, across, across * deep, nanoseconds))
    return tiles


def tile_kernels(shape: ProductShape, costs: CpuCosts, broadcasts: bool) -> list[TileKernel]:
    """Every kernel that can compute a product on a CPU driver: of ``costs`` the tiles count, and ``broadcasts`` says
    whether lanes may hand registers around."""
    parts = _parts(shape)
    steps = 2 if shape.inner % (2 * max(shape.taps, 1)) == 0 else 1
    found = [
        TileKernel(rows, columns, lanes, parts=parts, turn=steps if rows * columns <= _SUMS_OF_LONG_TURNS else 1)
        for rows, columns in costs.tiles
        for lanes in (8, 4, 2, 1)
        if shape.group_columns % columns == 0 or shape.group_columns == shape.columns
    ]
    if broadcasts:
        found += [
            TileKernel(rows, columns, LANES, parts=parts, broadcasts=True, turn=steps)
            for rows, columns in costs.broadcast_tiles
            if shape.group_columns % (LANES * columns) == 0 or shape.group_columns == shape.columns
        ]
    return found


def _parts(shape: ProductShape) -> int:
    """Of the inner dimension: more than one if a loop over it would be too long."""
    if shape.inner <= _MOST_STEPS:
        return 1
    is_large = shape.batches * shape.rows * shape.columns > _LARGE
    return -(-shape.inner // (_MOST_STEPS if is_large else _STEPS_OF_A_PART))


def tile_nanoseconds(kernel: TileKernel, shape: ProductShape, costs: CpuCosts) -> float:
    """What the busiest thread takes."""
    return -(-math.prod(kernel.groups(shape)) // costs.threads) * _group_nanoseconds(kernel, shape, costs)


def _group_nanoseconds(kernel: TileKernel, shape: ProductShape, costs: CpuCosts) -> float:
    """What a workgroup takes."""
    sums = kernel.rows * kernel.columns
    rows = kernel.rows * costs.fetch
    if kernel.broadcasts:
        rows = kernel.rows // LANES * costs.fetch + kernel.rows * costs.broadcast
    step = rows + 4 * kernel.columns * costs.fetch + sums * costs.multiply
    return costs.start + kernel.iterations(shape) * kernel.turn * step + sums * costs.store
