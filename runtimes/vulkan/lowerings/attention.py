"""Attention: on GPUs one kernel that never stores the scores; on CPU drivers, and with heads too wide for the registers
of matrix units, products and a softmax, for some queries at a time where the scores of all would be many."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.attention_kernel import BATCH_RANK, AttentionOperands, attend
from mobopt.runtimes.vulkan.kernels.attention_matrix import (
    MOST_ELEMENTS,
    MatrixAttentionBlock,
    attend_by_matrix_units,
    matrix_block,
)
from mobopt.runtimes.vulkan.kernels.attention_row_kernel import attend_rows, may_attend_rows
from mobopt.runtimes.vulkan.kernels.copies import copied
from mobopt.runtimes.vulkan.kernels.geometry import Iteration, expanded, merged
from mobopt.runtimes.vulkan.kernels.matrix_kernels import EMULATED_UNITS, multiplies, splits
from mobopt.runtimes.vulkan.kernels.operand_rows import has_dense_rows, row_strides, rows_of_batches, with_dense_rows
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute_into
from mobopt.runtimes.vulkan.kernels.pointwise_program import Kind, ProgramBuilder
from mobopt.runtimes.vulkan.kernels.views import sliced, swapped
from mobopt.runtimes.vulkan.lowerings.checks import check_floating
from mobopt.runtimes.vulkan.lowerings.creation import fill
from mobopt.runtimes.vulkan.lowerings.matmul import append_batches, factors_of_batches
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.runtimes.vulkan.lowerings.softmax import softmax_into
from mobopt.runtimes.vulkan.lowerings.wanted_layout import wanted_strides
from mobopt.shaders.enumerations import Opcode, Quotient

_LONG = 1024
"""From so many queries and keys on, CPU drivers never keep the scores of all queries at once."""
_MOST_SCORES = 2**25
"""Nor do they, or GPUs, keep more than these."""
_SCORES = 2**22
"""Scores that CPU drivers keep at once where they can't keep all."""
_LEAST_QUERIES = 32


def check_attention(call: Node) -> str | None:
    """Floats of at most 32 bits, without dropout."""
    reason = check_floating(call)
    query, key, value = (call[name] for name in ("query", "key", "value"))
    if reason is not None:
        return reason
    if call["dropout_p"] > 0:
        return "dropout draws random numbers; trace or script the model after eval()"
    if query.sizes[-1] == 0:
        return "queries have no elements"
    if call["enable_gqa"] and (query.rank < 3 or key.sizes[-3] != value.sizes[-3] or key.sizes[-3] == 0):
        return "keys and values have no heads, or not as many"
    return None


@lowers("aten::scaled_dot_product_attention", check=check_attention)
def attention(plan: Plan, call: Node) -> DeviceTensor:
    """``softmax(q k^T scale + mask) v``."""
    query, key, value = (plan.tensor(call[name]) for name in ("query", "key", "value"))
    mask = None if call["attn_mask"] is None else plan.tensor(call["attn_mask"])
    scale = 1 / math.sqrt(query.sizes[-1]) if call["scale"] is None else float(call["scale"])
    in_products = _computes_products(plan.device, query, value)
    lead = call.output.sizes[:-2]
    target = result_of(plan, call.output, beside=not in_products or math.prod(lead[:-1]) == 1)
    if target.numel == 0 or key.sizes[-2] == 0:
        fill(plan, target, 0.0, fresh=True)
        return target
    heads = key.sizes[-3] if call["enable_gqa"] else lead[-1] if lead else 1
    tensors = [with_dense_rows(plan, tensor) for tensor in (query, key, value)]
    if mask is not None:
        tensors.append(expanded(mask, (*lead, query.sizes[-2], key.sizes[-2])))
    grouped = [grouped_by_keys(tensor, lead, heads) for tensor in (target, *tensors)]
    if query.sizes[-2] == 1 and not call["is_causal"]:
        grouped = heads_as_queries(grouped)
    operands = operands_of(_nests(plan, grouped))
    if in_products:
        _in_products(plan, operands, scale, call["is_causal"])
    elif not call["is_causal"] and _are_few(operands):
        attend_rows(plan, operands, scale)
    elif block := _matrix_block(plan, call, operands, scale):
        attend_by_matrix_units(plan, operands, block, scale, call["is_causal"])
    else:
        attend(plan, operands, scale, call["is_causal"])
    return target


