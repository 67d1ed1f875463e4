"""The kernels for products by matrix units whose operands go from memory straight to registers."""

from __future__ import annotations

from dataclasses import dataclass

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.matrix_kernels import FRAGMENT
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape

LINE_HALVES = 32
"""Neighbours of the inner dimension in a step."""
EIGHT = 8
"""Columns that an instruction reads."""


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
    teams: int = 8
    """Subgroups that share an element of the result, within a workgroup."""
    depth: int = 2
    """Steps whose operands are on their way."""
    parts: int = 1
    emulated: bool = False
    reads_ahead: bool = False

    texels = False
    normalized = False
    split = False

    @property
    def shader(self) -> str:
        """The variant's name."""
        return f"product_fragments{'_emulated' if self.emulated else ''}"

    @property
    def block_columns(self) -> int:
        """vec4s of a workgroup."""
        return self.across * self.columns

    @property
    def invocations(self) -> int:
        """Of a workgroup."""
        return 32 * self.across * self.teams

    @property
    def shared_bytes(self) -> int:
        """Of a workgroup: a row of fragments of each subgroup."""
        return 16 * self.across * self.teams * FRAGMENT * (self.columns + 1)

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

    def iterations(self, shape: ProductShape) -> int:
        """How often an invocation goes round its loops."""
        turns = -(-shape.inner // (8 * self.parts * self.teams)) + self.depth
        return turns + -(-self.rows * self.block_columns // self.invocations) + self.rows // FRAGMENT

    def groups(self, shape: ProductShape) -> tuple[int, int, int]:
        """Workgroups of a dispatch."""
        return (-(-shape.columns // self.block_columns), -(-shape.rows // self.rows), shape.batches * self.parts)

    def fits(self, device: DeviceInfo) -> bool:
        """Whether the device's limits allow it."""
        limits = device.limits
        invocations = min(limits.max_compute_work_group_invocations, limits.max_compute_work_group_size[0])
        return self.invocations <= invocations and self.shared_bytes <= limits.max_compute_shared_memory_size
