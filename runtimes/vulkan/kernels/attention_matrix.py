"""Dispatching ``shaders/glsl/attention_matrix.comp``: attention by matrix units, of halves, or of floats as two halves
each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import MAX_ITERATIONS, USUAL_ITERATIONS, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.attention_kernel import AttentionOperands
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, device_costs
from mobopt.runtimes.vulkan.kernels.kernel_access import element_form, spread, writing
from mobopt.runtimes.vulkan.kernels.matrix_kernels import (
    EMULATED_FRAGMENT_BYTES,
    EMULATED_ITERATIONS,
    EMULATED_UNITS,
    FRAGMENT,
    SUBGROUP_LANES,
    knows_fragments,
    splits,
)
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable

MATRIX_ATTENTION = "attention_matrix"
"""What names of the variants begin with."""
SPLIT_ATTENTION = f"{MATRIX_ATTENTION}_split"
"""The same of those for floats."""
KEYS_AHEAD, VALUES_AHEAD = 1, 2
"""What a subgroup reads while it computes the tile before."""
_RUN = 8
"""Halves that are read at a time."""
MOST_ELEMENTS = 128
"""Of a query or a value, for whose fragments an invocation has registers."""
_NARROW = 64
"""Elements of queries and values, up to which a subgroup has registers for two rows of fragments."""
_EXTREMES = 16
"""Bytes of what ``split.glsl`` has in shared memory besides."""
_LEAST_QUERIES = 16
"""Of a fragment; fewer leave most of it empty."""
_LEAST_SPLIT_KEYS = 64
"""From so many on, it should pay: 6 heads of 64 with 197 keys took 11 us for 16; below 128 nothing was tried."""
_MOST_PADDED = 1.15
"""How many rows a block computes at most for each of the one with the fewest."""


@dataclass(frozen=True)
class MatrixAttentionBlock:
    """What a workgroup computes."""

    query_groups: int
    """Of subgroups that have different queries."""
    teams: int
    """Subgroups of such a group, which divide the tiles of keys."""
    high: int
    """Rows of fragments of a subgroup."""
    keys: int
    """Of a tile."""
    ahead: int = 0
    """:data:`KEYS_AHEAD`, :data:`VALUES_AHEAD`, or both together."""
    emulated: bool = False
    split: bool = False
    """Whether operands are floats, each of which becomes two halves (``split.glsl``)."""
    bfloats: bool = False
    """Whether they are halves of bfloat16."""
    staged: bool = False
    """Whether keys and values come by way of shared memory, each tile while the one before is computed."""

    @property
    def shader(self) -> str:
        """The variant's name."""
        return (
            f"attention_matrix{'_split' if self.split else '_bfloat' if self.bfloats else ''}"
            f"{'_staged' if self.staged else ''}{'_emulated' if self.emulated else ''}"
        )

    @property
    def subgroups(self) -> int:
        """Of a workgroup."""
        return self.query_groups * self.teams

    @property
    def queries(self) -> int:
        """Of a workgroup."""
        return FRAGMENT * self.high * self.query_groups

    @property
    def _exchanged(self) -> int:
        """vec4s of an invocation that teams exchange at a time."""
        return 4 if self.emulated else 8

    def _staged_bytes(self, head: int, width: int) -> int:
        """Of two tiles of keys and values, or of all queries, which have the place of both at first."""
        key, value = (16 * (2 * -(-elements // FRAGMENT) + 1) for elements in (head, width))
        parts = 2 if self.split else 1
        return max(2 * parts * self.keys * (key + value), self.queries * key)

    def shared_bytes(self, head: int, width: int) -> int:
        """What is staged, or what teams exchange: results in float32, and two numbers of each row. Besides what stands
        for matrix units, and, of floats, the scores of ordinary arithmetic."""
        results = 16 * self._exchanged * SUBGROUP_LANES * self.subgroups + 8 * FRAGMENT * self.high * self.subgroups
        units = EMULATED_FRAGMENT_BYTES * self.subgroups if self.emulated else 0
        plain = 4 * (SUBGROUP_LANES * self.subgroups + width // 4) + _EXTREMES if self.split else 0
        pool = self._staged_bytes(head, width) + 8 if self.staged else results if self.teams > 1 else 24
        return pool + units + plain

    def groups(self, operands: AttentionOperands) -> int:
        """Workgroups."""
        return operands.batches * -(-operands.query.sizes[-2] // self.queries)

    def rows(self, operands: AttentionOperands) -> int:
        """Queries of all workgroups, also those that aren't there."""
        return self.groups(operands) * self.queries

    def iterations(self, keys: int, width: int) -> int:
        """How often an invocation goes round the loops."""
        turns = (2 if self.split else 1) * (-(-keys // (self.keys * self.teams)) + 1)
        exchanges = self.high * -(-width // 64) * 8 // self._exchanged if self.teams > 1 else 0
        return turns + exchanges * -(-self._exchanged // self.teams)

    def fits(self, device: DeviceInfo, keys: int, head: int, width: int) -> bool:
        """Whether the device's limits allow it."""
        limits = device.limits
        invocations = min(limits.max_compute_work_group_invocations, limits.max_compute_work_group_size[0])
        return (
            SUBGROUP_LANES * self.subgroups <= invocations
            and self.shared_bytes(head, width) <= device.shared_memory_bytes
            and self.iterations(keys, width) <= USUAL_ITERATIONS
            and not (self.emulated and self._emulated_iterations(keys, head, width) > MAX_ITERATIONS)
        )

    def _emulated_iterations(self, keys: int, head: int, width: int) -> int:
        """How often an invocation goes round the loops of products that are emulated: of each tile of keys, scores and
        what is added to results."""
        products = self.high * -(-self.keys // FRAGMENT) * (-(-head // FRAGMENT) + -(-width // FRAGMENT))
        tiles = -(-keys // (self.keys * self.teams))
        return tiles * products * (3 if self.split else 1) * EMULATED_ITERATIONS


# Of few queries: teams divide the keys, so that more cores have something to do.
_FEW = MatrixAttentionBlock(1, 8, 1, 16, KEYS_AHEAD | VALUES_AHEAD)
_FEW_SPLIT = MatrixAttentionBlock(1, 8, 1, 16, split=True)
# Of more, with how many workgroups a core has at least where a block is taken; the first that has them, and room in
# shared memory. Measured on an H200, up to ten blocks for halves with each of 24 sizes, up to nine for floats with 21:
# of halves what is chosen is within 10 % of the best, of floats within 13 %.
_STAGED = (
    (MatrixAttentionBlock(4, 1, 2, 32, staged=True), 1.9),
    (MatrixAttentionBlock(8, 1, 1, 32, staged=True), 0.9),
    (MatrixAttentionBlock(4, 1, 1, 32, staged=True), 0.0),
)
_STAGED_SPLIT = (
    (MatrixAttentionBlock(8, 1, 1, 32, staged=True, split=True), 0.4),
    (MatrixAttentionBlock(4, 1, 1, 32, staged=True, split=True), 0.0),
    (MatrixAttentionBlock(8, 1, 1, 16, staged=True, split=True), 0.0),
)


def matrix_block(
    device: DeviceInfo, operands: AttentionOperands, scale: float, is_causal: bool, *, split: bool = False
) -> MatrixAttentionBlock | None:
    """The block by which matrix units compute attention of halves, or of floats that may be rounded to them; with
    ``split``, of floats that may not. None where they don't."""
    head, width = operands.query.sizes[-1], operands.value.sizes[-1]
    is_emulated = EMULATED_UNITS in device.switches
    if not knows_fragments(device, device_costs(device)) or max(head, width) > MOST_ELEMENTS:
        return None
    keys = operands.keys_seen(is_causal)
    if split and not (splits(device) and (is_emulated or keys >= _LEAST_SPLIT_KEYS)):
        return None
    if scale <= 0 or operands.query.sizes[-2] < _LEAST_QUERIES or not all(map(_in_runs, operands.inputs[:3])):
        return None
    for block in _blocks(operands, core_count(device), split):
        block = replace(block, teams=min(block.teams, -(-keys // block.keys)), emulated=is_emulated)
        if block.fits(device, keys, head, width):
            return block
    return None


def _blocks(operands: AttentionOperands, cores: int, split: bool) -> Iterator[MatrixAttentionBlock]:
    """Those that suit so many cores, the best first."""
    few = _FEW_SPLIT if split else _FEW
    if few.groups(operands) <= cores:
        yield few
    elements = max(operands.query.sizes[-1], operands.value.sizes[-1])
    staged = _STAGED_SPLIT if split else _STAGED
    fewest = min(block.rows(operands) for block, _ in staged)
    for block, least in staged:
        fills = block.groups(operands) >= least * cores and block.rows(operands) <= _MOST_PADDED * fewest
        if (fills or not least) and (block.high == 1 or elements <= _NARROW):
            yield block
    yield few


def _in_runs(tensor: DeviceTensor) -> bool:
    """Whether a tensor's rows can be read by eight elements."""
    steps = [stride for size, stride in zip(tensor.sizes[:-1], tensor.strides[:-1], strict=True) if size > 1]
    aligned = all(number % _RUN == 0 for number in (tensor.offset, tensor.sizes[-1], *steps))
    return tensor.storage.elements in (torch.float16, torch.bfloat16, torch.float32) and aligned


@replayable
def attend_by_matrix_units(
    plan: Plan, operands: AttentionOperands, block: MatrixAttentionBlock, scale: float, is_causal: bool
) -> None:
    """Append the dispatch of ``softmax(q k^T scale + mask) v``."""
    block = replace(block, bfloats=not block.split and operands.query.storage.elements == torch.bfloat16)
    head, width = operands.query.sizes[-1], operands.value.sizes[-1]
    *inputs, mask = operands.inputs
    forms = [element_form(tensor) for tensor in (mask, operands.result, *inputs)]
    plan.dispatch(
        block.shader,
        [writing(operands.result), *map(bind, operands.inputs)],
        spread(block.groups(operands)),
        [
            *(SUBGROUP_LANES * block.subgroups, block.high, block.keys, head, width, scale),
            *(int(is_causal), operands.mask_kind, *map(int, forms), block.teams, block.ahead),
        ],
        operands.push_constants(),
        iterations=block.iterations(operands.keys_seen(is_causal), width),
    )
