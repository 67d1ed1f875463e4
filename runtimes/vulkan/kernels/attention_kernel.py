"""Dispatching ``shaders/glsl/attention.comp``: attention without the matrix of scores, for GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, device_costs
from mobopt.runtimes.vulkan.kernels.kernel_access import VECTOR, element_form, spread, writing
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.shaders.push_constants import AttentionPush

BATCH_RANK = 3
"""Dimensions before those of rows and elements."""

_KEY_GROUPS = 8
"""As in the shader: invocations that share a query."""
_MOST_ITERATIONS = 3 * USUAL_ITERATIONS
_LEAST_KEYS = 32
"""Of a workgroup, once several share queries."""
_FILLED = 0.9
"""Workgroups for each core of a device, from which on it is filled."""
_SHAPES = ((256, 4, 1), (128, 4, 2), (128, 2, 1), (128, 1, 1), (64, 1, 1))
"""Invocations, rows and key_quads of blocks, from large to small: of 14 that were measured on an H200, the best for
some size of a network each."""
_SOME_PARTS = 4
"""Workgroups that share queries without having to wait long for each other."""
_MOST_PARTS = 32
"""Workgroups that share queries to fill the device; loops that would be too long are divided into more."""


@dataclass(frozen=True)
class AttentionOperands:
    """Tensors of rank 5, three dimensions of batches first; rows of all but the mask start on vec4s and are dense."""

    query: DeviceTensor
    key: DeviceTensor
    value: DeviceTensor
    mask: DeviceTensor | None
    """Of bools that say which keys count, or of floats that are added to scores."""
    result: DeviceTensor

    @property
    def batches(self) -> int:
        """Attentions that are independent of each other."""
        return math.prod(self.query.sizes[:BATCH_RANK])

    @property
    def inputs(self) -> tuple[DeviceTensor, ...]:
        """What kernels bind; something for the mask too."""
        return (self.query, self.key, self.value, self.query if self.mask is None else self.mask)

    @property
    def mask_kind(self) -> int:
        """As kernels call it: none, of floats, of bools."""
        return 0 if self.mask is None else 2 if self.mask.dtype == torch.bool else 1

    def keys_seen(self, is_causal: bool) -> int:
        """Keys that the last query sees."""
        keys = self.key.sizes[-2]
        return min(keys, self.query.sizes[-2]) if is_causal else keys

    def push_constants(self) -> AttentionPush:
        """Sizes, and where the tensors lie."""
        *bias, column = [0] * (BATCH_RANK + 3) if self.mask is None else [self.mask.offset, *self.mask.strides]
        return AttentionPush(
            batches=self.batches,
            middle_size=self.query.sizes[1],
            inner_size=self.query.sizes[2],
            query_count=self.query.sizes[-2],
            key_count=self.key.sizes[-2],
            query=_in_vectors(self.query),
            key=_in_vectors(self.key),
            value=_in_vectors(self.value),
            place=_in_vectors(self.result),
            bias=bias,
            bias_column=column,
        )


def _in_vectors(tensor: DeviceTensor) -> list[int]:
    """Offset and strides of rows."""
    return [number // VECTOR for number in (tensor.offset, *tensor.strides[:-1])]


@dataclass(frozen=True)
class AttentionBlock:
    """What a workgroup computes."""

    invocations: int
    rows: int
    """Queries of an invocation."""
    key_quads: int
    """vec4s of keys of an invocation, of whose scores it computes a tile at a time."""
    piece: int
    """vec4s of a query or key in a tile."""
    across: int
    """vec4s of the result of an invocation in a row."""
    parts: int = 1
    """Workgroups that divide the keys of the same queries."""

    @property
    def queries(self) -> int:
        """Of a workgroup."""
        return self.rows * self.invocations // _KEY_GROUPS

    @property
    def keys(self) -> int:
        """Of a tile."""
        return 4 * self.key_quads * _KEY_GROUPS

    @property
    def shared_bytes(self) -> int:
        """Tiles of queries, of keys, where weights come to lie, and of values."""
        return 16 * (self.queries * self.piece + self.keys * (self.piece + self.across * _KEY_GROUPS))

    def slices(self, width: int) -> int:
        """Workgroups that divide the elements of values."""
        return -(-width // (VECTOR * self.across * _KEY_GROUPS))

    def blocks(self, operands: AttentionOperands) -> int:
        """Workgroups but for :attr:`parts`."""
        tiles = -(-operands.query.sizes[-2] // self.queries)
        return operands.batches * tiles * self.slices(operands.value.sizes[-1])

    def iterations(self, head: int, keys: int) -> int:
        """How often an invocation goes round the loops."""
        loads = -(-self.keys * self.piece // self.invocations)
        queries = -(-self.queries * self.piece // self.invocations)
        quads = -(-head // VECTOR)
        pieces = -(-quads // self.piece)
        values = -(-self.keys * self.across * _KEY_GROUPS // self.invocations)
        tile = 1 + quads + pieces * (1 + loads + queries) + values + self.keys // VECTOR + self.queries // VECTOR
        return -(-keys // (self.parts * self.keys)) * tile + queries + self.parts

    def fits(self, device: DeviceInfo) -> bool:
        """Whether the device's limits, and the registers of its invocations, allow it."""
        limits = device.limits
        most_sums = device_costs(device).most_sums
        return (
            self.rows * max(self.across, self.key_quads) <= most_sums
            and self.shared_bytes <= device.shared_memory_bytes
            and self.invocations
            <= min(limits.max_compute_work_group_invocations, limits.max_compute_work_group_size[0])
        )


