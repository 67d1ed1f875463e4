"""Dispatching ``shaders/glsl/attention_matrix.comp``: attention by matrix units, of halves, or of floats as two halves
each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.attention_kernel import AttentionOperands
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, device_costs
from mobopt.runtimes.vulkan.kernels.kernel_access import element_form, spread, writing
from mobopt.runtimes.vulkan.kernels.matrix_kernels import EMULATED_UNITS, FRAGMENT, splits, units_lanes
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable

MATRIX_ATTENTION = "attention_matrix"
"""What names of the variants begin with."""
SPLIT_ATTENTION = f"{MATRIX_ATTENTION}_split"
"""The same of those for floats."""
_LANES = 32
"""Of the subgroups that the kernel is written for."""
_RUN = 8
"""Halves that are read at a time."""
_MOST_ELEMENTS = 128
"""Of a query or a value, for whose fragments an invocation has registers."""
_EXTREMES = 16
"""Bytes of what ``split.glsl`` has in shared memory besides."""
_FEW_SUBGROUPS = 4
_LEAST_SPLIT_KEYS = 256
"""From so many on, splitting floats pays: 6 heads of 64 with 197 keys took 21 us for 19, 16 with 256 keys 37 for 43."""
_LEAST_QUERIES = 16
"""Of a fragment; fewer leave most of it empty."""


@dataclass(frozen=True)
class MatrixAttentionBlock:
    """What a workgroup computes."""

    subgroups: int
    high: int
    """Rows of fragments of a subgroup."""
    keys: int
    """Of a tile."""
    emulated: bool = False
    split: bool = False
    """Whether operands are floats, each of which becomes two halves (``split.glsl``)."""

    @property
    def shader(self) -> str:
        """The variant's name."""
        return f"attention_matrix{'_split' if self.split else ''}{'_emulated' if self.emulated else ''}"

    @property
    def queries(self) -> int:
        """Of a workgroup."""
        return FRAGMENT * self.high * self.subgroups

    def shared_bytes(self, head: int, width: int) -> int:
        """Tiles of keys, values, queries and weights, or results in float32."""
        key_pitch, value_pitch = (2 * -(-size // FRAGMENT) + 1 for size in (head, width))
        operands = 2 if self.split else 1
        weights = self.queries * max(self.keys // _RUN + 1, 5)
        queries = operands * self.queries * key_pitch
        tiles = operands * self.keys * (key_pitch + value_pitch)
        shared = tiles + operands * weights + queries if self.emulated else max(tiles + weights, queries)
        results = self.subgroups * FRAGMENT * (2 * value_pitch - 1)
        return 16 * max(shared, results) + 16 * self.queries + (_EXTREMES if self.split else 0)

    def groups(self, operands: AttentionOperands) -> int:
        """Workgroups."""
        return operands.batches * -(-operands.query.sizes[-2] // self.queries)

    def iterations(self, keys: int, head: int, width: int) -> int:
        """How often an invocation goes round the loops."""
        queries = -(-self.queries * head // (_RUN * self.subgroups * _LANES))
        return -(-keys // self.keys) + queries + self.high * (FRAGMENT * width // (4 * _LANES) + 1) + 2


def matrix_block(
    device: DeviceInfo, operands: AttentionOperands, scale: float, is_causal: bool, *, split: bool = False
) -> MatrixAttentionBlock | None:
    """The block by which matrix units compute attention of halves, or of floats that may be rounded to them; with
    ``split``, of floats that may not. None where they don't."""
    head, width = operands.query.sizes[-1], operands.value.sizes[-1]
    if units_lanes(device, device_costs(device)) != _LANES or max(head, width) > _MOST_ELEMENTS:
        return None
    is_emulated = EMULATED_UNITS in device.switches
    keys = operands.keys_seen(is_causal)
    if split and not (splits(device) and (keys >= _LEAST_SPLIT_KEYS or is_emulated)):
        return None
    if scale <= 0 or operands.query.sizes[-2] < _LEAST_QUERIES or not all(map(_in_runs, operands.inputs[:3])):
        return None
    blocks = [
        block
        for block in _blocks(is_emulated, split)
        if block.shared_bytes(head, width) <= device.limits.max_compute_shared_memory_size
        and block.iterations(keys, head, width) <= USUAL_ITERATIONS
    ]
    large = blocks[0] if blocks and blocks[0].groups(operands) >= core_count(device) else None
    if split:
        return large or next((block for block in blocks if block.subgroups <= _FEW_SUBGROUPS), None)
    return large or next(iter(blocks[1:] or blocks), None)


def _in_runs(tensor: DeviceTensor) -> bool:
    """Whether a tensor's rows can be read by eight elements."""
    steps = [stride for size, stride in zip(tensor.sizes[:-1], tensor.strides[:-1], strict=True) if size > 1]
    aligned = all(number % _RUN == 0 for number in (tensor.offset, tensor.sizes[-1], *steps))
    return tensor.storage.elements in (torch.float16, torch.float32) and aligned


def _blocks(emulated: bool, split: bool) -> Iterator[MatrixAttentionBlock]:
    """The largest first. Of 20 that were measured on an H200, and 7 of floats on an H100, the best for some size of a
    network each; the smallest are for devices with less shared memory."""
    for subgroups, keys in ((8, 32), (4, 32), (1, 32)) if split else ((8, 64), (4, 64), (4, 32), (1, 32)):
        yield MatrixAttentionBlock(subgroups, 1, keys, emulated, split)


@replayable
def attend_by_matrix_units(
    plan: Plan, operands: AttentionOperands, block: MatrixAttentionBlock, scale: float, is_causal: bool
) -> None:
    """Append the dispatch of ``softmax(q k^T scale + mask) v``."""
    head, width = operands.query.sizes[-1], operands.value.sizes[-1]
    *inputs, mask = operands.inputs
    forms = [element_form(tensor) for tensor in (mask, operands.result, *inputs)]
    plan.dispatch(
        block.shader,
        [writing(operands.result), *map(bind, operands.inputs)],
        spread(block.groups(operands)),
        [
            *(_LANES * block.subgroups, block.high, block.keys, head, width, scale),
            *(int(is_causal), operands.mask_kind, *map(int, forms)),
        ],
        operands.push_constants(),
        iterations=block.iterations(operands.keys_seen(is_causal), head, width),
    )