def _computes_products(device: DeviceInfo, query: DeviceTensor, value: DeviceTensor) -> bool:
    """Whether scores are stored: attention of heads that matrix units take in products alone is faster so, as a VAE's
    of 512 elements."""
    if device.is_cpu and EMULATED_UNITS not in device.switches:
        return True
    if max(query.sizes[-1], value.sizes[-1]) <= MOST_ELEMENTS or query.sizes[-2] == 1:
        return False
    elements = query.storage.elements
    return splits(device) if elements == torch.float32 else multiplies(device, elements)


def _are_few(operands: AttentionOperands) -> bool:
    """Whether the kernel for few queries takes them."""
    queries, head = operands.query.sizes[-2:]
    return may_attend_rows(queries, head, operands.value.sizes[-1])


def _matrix_block(plan: Plan, call: Node, operands: AttentionOperands, scale: float) -> MatrixAttentionBlock | None:
    """The block by which matrix units compute it, of halves or of floats that are split; None where they don't."""
    elements = operands.query.storage.elements
    is_alike = all(tensor.storage.elements == elements for tensor in operands.inputs[:3])
    in_halves = is_alike and multiplies(plan.device, elements)
    block = matrix_block(plan.device, operands, scale, call["is_causal"]) if in_halves else None
    return block or matrix_block(plan.device, operands, scale, call["is_causal"], split=True)


def result_of(plan: Plan, output: Value, *, beside: bool) -> DeviceTensor:
    """Where the result goes, in rows of whole vec4s; ``beside`` puts heads beside each other, as models join them."""
    *outer, rows, columns = output.sizes
    if not outer or not beside:
        return plan.own_result(output, output.sizes, row_strides(output.sizes))
    *outer, heads = outer
    steps = row_strides((*outer, rows, heads, columns))
    strides = (*steps[:-3], steps[-2], steps[-3], 1)
    return plan.own_result(output, output.sizes, wanted_strides(output, strides, has_dense_rows) or strides)


def grouped_by_keys(tensor: DeviceTensor, lead: Sequence[int], heads: int) -> DeviceTensor:
    """A view expanded to batches of ``lead``, whose last dimension becomes two: the ``heads`` of keys, and queries'
    heads that share one."""
    rows = tensor.sizes[-2:]
    if not lead:
        return tensor
    shared = lead[-1] // heads
    if tensor.rank > 2 and tensor.sizes[-3] == lead[-1]:
        size, step = shared, tensor.strides[-3]
    else:
        size, step = 1, tensor.strides[-3] if tensor.rank > 2 else 0
    own = tensor.sizes[-3] // size if tensor.rank > 2 else 1
    sizes = (*tensor.sizes[:-3], own, size, *rows)
    strides = (*tensor.strides[:-3], step * size, step if size > 1 else 0, *tensor.strides[-2:])
    return expanded(tensor.view(sizes, strides), (*lead[:-1], heads, shared, *rows))


def heads_as_queries(tensors: Sequence[DeviceTensor]) -> list[DeviceTensor]:
    """Single queries of the heads that share keys as the queries of one head: result, query, and maybe the mask turned,
    key and value as they are, but for the heads that only repeat them."""
    if tensors[0].rank < 4:
        return list(tensors)
    result, query, key, value, *mask = tensors
    result, query, *mask = (swapped(tensor, -2, -3) for tensor in (result, query, *mask))
    return [result, query, without_repeats(key), without_repeats(value), *mask]


def without_repeats(tensor: DeviceTensor) -> DeviceTensor:
    """Keys or values of the first of the heads that share them."""
    return sliced(tensor, tensor.rank - 3, 0, 1)


def _nests(plan: Plan, tensors: Sequence[DeviceTensor]) -> list[DeviceTensor]:
    """Tensors of equal batches with three dimensions of these, the first of which is written to."""
    found = nests_of(tensors)
    if found is None:
        found = nests_of([tensors[0], *(copied(plan, tensor, row_strides(tensor.sizes)) for tensor in tensors[1:])])
        assert found is not None, "the batches of a dense result are one run"
    return found


