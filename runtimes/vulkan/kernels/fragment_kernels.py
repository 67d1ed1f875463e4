"""The kernels for products by matrix units whose operands go from memory straight to registers: no tile lies in shared
memory, and no subgroup waits for another until sums are added up, so layers of few rows take less time by them. Floats
become two halves each, in each subgroup that reads them.

They take a device whose units have fragments in the order that the shader knows, and weights that are constants.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import MAX_ITERATIONS, USUAL_ITERATIONS
from mobopt.runtimes.vulkan.kernels.costs import CORE_INVOCATIONS, CORE_REGISTERS, DeviceCosts, FragmentCosts
from mobopt.runtimes.vulkan.kernels.device_costs import device_costs
from mobopt.runtimes.vulkan.kernels.matrix_kernels import (
    EMULATED_FRAGMENT_BYTES,
    EMULATED_ITERATIONS,
    EMULATED_UNITS,
    EXTREMES_BYTES,
    FRAGMENT,
    SUBGROUP_LANES,
    knows_fragments,
    splits,
)
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.shaders import is_built

FRAGMENT_SHADER = "product_fragments"
"""What names of the variants begin with."""
NO_FRAGMENTS = "no-fragments"
"""The switch by which operands go through shared memory."""
_STEP = 8
"""vec4s of the inner dimension in a step."""
_MOST_KEPT = 512
"""Rows times vec4s of a subgroup whose sums are stored from registers."""
# Of an invocation, and of a core of an H100 or H200.
_MOST_REGISTERS = 255
_OTHER_REGISTERS = 45
"""Beside operands and sums."""
_STATISTICS_REGISTERS = 40
"""And besides, where rows are normalised: a guess by which ViT-small's layers get the blocks that were fastest."""
_STATISTICS_CYCLES = 200.0
"""Of a step for each 16 rows, which every workgroup beside meets again: layers of 577 to 4096 rows by normalised rows
took 1.2 to 1.7 times what they took by others (an H200)."""
# With a shortcut, by which what is chosen takes 7 % (of floats .5 %) more than the best in the mean of 24 layers of
# ResNet50 at batches of 1, 3, 8 and 32 (an H200): registers of each row of an invocation for its other address and two
# ways to read, cycles of a step for each that is too many, and what reading the other's share of values takes besides.
_SHORTCUT_REGISTERS = 15
_SPILL_CYCLES = 10.0
_SHORTCUT_READS = 3.0
_MANY_STORES, _MANY_STORES_CYCLES = 4, 300.0
"""vec4s of 16 rows that an invocation stores after one another, and what each beyond them takes."""
_CORE_SHARED_BYTES = 220_000
_MOST_RUNS = 1 << 20
"""Of the inner dimension, whose quotients the shader finds in float32."""


