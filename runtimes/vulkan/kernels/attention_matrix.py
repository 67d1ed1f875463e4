"""Dispatching ``shaders/glsl/attention_matrix.comp``: attention by matrix units, of halves, or of floats as two halves
each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.attention_kernel import AttentionOperands
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, device_costs
from mobopt.runtimes.vulkan.kernels.kernel_access import element_form, spread, writing
from mobopt.runtimes.vulkan.kernels.matrix_kernels import (
    EMULATED_FRAGMENT_BYTES,
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
_BOTH_AHEAD = KEYS_AHEAD | VALUES_AHEAD
_RUN = 8
"""Halves that are read at a time."""
MOST_ELEMENTS = 128
"""Of a query or a value, for whose fragments an invocation has registers."""
_NARROW = 64
"""Elements of queries and values, up to which more keys are in a tile."""
_EXTREMES = 16
"""Bytes of what ``split.glsl`` has in shared memory besides."""
_LEAST_QUERIES = 16
"""Of a fragment; fewer leave most of it empty."""
_LEAST_SPLIT_KEYS = 64
"""From so many on, it should pay: 6 heads of 64 with 197 keys took 11 us for 16; below 128 nothing was tried."""
_FILLED = 1.4
"""Workgroups for each core of a device, from which on a block is large enough to be taken."""
_FULL = 0.85
"""How full waves of workgroups are at least where a larger block of halves is taken for that."""
_RESIDENT = 8
"""Subgroups that have room on a core at the same time: most blocks need nearly all registers of an invocation."""


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

    @property
    def shader(self) -> str:
        """The variant's name."""
        return (
            f"attention_matrix{'_split' if self.split else '_bfloat' if self.bfloats else ''}"
            f"{'_emulated' if self.emulated else ''}"
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

    def shared_bytes(self, width: int) -> int:
        """What teams exchange: results in float32, and two numbers of each row. Besides what stands for matrix units,
        and, of floats, the scores of ordinary arithmetic."""
        results = 16 * self._exchanged * SUBGROUP_LANES * self.subgroups + 8 * FRAGMENT * self.high * self.subgroups
        units = EMULATED_FRAGMENT_BYTES * self.subgroups if self.emulated else 0
        plain = 4 * (SUBGROUP_LANES * self.subgroups + width // 4) + _EXTREMES if self.split else 0
        return (results if self.teams > 1 else 24) + units + plain

    def groups(self, operands: AttentionOperands) -> int:
        """Workgroups."""
        return operands.batches * -(-operands.query.sizes[-2] // self.queries)

    def fills_waves(self, operands: AttentionOperands, cores: int) -> bool:
        """Whether few cores have nothing to do while the last workgroups compute."""
        groups, at_once = self.groups(operands), max(_RESIDENT // self.subgroups, 1) * cores
        return groups >= _FULL * -(-groups // at_once) * at_once

    def iterations(self, keys: int, width: int) -> int:
        """How often an invocation goes round the loops."""
        turns = (2 if self.split else 1) * (-(-keys // (self.keys * self.teams)) + 1)
        exchanges = self.high * -(-width // 64) * 8 // self._exchanged if self.teams > 1 else 0
        return turns + exchanges * -(-self._exchanged // self.teams)

    def fits(self, device: DeviceInfo, keys: int, width: int) -> bool:
        """Whether the device's limits allow it."""
        limits = device.limits
        invocations = min(limits.max_compute_work_group_invocations, limits.max_compute_work_group_size[0])
        return (
            SUBGROUP_LANES * self.subgroups <= invocations
            and self.shared_bytes(width) <= device.shared_memory_bytes
            and self.iterations(keys, width) <= USUAL_ITERATIONS
        )


# The largest first. Of halves the first but the last that fills its waves is taken, or of the last two the first that
# gives every core _FILLED workgroups, or the last; of floats the first of all that does, or the last. Blocks have no
# more teams than there are tiles. Measured on an H200: six for halves with ten sizes, and six wide ones with three; 12
# for floats with seven; what is chosen is within 9 % of the best. What is read ahead lies in registers, which two
# rows of fragments and the widest operands need for themselves.
_Blocks = tuple[MatrixAttentionBlock, ...]
_BLOCKS: _Blocks = (
    MatrixAttentionBlock(4, 1, 2, 32),
    MatrixAttentionBlock(2, 2, 2, 32),
    MatrixAttentionBlock(1, 4, 2, 32),
    MatrixAttentionBlock(1, 8, 1, 16, _BOTH_AHEAD),
)
_WIDE_BLOCKS: _Blocks = (
    MatrixAttentionBlock(8, 1, 1, 16, _BOTH_AHEAD),
    MatrixAttentionBlock(4, 2, 1, 16, _BOTH_AHEAD),
    MatrixAttentionBlock(1, 8, 1, 16, _BOTH_AHEAD),
)
_SPLIT_BLOCKS: _Blocks = (
    MatrixAttentionBlock(4, 1, 2, 16),
    MatrixAttentionBlock(2, 4, 1, 16, _BOTH_AHEAD),
    MatrixAttentionBlock(1, 8, 1, 16),
)
_WIDE_SPLIT_BLOCKS: _Blocks = (
    MatrixAttentionBlock(8, 1, 1, 16),
    MatrixAttentionBlock(1, 8, 1, 16),
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
    blocks = [block for block in _blocks(max(head, width), keys, is_emulated, split) if block.fits(device, keys, width)]
    return _chosen(blocks, operands, core_count(device)) if blocks else None


def _chosen(blocks: Sequence[MatrixAttentionBlock], operands: AttentionOperands, cores: int) -> MatrixAttentionBlock:
    """Of those that are possible, the largest first."""
    smaller = blocks
    if not blocks[0].split:
        full = next((block for block in blocks[:-1] if block.fills_waves(operands, cores)), None)
        if full is not None:
            return full
        smaller = blocks[-2:]
    return next((block for block in smaller if block.groups(operands) >= _FILLED * cores), blocks[-1])


def _in_runs(tensor: DeviceTensor) -> bool:
    """Whether a tensor's rows can be read by eight elements."""
    steps = [stride for size, stride in zip(tensor.sizes[:-1], tensor.strides[:-1], strict=True) if size > 1]
    aligned = all(number % _RUN == 0 for number in (tensor.offset, tensor.sizes[-1], *steps))
    return tensor.storage.elements in (torch.float16, torch.bfloat16, torch.float32) and aligned


def _blocks(elements: int, keys: int, emulated: bool, split: bool) -> Iterator[MatrixAttentionBlock]:
    """Those for queries or values of so many elements, the largest first."""
    if elements <= _NARROW:
        blocks = _SPLIT_BLOCKS if split else _BLOCKS
    else:
        blocks = _WIDE_SPLIT_BLOCKS if split else _WIDE_BLOCKS
    for block in blocks:
        yield replace(block, teams=min(block.teams, -(-keys // block.keys)), emulated=emulated, split=split)


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
