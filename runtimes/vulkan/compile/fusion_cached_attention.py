"""Folds what a decoder does with the newest row of keys and values, before attention, into attention."""

from __future__ import annotations

from collections.abc import Collection, Container

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import dissolve, enclose, made_only_for
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.attention_row_kernel import may_attend_rows
from mobopt.runtimes.vulkan.kernels.matrix_kernels import EMULATED_UNITS
from mobopt.runtimes.vulkan.kernels.rotary_kernel import may_rotate
from mobopt.runtimes.vulkan.lowerings.cached_attention import CACHED_ATTENTION
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported
from mobopt.runtimes.vulkan.lowerings.rotary import ROTARY, is_same_rows, put_of, source_of

NO_CACHED_ATTENTION = "no-cached-attention"
"""The switch by which rows come into their caches before attention."""


def fold_cached_attention(
    graph: Graph, device: DeviceInfo, on_host: Container[Node], in_place: Collection[Value]
) -> None:
    """Let attention of one query turn it, and put its key and value into caches that are written to.

    Given:
        %q1 : Float(1, 4, 1, 8), %keys1 : Float(1, 2, 16, 8), %values1 : Float(1, 2, 16, 8) = mobopt::rotary()
          ...
        %y : Float(1, 4, 1, 8) = aten::scaled_dot_product_attention(%q1, %keys1, %values1, %mask, ...)
    Result:
        %y : Float(1, 4, 1, 8), %keys1 : Float(1, 2, 16, 8), %values1 : Float(1, 2, 16, 8) = mobopt::cached_attention()
          ...

    The query may also be one that nothing turns.
    """
    is_for_products = device.is_cpu and EMULATED_UNITS not in device.switches
    if not in_place or is_for_products or not may_rotate(device) or NO_CACHED_ATTENTION in device.switches:
        return
    for node in list(graph.block.nodes):
        if node.qualified_op == "aten::scaled_dot_product_attention" and node not in on_host:
            _fold(node, in_place)


def _fold(attention: Node, in_place: Collection[Value]) -> None:
    rotary = attention["key"].producer
    if rotary is None or rotary.op != ROTARY or not _suits(attention, rotary, in_place):
        return
    keys, values = attention["key"], attention["value"]
    others = [value for value in rotary.outputs if value not in (keys, values)]
    steps = _steps_to(attention, others[0]) if others else []
    if len(others) > 1 or steps is None or not _is_first_reader(attention, rotary, steps):
        return
    parts = [*dissolve(rotary), *steps, attention]
    ends = [attention, keys.producer, values.producer]
    enclose(parts, CACHED_ATTENTION, ends=[end for end in ends if end is not None])


def _suits(attention: Node, rotary: Node, in_place: Collection[Value]) -> bool:
    """Whether the kernel for few queries computes it, and keys and values are caches that the same node writes to."""
    query, key, value = (attention[name] for name in ("query", "key", "value"))
    if key is value or value.producer is not rotary or not (key in in_place and value in in_place):
        return False
    if attention["is_causal"] or query.rank != 4 or query.sizes[-2] != 1 or why_unsupported(attention) is not None:
        return False
    if not key.rank == value.rank == 4 or key.sizes[:2] != value.sizes[:2] or 0 in (*query.sizes, *key.sizes):
        return False
    heads, shared = key.sizes[1], query.sizes[1] // key.sizes[1]
    is_grouped = query.sizes[1] == heads * (shared if attention["enable_gqa"] else 1)
    is_plain = not _is_turned(rotary, rotary.outputs.index(value)) and query.sizes[0] == key.sizes[0]
    return is_grouped and is_plain and may_attend_rows(shared, query.sizes[-1], value.sizes[-1])


def _is_turned(rotary: Node, number: int) -> bool:
    """Whether what comes into a cache, one of the results, is turned before."""
    put = put_of(rotary.blocks[0].outputs[number].producer)
    maker = None if put is None else source_of(put.source)
    return maker is not None and maker.block is rotary.blocks[0]


def _steps_to(attention: Node, turned: Value) -> list[Node] | None:
    """Views that make the query of what was turned, in order; None if it is another one, or also read elsewhere."""
    steps: list[Node] = []
    query, reader = attention["query"], attention
    while query is not turned:
        maker = made_only_for(query, reader)
        if maker is None or not is_same_rows(maker):
            return None
        steps.insert(0, maker)
        query, reader = maker.args[0], maker
    return steps if made_only_for(turned, reader) is not None else None


def _is_first_reader(attention: Node, rotary: Node, steps: list[Node]) -> bool:
    """Whether nothing reads what a node made before attention does."""
    readers = {user for value in rotary.outputs for user, _ in value.uses if user not in (attention, *steps)}
    block = attention.block
    return all(user is block.returns or attention.is_before(user) for user in readers) if block is not None else False
