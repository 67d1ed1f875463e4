"""``com.microsoft::GroupQueryAttention``, which exporters write for language models: a cache, rotation, a causal mask.

Source of what it means: ONNX Runtime's ``docs/ContribOperators.md``, and its kernel for the CPU.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from mobopt.frontends.onnx.attention import attended, join_heads, split_heads, turned
from mobopt.frontends.onnx.operands import Operand
from mobopt.frontends.onnx.registry import MICROSOFT, Call, translates

_PAST, _LENGTHS, _COSINES, _PLACES, _BIAS, _SINK = 3, 5, 7, 9, 10, 11
"""Positions of inputs."""


@translates("GroupQueryAttention", domain=MICROSOFT)
def _group_query_attention(call: Call) -> Any:
    emit, dtype = call.emit, call.dtype()
    for name in ("softcap", "smooth_softmax", "qk_output"):
        if call.get(name, 0):
            raise call.unsupported(f"its attribute {name} is set")
    if call.has(_SINK):
        raise call.unsupported("it has a sink for each head (head_sink)")
    q, k, v = _heads(call)
    steps = emit.size(q, 2)
    past = _past_lengths(call, steps)
    places = emit("add.Tensor", emit("unsqueeze", past, 1), emit("arange", steps, dtype=torch.int64))
    if call.get("do_rotary", 0):
        angles = places if not call.has(_PLACES) else emit("to.dtype", call.tensor(_PLACES), torch.int64)
        q, k = (_rotated(call, x, angles) for x in (q, k))
    if call.has(_PAST):
        k, v = (_appended(call, _PAST + index, x, past) for index, x in enumerate((k, v)))
    mask = _mask(call, places, emit.size(k, 2), dtype)
    grouped = call.get("num_heads") != call.get("kv_num_heads")
    result = attended(call, q, k, v, mask, False, call.get("scale"), grouped)
    sizes = call.operand(0).sizes
    outer = (None,) * 3 if sizes is None else (*sizes[:2], sizes[2] if call.has(1) else None)
    found = [Operand(dtype, outer, join_heads(call, result))]
    return [*found, *(Operand(dtype, (None,) * 4, item) for item in (k, v))]


def _heads(call: Call) -> list[Any]:
    """Queries, keys and values, ``batch x heads x steps x width``; one input may hold all three side by side."""
    emit, heads, shared = call.emit, call.get("num_heads"), call.get("kv_num_heads")
    if call.has(1):
        return [split_heads(call, call.tensor(index), heads if index == 0 else shared) for index in range(3)]
    parts = split_heads(call, call.tensor(0), heads + 2 * shared)
    ends = [0, heads, heads + shared, heads + 2 * shared]
    return [emit("slice.Tensor", parts, 1, start, end, 1) for start, end in pairwise(ends)]


def _past_lengths(call: Call, steps: Any) -> Any:
    """How many steps each batch had before these, which is no more than its cache has; the input has its last place."""
    emit, least = call.emit, call.emit("sub.int", steps, 1)
    room = emit.size(call.tensor(_PAST), 2) if call.has(_PAST) else 0
    last = emit("to.dtype", emit("reshape", call.tensor(_LENGTHS), [-1]), torch.int64)
    return emit("sub.Scalar", emit("clamp", last, least, emit("add.int", least, room)), least)


def _rotated(call: Call, x: Any, places: Any) -> Any:
    half = (call.operand(_COSINES).sizes or (None, None))[1]
    if half is None:
        raise call.unsupported("the width of its angles is known at run time only")
    tables = call.tensor(_COSINES), call.tensor(_COSINES + 1)
    heads, shared, hidden = call.get("num_heads"), call.get("kv_num_heads"), (call.operand(0).sizes or (None,))[-1]
    width = 0 if hidden is None else hidden // (heads if call.has(1) else heads + 2 * shared)
    return turned(call, x, tables, places, half, width, bool(call.get("rotary_interleaved", 0)))


def _appended(call: Call, index: int, new: Any, past: Any) -> Any:
    """The cache of each batch with the new steps behind those that it has, and then what is left over."""
    emit, before = call.emit, call.tensor(index)
    whole = emit("cat", [before, new], 2)
    room, count = emit.size(before, 2), emit.size(whole, 2)
    places, past = emit("arange", count, dtype=torch.int64), emit("unsqueeze", past, 1)
    later = emit("clamp_max", emit("add.Scalar", emit("sub.Tensor", places, past), room), emit("sub.int", count, 1))
    chosen = emit("where.self", emit("lt.Tensor", places, past), places, later)
    chosen = emit("unsqueeze", emit("unsqueeze", chosen, 1), 3)
    return emit("gather", whole, 2, emit("expand", chosen, [emit.size(whole, dim) for dim in range(4)]))


def _mask(call: Call, places: Any, count: Any, dtype: torch.dtype) -> Any:
    """What a step sees: those no later than itself, and within the window if there is one."""
    emit = call.emit
    keys, queries = emit("arange", count, dtype=torch.int64), emit("unsqueeze", emit("unsqueeze", places, 1), 3)
    seen = emit("le.Tensor", keys, queries)
    window = call.get("local_window_size", -1)
    if window > 0:
        seen = emit("logical_and", seen, emit("gt.Tensor", keys, emit("sub.Scalar", queries, window)))
    if not call.has(_BIAS):
        return seen
    return emit("where.self", seen, call.tensor(_BIAS), torch.tensor(-torch.inf, dtype=dtype))
