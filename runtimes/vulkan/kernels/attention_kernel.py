"""Dispatching ``shaders/glsl/attention.comp``: attention without the matrix of scores, for GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.device_costs import core_count
from mobopt.runtimes.vulkan.kernels.kernel_access import VECTOR, element_form, spread, words, writing
from mobopt.runtimes.vulkan.kernels.plan import Plan

BATCH_RANK = 3
"""Dimensions before those of rows and elements."""

_GROUP, _KEY_GROUPS, _KEYS, _PIECE = 128, 8, 32, 16
"""As in the shader: invocations of a workgroup, those that share a query, keys of a tile, vec4s of a key in a tile."""

_MOST_CHUNKS = 4
_MOST_SUMS = 8
"""Chunks of all queries of an invocation together, which stay in registers."""

_MOST_ITERATIONS = 3 * USUAL_ITERATIONS


@dataclass(frozen=True)
class AttentionOperands:
    """Tensors of rank 5, three dimensions of batches first; rows of all but the mask start on vec4s and are dense."""

    query: DeviceTensor
    key: DeviceTensor
    value: DeviceTensor
    mask: DeviceTensor | None
    """Of bools that say which keys count, or of floats that are added to scores."""
    result: DeviceTensor


def attend(plan: Plan, operands: AttentionOperands, scale: float, is_causal: bool) -> None:
    """Append the dispatches of ``softmax(q k^T scale + mask) v``: one, unless there are very many keys."""
    query, key, value, mask, result = (
        operands.query,
        operands.key,
        operands.value,
        operands.mask,
        operands.result,
    )
    batches, count, head = math.prod(query.sizes[:BATCH_RANK]), query.sizes[-2], query.sizes[-1]
    width = value.sizes[-1]
    quads = -(-width // VECTOR)
    chunks = min(-(-quads // _PIECE), _MOST_CHUNKS)
    parts = -(-quads // (chunks * _PIECE))
    rows = _rows(plan.device, batches * parts, count, chunks)
    groups = batches * parts * -(-count // (rows * _GROUP // _KEY_GROUPS))
    keys = min(key.sizes[-2], count) if is_causal else key.sizes[-2]
    tile_iterations = _tile_iterations(head, chunks)
    ranges = list(_ranges(keys, tile_iterations))
    is_divided = len(ranges) > 1
    sums = plan.empty((batches * count * quads * VECTOR if is_divided else VECTOR,))
    stats = plan.empty((batches * count * parts * (_KEY_GROUPS + 1) if is_divided else VECTOR,))
    handed_on = [writing(sums, reads=True), writing(stats, reads=True)]
    kind = 0 if mask is None else 2 if mask.dtype == torch.bool else 1
    bias = query if mask is None else mask
    inputs = [bind(tensor) for tensor in (query, key, value, bias)]
    forms = [element_form(tensor) for tensor in (query, key, value, bias, result)]
    geometry = [number for tensor in (query, key, value, result) for number in _quads_of(tensor)]
    geometry += [0] * (BATCH_RANK + 3) if mask is None else [mask.offset, *mask.strides]
    for begin, end in ranges:
        stages = [int(begin == 0), int(end == keys)]
        plan.dispatch(
            "attention",
            [writing(result), *inputs, *handed_on],
            spread(groups),
            [_GROUP, rows, chunks, head, width, scale, int(is_causal), kind, *stages, *map(int, forms)],
            words([batches, query.sizes[1], query.sizes[2], count, begin, end, *geometry]),
            iterations=-(-(end - begin) // _KEYS) * tile_iterations + _KEY_GROUPS + 2 * chunks,
        )


def _quads_of(tensor: DeviceTensor) -> list[int]:
    """Offset and strides in vec4s, without that of the elements of a row."""
    return [number // VECTOR for number in (tensor.offset, *tensor.strides[:-1])]


def _tile_iterations(head: int, chunks: int) -> int:
    """How often an invocation goes round the loops of a tile of keys."""
    loads = _KEYS * _PIECE // _GROUP
    quads = -(-head // VECTOR)
    return quads + -(-quads // _PIECE) * (loads + 1) + _KEY_GROUPS + chunks * (loads + _KEYS + 1)


def _ranges(keys: int, tile_iterations: int) -> Iterator[tuple[int, int]]:
    """The keys of each dispatch."""
    each = max(_MOST_ITERATIONS // tile_iterations, 1) * _KEYS
    for begin in range(0, keys, each):
        yield begin, min(begin + each, keys)


def _rows(device: DeviceInfo, batches: int, count: int, chunks: int) -> int:
    """Queries of an invocation: many share what a workgroup loads, few leave more workgroups."""
    for rows in (4, 2):
        tile = rows * _GROUP // _KEY_GROUPS
        shared = 16 * _PIECE * (_KEYS + 1) + 4 * tile * (_KEYS + 1 + _KEY_GROUPS)
        fits = rows * chunks <= _MOST_SUMS and shared <= device.limits.max_compute_shared_memory_size
        if fits and batches * -(-count // tile) >= core_count(device):
            return rows
    return 1