@dataclass(frozen=True)
class FragmentKernel:
    """``product_fragments.comp``: a workgroup computes ``rows`` x ``block_columns`` vec4s, of which each of its
    subgroups reads what it needs by itself."""

    rows: int
    """Of one subgroup, and of the workgroup."""
    columns: int
    """vec4s of one subgroup."""
    across: int = 1
    """Subgroups side by side."""
    teams: int = 1
    """Subgroups that share an element of the result, within a workgroup."""
    depth: int = 1
    """Steps whose operands are on their way."""
    parts: int = 1
    """Workgroups that share an element of the result; their sums are added by ``product_sum.comp``."""
    emulated: bool = False
    split: bool = False
    """Whether operands are floats, each of which becomes two halves (``product_fragments_split.glsl``)."""
    scaled: bool = False
    """Whether the input is scaled as it is read, and rounded again if halves are multiplied."""
    planar: bool = False
    """Whether the input is planes of an image, whose taps are read by two."""
    bfloats: bool = False
    """Whether halves are of bfloat16."""
    normalized: bool = False
    """Whether the input's rows are normalised (``product_normalized.glsl``)."""
    shortcut: bool = False
    """Whether the last of the inner dimension are of another input (:attr:`ProductOperands.shortcut`)."""
    reads_ahead: bool = False
    """Whether a chained dispatch reads its first weights before those end that it waits for."""

    texels = False

    @property
    def shader(self) -> str:
        """The variant's name."""
        if self.split:
            return (
                f"product_fragments_split{'_scaled' if self.scaled else '_shortcut' if self.shortcut else ''}"
                f"{'_emulated' if self.emulated else ''}"
            )
        if self.shortcut:
            return (
                f"product_fragments{'_bfloat' if self.bfloats else ''}_shortcut{'_emulated' if self.emulated else ''}"
            )
        return (
            f"product_fragments{'_bfloat' if self.bfloats else ''}"
            f"{'_normalized' if self.normalized else '_scaled' if self.scaled else '_planar' if self.planar else ''}"
            f"{'_emulated' if self.emulated else ''}"
        )

    @property
    def block_columns(self) -> int:
        """vec4s of a workgroup."""
        return self.across * self.columns

    @property
    def subgroups(self) -> int:
        """Of a workgroup."""
        return self.across * self.teams

    @property
    def invocations(self) -> int:
        """Of a workgroup."""
        return SUBGROUP_LANES * self.subgroups

    @property
    def keeps_sums(self) -> bool:
        """Whether sums are stored from registers, and don't go through shared memory, as the shader does it."""
        return self.teams == 1 and self.rows * self.columns <= _MOST_KEPT

    @property
    def shared_bytes(self) -> int:
        """Of a workgroup: a row of fragments of each subgroup, unless it keeps its sums, and statistics of rows."""
        sums = 16 if self.keeps_sums else 16 * self.subgroups * FRAGMENT * (self.columns + 1)
        rows = (16 + 8 * self.teams) * self.rows + 16 if self.normalized else 0
        emulated = EMULATED_FRAGMENT_BYTES * self.subgroups if self.emulated else 0
        return sums + rows + emulated + (EXTREMES_BYTES if self.split else 0)

    @property
    def registers(self) -> int:
        """That an invocation would like to have, about."""
        lines, columns = self.rows // 8, self.columns // 2
        sums = self.rows * self.columns // 8
        if self.split:  # floats, both their halves, both halves of weights, and sums of a step
            lines, columns, sums = 2 * lines, 2 * columns, 2 * sums
        others = _STATISTICS_REGISTERS if self.normalized else 0
        if self.shortcut:
            others += _SHORTCUT_REGISTERS * self.rows // 8
        return 4 * self.depth * (lines + columns) + sums + _OTHER_REGISTERS + others

    @property
    def resident(self) -> int:
        """Workgroups that a core has room for at once, about: by their registers, and by shared memory."""
        registers = min(_MOST_REGISTERS, self.registers)
        rooms = (CORE_REGISTERS // (-(-registers // 8) * 8 * self.invocations), CORE_INVOCATIONS // self.invocations)
        return max(1, min(*rooms, _CORE_SHARED_BYTES // self.shared_bytes))

    @property
    def constants(self) -> tuple[int, ...]:
        """Specialization constants from 12 on."""
        return (
            *(self.rows, self.columns, self.across, self.teams, self.parts, self.invocations, self.depth),
            int(self.reads_ahead),
        )

    @property
    def group_rows(self) -> int:
        """Rows of a workgroup."""
        return self.rows

    def turns(self, shape: ProductShape) -> int:
        """Steps of a subgroup."""
        return -(-shape.inner // (_STEP * self.parts * self.teams))

    def iterations(self, shape: ProductShape) -> int:
        """How often an invocation goes round its loops."""
        stores = -(-self.rows * self.block_columns // self.invocations) + self.rows // FRAGMENT
        return self.turns(shape) + self.depth + stores

    def loops_too_long(self, shape: ProductShape) -> bool:
        """Whether an invocation goes round its loops more often than it should, or than it can where it is emulated."""
        products = 2 * (self.rows // FRAGMENT) * (4 * self.columns // FRAGMENT) * (3 if self.split else 1)
        emulated = self.turns(shape) * products * EMULATED_ITERATIONS
        return self.iterations(shape) > USUAL_ITERATIONS or (self.emulated and emulated > MAX_ITERATIONS)

    def groups(self, shape: ProductShape) -> tuple[int, int, int]:
        """Workgroups of a dispatch."""
        return (-(-shape.columns // self.block_columns), -(-shape.rows // self.rows), shape.batches * self.parts)

    def fits(self, device: DeviceInfo) -> bool:
        """Whether the device's limits allow it."""
        limits = device.limits
        invocations = min(limits.max_compute_work_group_invocations, limits.max_compute_work_group_size[0])
        return self.invocations <= invocations and self.shared_bytes <= device.shared_memory_bytes


# Of 160 of which some 45 were measured on each of 76 layers (an H200, those with residuals on an H100), the others
# predicted to 15 %, what is chosen among these takes 3 % more than the best, in the mean of layers. Of 36 measured for
# each of 24 layers of transformers, of 128 to 12544 rows, 10 % more (24 % before waves and the blocks of much work).
# Chained variants of another one need local memory: 32 x 4, across 1, with two steps on their way.
BLOCKS = (
    FragmentKernel(16, 4, teams=8, depth=2),
    FragmentKernel(16, 4, teams=16, depth=2),
    FragmentKernel(16, 8, teams=2),
    FragmentKernel(16, 8, teams=2, depth=2),
    FragmentKernel(16, 8, teams=4, depth=2),
    FragmentKernel(16, 8, teams=16, depth=2),
    FragmentKernel(16, 8, across=4),
    FragmentKernel(32, 8, teams=2, depth=2),
    FragmentKernel(32, 8, teams=4, depth=2),
    FragmentKernel(32, 8, across=2),
    FragmentKernel(32, 8, across=2, depth=2),
    FragmentKernel(32, 8, across=4),
    FragmentKernel(32, 16, teams=8),
    FragmentKernel(32, 16, across=2),
    FragmentKernel(48, 8, across=2, teams=2),
    FragmentKernel(48, 16, teams=8),
    FragmentKernel(64, 8, across=2, teams=2),
    FragmentKernel(64, 16, across=2),
    FragmentKernel(64, 16, teams=4),
)
_NARROW = FragmentKernel(16, 8)
_SLOW_WITH_STATISTICS = FragmentKernel(32, 8, teams=2, depth=2)
"""Takes 14.5 us for 784 x 192 by 192 x 768 where rows are normalised, and others that are predicted alike 10.1."""
BLOCKS_OF_NORMALIZED = (*(block for block in BLOCKS if block != _SLOW_WITH_STATISTICS), _NARROW)
"""The narrow one is the best for rows of few elements: 3136 x 96 by 96 x 384."""


# Of 40 that were measured on 60 layers, what is chosen among these, or from shared memory, takes 1.5 % more than the
# best, in the mean of layers. 64 x 8 and 32 x 16 need local memory, as 16 x 8 by 16 teams do.
SPLIT_BLOCKS = (
    FragmentKernel(16, 4, teams=8),
    FragmentKernel(16, 4, teams=16),
    FragmentKernel(16, 8, teams=2),
    FragmentKernel(16, 8, teams=4),
    FragmentKernel(16, 8, teams=8),
    FragmentKernel(16, 8, across=4),
    FragmentKernel(32, 8, teams=4),
    FragmentKernel(32, 8, teams=8),
    FragmentKernel(32, 8, across=2, teams=2),
    FragmentKernel(48, 8, teams=2),
    FragmentKernel(48, 8, teams=4),
    FragmentKernel(48, 8, across=2),
    FragmentKernel(48, 8, across=2, teams=2),
)


def takes_fragments(device: DeviceInfo, costs: DeviceCosts | None = None) -> bool:
    """Whether these kernels may be used: by the costs of the device, or by others."""
    return NO_FRAGMENTS not in device.switches and knows_fragments(device, costs or device_costs(device))


def fragment_kernels(device: DeviceInfo, costs: DeviceCosts, shape: ProductShape) -> Iterator[FragmentKernel]:
    """Every kernel of these that can compute a product on a device; none where they aren't used."""
    is_emulated, is_split = EMULATED_UNITS in device.switches, not shape.half_run
    known = costs.split_fragments if is_split else costs.fragments
    is_known = is_emulated or (known is not None and is_built(FRAGMENT_SHADER))
    is_float = shape.fits_fragments and not shape.bits
    if not (is_float and is_known and takes_fragments(device, costs)) or shape.inner // 2 > _MOST_RUNS:
        return
    if is_split and not splits(device, costs):
        return
    for kernel in _blocks(is_emulated, is_split, shape.is_normalized, shape.shortcut > 0):
        while kernel.loops_too_long(shape):
            kernel = replace(kernel, parts=2 * kernel.parts)
        if kernel.fits(device) and not (shape.is_normalized and kernel.parts > 1):
            yield kernel


@lru_cache
def _blocks(emulated: bool, split: bool, normalized: bool, shortcut: bool) -> tuple[FragmentKernel, ...]:
    blocks = SPLIT_BLOCKS if split else BLOCKS_OF_NORMALIZED if normalized else BLOCKS
    kind = {"emulated": emulated, "split": split, "normalized": normalized, "shortcut": shortcut}
    return tuple(replace(block, **kind) for block in blocks)


def fragment_nanoseconds(kernel: FragmentKernel, shape: ProductShape, costs: DeviceCosts, cores: int) -> float:
    """What a product takes, apart from what every dispatch does."""
    own = (costs.split_fragments if kernel.split else costs.fragments) or _EMULATED
    queue = -(-math.prod(kernel.groups(shape)) // cores)
    turns = kernel.turns(shape)
    # A run of eight halves of each line; four invocations read a step of a line.
    runs = (kernel.rows + 4 * kernel.columns) / FRAGMENT
    step = own.read_cycles * runs + own.multiply_cycles * kernel.rows * kernel.columns / 64
    if kernel.normalized:
        step += _STATISTICS_CYCLES * kernel.rows / FRAGMENT
    if kernel.shortcut:
        step += own.read_cycles * kernel.rows / FRAGMENT * _SHORTCUT_READS * shape.shortcut / shape.inner
        step += _SPILL_CYCLES * max(0, kernel.registers - _MOST_REGISTERS)
    finish = own.kept_finish_cycles
    if not kernel.keeps_sums:
        finish = own.finish_cycles + _MANY_STORES_CYCLES * max(0, kernel.columns / (2 * kernel.teams) - _MANY_STORES)
    alone = turns * (own.latency_cycles / kernel.depth + step) + finish * kernel.rows / FRAGMENT
    stores = own.store_cycles * kernel.rows * kernel.columns * kernel.subgroups / SUBGROUP_LANES
    waves, overlap = max(1.0, queue / kernel.resident), own.overlap
    if waves > 1 and not kernel.shortcut:  # whose costs were fitted without
        # A wave of workgroups, as many as there is room for at once, waits for the last of the one before.
        waves, overlap = math.ceil(waves), own.crowded_overlap
    together = turns * kernel.subgroups * step / overlap + stores
    # Both the latency of one after the other, where few are there at once, and what all take of a core.
    cycles = math.hypot(waves * alone, queue * together)
    nanoseconds = (cycles + own.code_cycles) / costs.cycles_per_nanosecond
    if kernel.parts == 1:
        return nanoseconds
    partial_sums = shape.batches * shape.rows * shape.columns * kernel.parts
    return nanoseconds + costs.second_dispatch_nanoseconds + costs.partial_sum_nanoseconds * partial_sums


_EMULATED = FragmentCosts(*(1.0,) * 9)
"""Of ordinary arithmetic, beside which nothing else counts."""