def nests_of(tensors: Sequence[DeviceTensor]) -> list[DeviceTensor] | None:
    """The same without copies; None where batches don't lie in so few dimensions."""
    nest = _batches_of(tensors)
    if nest.rank > BATCH_RANK:
        return None
    ones = [1] * (BATCH_RANK - nest.rank)
    return [
        tensor.view((*ones, *nest.sizes, *tensor.sizes[-2:]), (*[0] * len(ones), *strides, *tensor.strides[-2:]))
        for tensor, strides in zip(tensors, nest.strides, strict=True)
    ]


def operands_of(nests: Sequence[DeviceTensor]) -> AttentionOperands:
    """Result, query, key, value, and maybe the mask."""
    result, query, key, value, *mask = nests
    return AttentionOperands(query, key, value, mask[0] if mask else None, result)


def _batches_of(tensors: Sequence[DeviceTensor]) -> Iteration:
    return merged(tensors[0].sizes[:-2], [tensor.strides[:-2] for tensor in tensors], order_by=None)


@replayable
def _in_products(plan: Plan, operands: AttentionOperands, scale: float, is_causal: bool) -> None:
    """Scores by one product, their softmax, and its product with the values, for some queries at a time."""
    query, value = (rows_of_batches(plan, tensor, BATCH_RANK) for tensor in (operands.query, operands.value))
    *lead, keys, head = operands.key.sizes
    turned = operands.key.view((*lead, head, keys), (*operands.key.strides[:BATCH_RANK], 1, operands.key.strides[-2]))
    key, value_factors = (
        factors_of_batches(plan, rows_of_batches(plan, turned, BATCH_RANK)),
        factors_of_batches(plan, value),
    )
    result = rows_of_batches(plan, operands.result, BATCH_RANK)
    added = None if operands.mask is None else _added(plan, operands.mask)
    batches, count, _ = query.sizes
    step = _queries_at_once(plan.device, batches, count, keys)
    elements = query.storage.elements
    for first in range(0, count, step):
        rows = min(step, count - first)
        seen = min(keys, first + rows) if is_causal else keys
        scores = plan.empty((batches, rows, seen), torch.float32, row_strides((batches, rows, seen)))
        residual = None
        if added is not None:
            part = sliced(sliced(added, BATCH_RANK, first, rows), BATCH_RANK + 1, 0, seen)
            residual = rows_of_batches(plan, part, BATCH_RANK)
        append_batches(plan, sliced(query, 1, first, rows), key, scores, scale, residual)
        if is_causal and first < seen:
            _hide_later(plan, sliced(scores, 2, first, seen - first))
        weights = plan.empty(scores.sizes, torch.float32, scores.strides, elements)
        softmax_into(plan, scores, weights, (2,), Quotient.SAFE)
        append_batches(plan, weights, value_factors, sliced(result, 1, first, rows))


def _queries_at_once(device: DeviceInfo, batches: int, count: int, keys: int) -> int:
    """Of how many queries the scores are kept at once."""
    if (min(count, keys) < _LONG or not device.is_cpu) and batches * count * keys <= _MOST_SCORES:
        return count
    scores = _SCORES if device.is_cpu else _MOST_SCORES
    return min(max(scores // (batches * keys) // 4 * 4, _LEAST_QUERIES), count)


def _added(plan: Plan, mask: DeviceTensor) -> DeviceTensor:
    """What a mask adds to scores, in rows of whole vec4s, expanded as the mask is."""
    own = mask.view(
        [1 if stride == 0 else size for size, stride in zip(mask.sizes, mask.strides, strict=True)], mask.strides
    )
    target = plan.empty(own.sizes, torch.float32, row_strides(own.sizes))
    builder = ProgramBuilder()
    value = builder.tensor(own)
    if mask.dtype == torch.bool:
        numbers = (builder.scalar(number, Kind.FLOAT) for number in (0.0, -math.inf))
        value = builder.step(Opcode.SELECT, value, *numbers)
    compute_into(plan, builder, value, target, fresh=True)
    return expanded(target, mask.sizes)


def _hide_later(plan: Plan, scores: DeviceTensor) -> None:
    """Take away from scores (batches, queries, keys), both from the same number on, those of keys after the query."""
    sizes = scores.sizes[1:]
    hidden = plan.packed((), ("later keys", *sizes), lambda: torch.full(sizes, -math.inf).triu(1))
    builder = ProgramBuilder()
    value = builder.step(Opcode.ADD, builder.tensor(scores), builder.tensor(hidden.view(sizes, (sizes[1], 1))))
    compute_into(plan, builder, value, scores)
