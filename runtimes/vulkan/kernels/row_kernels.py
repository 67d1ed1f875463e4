"""The kernels for products of a few rows and how their blocks are chosen: what a decoder does for each token.

Each factor is read once, so they take as long as the device's memory does, if enough reads are under way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS
from mobopt.runtimes.vulkan.kernels.costs import DeviceCosts, FewBitsCosts
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape


@dataclass(frozen=True)
class RowKernel:
    """``product_rows.comp`` and ``product_rows_quantized.comp``: a workgroup computes a few rows from registers."""

    rows: int
    columns: int
    """Invocations of a team, each with a vec4 of columns, or with 16 bytes of weights of few bits."""
    teams: int
    """Invocations that share an element of the result: a power of two."""
    steps: int
    """vec4s of the inner dimension that an invocation reads at a time: a power of two."""
    bits: int = 0
    """Of weights that are integers, 8 or 4; else 0."""
    normalized: bool = False
    """Whether rows are normalised (``product_normalized.glsl``)."""
    reads_ahead: bool = False
    """Whether a chained dispatch reads its first weights before those end that it waits for."""
    gated: bool = False
    """Whether it stores what gates let pass (``gates.glsl``)."""

    texels = False
    parts = 1

    @property
    def shader(self) -> str:
        """The variant's name."""
        return f"product_rows{'_normalized' if self.normalized else ''}{'_quantized' if self.bits else ''}"

    @property
    def invocations(self) -> int:
        """Of a workgroup."""
        return self.columns * self.teams

    @property
    def vectors(self) -> int:
        """vec4s of columns of an invocation."""
        return 8 // self.bits if self.bits else 1

    @property
    def group_columns(self) -> int:
        """vec4s of columns of a workgroup."""
        return self.columns * self.vectors

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a workgroup: the teams' sums, and those of the rows themselves."""
        return (16 * self.vectors + (8 if self.normalized else 0)) * self.rows * self.invocations

    @property
    def constants(self) -> tuple[int, ...]:
        """Specialization constants from 12 on."""
        return (
            self.rows,
            self.columns,
            self.teams,
            self.steps,
            self.invocations,
            int(self.reads_ahead),
            int(self.gated),
        )

    @property
    def group_rows(self) -> int:
        """Rows of a workgroup."""
        return self.rows

    def turns(self, shape: ProductShape) -> int:
        """How often an invocation reads."""
        return -(-shape.inner // (self.teams * self.steps))

    def iterations(self, shape: ProductShape) -> int:
        """How often an invocation goes round its loops: it reads, and adds up."""
        return self.turns(shape) + self.teams.bit_length()

    def groups(self, shape: ProductShape) -> tuple[int, int, int]:
        """Workgroups of a dispatch."""
        return (-(-shape.columns // self.group_columns), -(-shape.rows // self.rows), shape.batches)

    def fits(self, device: DeviceInfo) -> bool:
        """Whether the device's limits allow it."""
        limits = device.limits
        invocations = min(limits.max_compute_work_group_invocations, limits.max_compute_work_group_size[0])
        return self.invocations <= invocations and self.shared_bytes <= device.shared_memory_bytes


MOST_ROWS = 4
"""More share factors, which are better read to shared memory."""
# Of 60 that were measured on an H200, for 16 shapes and two types of elements, these are within 2 % of the best.
_BLOCKS = (
    *((4, 32, 1), (4, 64, 1), (4, 128, 1), (4, 128, 2), (4, 256, 2)),
    *((8, 64, 1), (8, 64, 2), (8, 128, 1), (16, 64, 2), (32, 16, 1)),
)
"""Columns, teams and steps; the first is within the limits that every Vulkan device must have."""
_BLOCKS_OF_FEW_BITS = (
    *((4, 16, 2), (2, 128, 2), (4, 128, 2), (2, 256, 2), (2, 128, 4)),
    *((6, 64, 2), (4, 64, 4), (8, 32, 4), (16, 16, 4)),
)
"""The same, of 33 that were measured on an H100 for 24 products of decoders of 4 and of 8 bits; 256 teams and 6 across
are the best of some more in whole decoders, where dispatches of few workgroups chain."""
_RESIDENT_INVOCATIONS = 2048
"""Of a core, at most."""
_REGISTERS = 65536
"""Of a core, that its invocations share."""
_SHARE_AHEAD = 0.65
"""Of the device's room for workgroups, which those have that read ahead: the dispatch before them has the rest."""
_LATE_CYCLES = 900.0
"""What all wait for workgroups that begin when that dispatch has ended: measured by decoders as a whole on an H200."""
_STEPS_AHEAD = 2
"""Whose weights an invocation can hold while it waits and leave room for others on its core."""


def row_kernels(device: DeviceInfo, shape: ProductShape) -> Iterator[RowKernel]:
    """Every such kernel that can compute a product on a device."""
    if shape.is_plain and shape.rows <= MOST_ROWS:
        blocks = _blocks(1 << (shape.rows - 1).bit_length(), shape.is_normalized, shape.bits)
        yield from (block for block in blocks if block.fits(device) and block.iterations(shape) <= USUAL_ITERATIONS)


@lru_cache
def _blocks(rows: int, normalized: bool, bits: int) -> tuple[RowKernel, ...]:
    blocks = _BLOCKS_OF_FEW_BITS if bits else _BLOCKS
    return tuple(RowKernel(rows, *block, bits, normalized) for block in blocks)


def row_nanoseconds(kernel: RowKernel, shape: ProductShape, costs: DeviceCosts, cores: int) -> float:
    """What a product takes, apart from what every dispatch does."""
    groups = math.prod(kernel.groups(shape))
    queue = -(-groups // cores)
    turns = kernel.turns(shape)
    if kernel.bits:
        return _few_bits_nanoseconds(kernel, queue, turns, costs.few_bits)
    resident = _resident(kernel)
    waves = -(-queue // resident)
    narrowness = 1 + costs.row_gap / kernel.columns
    reads = queue * 4 * shape.inner * kernel.columns / 32 * costs.fetch_cycles * narrowness
    stages = kernel.teams.bit_length() * kernel.rows
    late = 0.0
    if turns and groups <= shape.ahead and kernel.steps <= _STEPS_AHEAD:
        share = min(_SHARE_AHEAD * cores * resident / groups, 1.0)  # of workgroups that read ahead
        reads -= share * reads / turns
        if share < 1:
            late = _LATE_CYCLES
        else:
            turns -= 1
    waits = waves * (turns * costs.row_turn_cycles + stages * costs.row_stage_cycles)
    return (reads + waits + late) / costs.cycles_per_nanosecond


def _resident(kernel: RowKernel) -> int:
    """Workgroups that a core has room for: others begin when these have ended, so they read nothing ahead. A guess at
    an invocation's registers: weights, rows and sums. 512 invocations of two steps are alone on an H200's core, of one
    step they aren't."""
    registers = 32 + 4 * kernel.rows + kernel.steps * (16 + 4 * kernel.rows)
    return max(min(_RESIDENT_INVOCATIONS, _REGISTERS // registers) // kernel.invocations, 1)


def _few_bits_nanoseconds(kernel: RowKernel, queue: int, turns: int, costs: FewBitsCosts) -> float:
    """The same of weights of few bits."""
    resident = _RESIDENT_INVOCATIONS / (kernel.invocations * (1 + costs.step_registers * kernel.steps))
    waves = -(-queue // max(int(resident), 1))
    reads = (
        queue * kernel.invocations * turns * kernel.steps * costs.read_nanoseconds * (1 + costs.gap / kernel.columns)
    )
    stages = kernel.teams.bit_length() * kernel.rows
    waits = waves * (turns * costs.turn_nanoseconds + stages * costs.stage_nanoseconds)
    return reads + waits + kernel.steps * costs.step_nanoseconds
