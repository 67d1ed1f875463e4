"""Attention of one query over caches, into which its own key and value come in the same dispatch.
``compile/fusion_cached_attention.py`` makes one node of them."""

from __future__ import annotations

import math

from mobopt.ir import Block, Node, Value
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.attention_row_kernel import CachedRows, attend_rows
from mobopt.runtimes.vulkan.kernels.geometry import expanded
from mobopt.runtimes.vulkan.kernels.operand_rows import with_dense_rows
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.rotary_kernel import RotaryJob, journal_of, undo_rows
from mobopt.runtimes.vulkan.lowerings.attention import (
    grouped_by_keys,
    heads_as_queries,
    nests_of,
    operands_of,
    result_of,
    without_repeats,
)
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.runtimes.vulkan.lowerings.rotary import (
    Rotation,
    new_row,
    put_of,
    rotation_of,
    source_of,
    tables_of,
    turned_source,
)

CACHED_ATTENTION = "mobopt::cached_attention"
"""Its body has what turns queries and keys, what puts keys and values into their caches, and attention, which makes the
first of its results; the others are the caches."""


def _rotation_in(body: Block, value: Value) -> Rotation | None:
    """What turns a value, as part of a body."""
    maker = source_of(value)
    return rotation_of(maker) if maker is not None and maker.block is body else None


@lowers(CACHED_ATTENTION, exact=True)
def cached_attention(plan: Plan, node: Node) -> tuple[DeviceTensor, ...]:
    """One dispatch for everything."""
    body = node.blocks[0]
    attention, *makers = [value.producer for value in body.outputs]
    keys, values = map(put_of, makers)
    assert attention is not None and keys is not None and values is not None
    query_turn, key_turn = _rotation_in(body, attention["query"]), _rotation_in(body, keys.source)
    if query_turn is None:
        query = with_dense_rows(plan, plan.tensor(attention["query"]))
    else:
        query = turned_source(plan, query_turn)
    caches = [plan.tensor(plan.in_place[output]) for output in node.outputs[1:]]
    key, value = new_row(plan, keys, key_turn), new_row(plan, values, None)
    turn = query_turn or key_turn
    tables = () if turn is None else tables_of(plan, turn, query.sizes[0], 1)
    mask = [] if attention["attn_mask"] is None else [plan.tensor(attention["attn_mask"])]
    target = result_of(plan, node.outputs[0], beside=True)
    lead, heads = query.sizes[:-2], key.sizes[1]
    mask = [expanded(tensor, (*lead, 1, caches[0].sizes[-2])) for tensor in mask]
    plain = [grouped_by_keys(tensor, lead, heads) for tensor in (target, query, *caches, *mask)]
    rows = [without_repeats(grouped_by_keys(tensor, lead, heads)) for tensor in (key, value, *tables)]
    nests = nests_of([*heads_as_queries(plain), *rows])
    assert nests is not None, "batches and heads are two dimensions"
    operands = operands_of(nests[: -len(rows)])
    key_rows, value_rows, *table_rows = nests[-len(rows) :]
    wraps = keys.wraps and values.wraps  # a place that one of them refuses is refused
    jobs = [
        RotaryJob(source, cache, cache=cache, wraps=wraps) for source, cache in zip((key, value), caches, strict=True)
    ]
    journal = journal_of(plan, jobs)
    place = plan.tensor(keys.index)
    assert journal is not None, "the caches are written to"
    scale = 1 / math.sqrt(query.sizes[-1]) if attention["scale"] is None else float(attention["scale"])
    turns = query_turn is not None, key_turn is not None, turn is not None and turn.of_neighbours
    attend_rows(plan, operands, scale, CachedRows(key_rows, value_rows, table_rows, *turns, place, wraps, journal))
    undo_rows(plan, jobs, place, journal)
    plan.stream.in_place.update(cache.storage for cache in caches)
    return (target, *caches)