@replayable
def attend(plan: Plan, operands: AttentionOperands, scale: float, is_causal: bool) -> None:
    """Append the dispatch of ``softmax(q k^T scale + mask) v``."""
    block = choose_block(plan.device, operands, is_causal)
    head, width = operands.query.sizes[-1], operands.value.sizes[-1]
    blocks = block.blocks(operands)
    slots = block.rows * (block.across + 1)
    is_divided = block.parts > 1
    sums = plan.empty((blocks * block.parts * slots * block.invocations * VECTOR if is_divided else VECTOR,))
    forms = [element_form(tensor) for tensor in (*operands.inputs, operands.result)]
    plan.dispatch(
        "attention",
        [
            *(writing(operands.result), *map(bind, operands.inputs)),
            *(writing(sums, reads=True), plan.counters(blocks if is_divided else 1)),
        ],
        spread(blocks * block.parts),
        [
            *(block.invocations, block.rows, block.across, head, width, scale),
            *(int(is_causal), operands.mask_kind, block.key_quads, block.parts, *map(int, forms), block.piece),
        ],
        operands.push_constants(),
        iterations=block.iterations(head, operands.keys_seen(is_causal)),
    )


def choose_block(device: DeviceInfo, operands: AttentionOperands, is_causal: bool) -> AttentionBlock:
    """Large tiles, which share more of what they load, as long as the device can be filled by them, some of whose keys
    may be divided; where even small tiles are too few, keys are divided further."""
    cores, keys, head = core_count(device), operands.keys_seen(is_causal), operands.query.sizes[-1]
    candidates = list(_blocks(device, operands)) or [AttentionBlock(device.workgroup(64), 1, 1, 8, 1)]
    most = min(keys // _LEAST_KEYS, _SOME_PARTS)
    enough = _FILLED * cores
    block = next((block for block in candidates if block.blocks(operands) * most >= enough), candidates[-1])
    blocks = block.blocks(operands)
    if blocks * most < enough:
        most, enough = min(keys // (2 * _LEAST_KEYS), _MOST_PARTS), 2 * cores
    elif is_causal:
        enough = 3 * cores  # they differ in length
    parts = 1
    while parts * blocks < enough and 2 * parts <= most:
        parts *= 2
    block = replace(block, parts=parts)
    while block.iterations(head, keys) > _MOST_ITERATIONS and block.parts * block.keys < keys:
        block = replace(block, parts=2 * block.parts)
    return block


def _blocks(device: DeviceInfo, operands: AttentionOperands) -> Iterator[AttentionBlock]:
    """Those that the device can compute well, the largest first."""
    head, quads = operands.query.sizes[-1], -(-operands.value.sizes[-1] // VECTOR)
    for invocations, rows, key_quads in _SHAPES:
        across = min(-(-quads // _KEY_GROUPS), max(device_costs(device).most_sums // rows, 1))
        for piece in (16, 8) if head > VECTOR * 8 else (8,):
            block = AttentionBlock(invocations, rows, key_quads, piece, across)
            is_small = block.queries < 2 * operands.query.sizes[-2] or (invocations, rows) == _SHAPES[-1][:2]
            if is_small and block.fits(device):
                yield block
                break
