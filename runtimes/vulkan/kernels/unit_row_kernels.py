"""The kernel for products of a few rows by weights of 4 bits with matrix units, and how its blocks are chosen.

It takes a device whose units have fragments in the order that the shader knows, and weights that are constants, whose
scales hold for at least 32 neighbours of the inner dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS
from mobopt.runtimes.vulkan.kernels.costs import CORE_INVOCATIONS, CORE_REGISTERS, DeviceCosts, UnitRowCosts
from mobopt.runtimes.vulkan.kernels.fragment_kernels import takes_fragments
from mobopt.runtimes.vulkan.kernels.matrix_kernels import EMULATED_FRAGMENT_BYTES, EMULATED_UNITS, SUBGROUP_LANES
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.row_kernels import MOST_ROWS
from mobopt.shaders import is_built

_SHADER = "product_row_units"
_SCHEDULERS = 4
"""Of a core."""
# Of an invocation, as the driver says of nine of these kernels (an H200): beside weights, and for a block of a tile.
_OTHER_REGISTERS = 38
_TILE_REGISTERS = 8
_TILE = 4
"""vec4s of columns that a subgroup multiplies at a time."""
EIGHT = 8
"""vec4s of the inner dimension that have the same power of two, and must have the same scale."""
_BLOCK = 2 * EIGHT
"""Of which a subgroup reads 512 bytes of weights of a tile."""
_BITS = 4
"""Of weights: those of 8 were right on an H200, too, but nobody has measured what they take."""


@dataclass(frozen=True)
class UnitRowKernel:
    """``product_row_units.comp``: a workgroup computes a few rows of ``tiles`` of 16 columns."""

    rows: int
    tiles: int
    """Of 16 columns."""
    teams: int
    """Subgroups that share an element of the result."""
    steps: int
    """Blocks of 64 lines of each tile that a subgroup reads at a time: a power of two."""
    inner: int = 0
    """vec4s of the inner dimension, rounded up to whole blocks: a workgroup has all of its rows in shared memory."""
    emulated: bool = False
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
        return f"product_row_units{'_normalized' if self.normalized else ''}{'_emulated' if self.emulated else ''}"

    @property
    def invocations(self) -> int:
        """Of a workgroup."""
        return SUBGROUP_LANES * self.teams

    @property
    def group_columns(self) -> int:
        """vec4s of columns of a workgroup."""
        return _TILE * self.tiles

    @property
    def shared_bytes(self) -> int:
        """Of a workgroup: halves of the rows, what they count, and the sums of each team."""
        rows = 2 * 16 * (self.inner // 2 + 4) + self.inner
        emulated = (EMULATED_FRAGMENT_BYTES + 2 * 8 * SUBGROUP_LANES) * self.teams if self.emulated else 0
        return self.rows * (rows + self.teams * (16 * self.group_columns + 8)) + emulated

    @property
    def constants(self) -> tuple[int, ...]:
        """Specialization constants from 12 on."""
        return (
            *(self.rows, self.tiles, self.teams, self.steps, self.invocations),
            *(int(self.reads_ahead), int(self.gated), self.inner),
        )

    @property
    def group_rows(self) -> int:
        """Rows of a workgroup."""
        return self.rows

    @property
    def resident(self) -> int:
        """Workgroups that a core has room for at once, about."""
        registers = _OTHER_REGISTERS + _TILE_REGISTERS * self.steps * self.tiles
        return max(1, min(CORE_REGISTERS // registers, CORE_INVOCATIONS) // self.invocations)

    def turns(self, shape: ProductShape) -> int:
        """How often an invocation reads weights."""
        return -(-shape.inner // (_BLOCK * self.teams * self.steps))

    def iterations(self, shape: ProductShape) -> int:
        """How often an invocation goes round its loops: over rows, and over weights."""
        return self.turns(shape) + 2 * -(-self.inner // self.invocations)

    def groups(self, shape: ProductShape) -> tuple[int, int, int]:
        """Workgroups of a dispatch."""
        return (-(-shape.columns // self.group_columns), -(-shape.rows // self.rows), 1)

    def fits(self, device: DeviceInfo) -> bool:
        """Whether the device's limits allow it."""
        limits = device.limits
        invocations = min(limits.max_compute_work_group_invocations, limits.max_compute_work_group_size[0])
        return self.invocations <= invocations and self.shared_bytes <= device.shared_memory_bytes


# Of 30 that were measured on H200s in four layers of a decoder, sizes of which are 2048, 5632 and 32000.
BLOCKS = tuple(
    UnitRowKernel(1, tiles, teams, steps)
    for tiles, teams, steps in ((1, 8, 1), (1, 8, 2), (1, 16, 1), (1, 16, 2), (3, 16, 1), (2, 8, 2), (4, 8, 1))
)


def unit_row_kernels(device: DeviceInfo, costs: DeviceCosts, shape: ProductShape) -> Iterator[UnitRowKernel]:
    """Every such kernel that can compute a product on a device; none where they aren't used."""
    emulated = EMULATED_UNITS in device.switches
    fits = shape.fits_fragments and shape.is_plain and 0 < shape.rows <= MOST_ROWS and shape.inner > 0
    if shape.bits != _BITS or not fits or not takes_fragments(device, costs):
        return
    if not emulated and (costs.unit_rows is None or not is_built(_SHADER)):
        return
    rows, inner = 1 << (shape.rows - 1).bit_length(), -(-shape.inner // _BLOCK) * _BLOCK
    for block in BLOCKS:
        kernel = replace(block, rows=rows, inner=inner, emulated=emulated, normalized=shape.is_normalized)
        if kernel.fits(device) and kernel.iterations(shape) <= USUAL_ITERATIONS:
            yield kernel


def unit_row_nanoseconds(kernel: UnitRowKernel, shape: ProductShape, costs: DeviceCosts, cores: int) -> float:
    """What a product takes, apart from what every dispatch does."""
    own = costs.unit_rows or _EMULATED
    across, down, _ = kernel.groups(shape)
    queue, turns = -(-across * down // cores), kernel.turns(shape)
    # A core's four schedulers are busy if each has several subgroups.
    subgroups = max(queue * kernel.teams / _SCHEDULERS, own.least_subgroups)
    walk = turns * kernel.steps * kernel.tiles * subgroups * own.block_cycles / costs.cycles_per_nanosecond
    waves = -(-queue // kernel.resident)
    return walk + turns * own.turn_nanoseconds + waves * own.start_nanoseconds


_EMULATED = UnitRowCosts(*(1.0,) * 4)
"""Of ordinary arithmetic, beside which nothing else counts."""
