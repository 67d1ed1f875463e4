"""Dispatching ``shaders/glsl/attention_row.comp``: attention of few queries, as a decoder asks for each token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.attention_kernel import BATCH_RANK, AttentionOperands
from mobopt.runtimes.vulkan.kernels.device_costs import core_count
from mobopt.runtimes.vulkan.kernels.kernel_access import VECTOR, element_form, spread, writing
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable

MOST_QUERIES = 8
"""More share what they read by another kernel."""
_MOST_QUADS = 32
"""vec4s of a query, and of a value: registers hold a part of them."""
_INVOCATIONS = 256
_MOST_ROWS = 4
"""Of a workgroup."""
_SHARERS = (4, 8)
"""Invocations that share the product with a key: the more, the fewer keys has a tile, and the more workgroups there
are, which is better where they are less than one for each core."""
_LEAST_GROUPS_PER_CORE = 0.75
_MOST_PARTS = 32
_MOST_OWN_PARTS = 8
"""Parts whose sums an invocation reads in the end: all at once, in registers."""
_GROUPS_PER_CORE = 2.0
_LONG_TURNS = 3
"""From so many tiles a workgroup of one query on, large workgroups are faster, fewer than there are cores: 428 us for
444 of two layers of GPT-2's shape with 32 heads and 4,096 keys (H200)."""
_INVOCATIONS_OF_LONG = 1024
_LANES_OF_LONG = 16
"""With more an invocation has more registers than there are for so many."""
_GROUPS_PER_CORE_OF_LONG = 0.75


@dataclass(frozen=True)
class AttentionRow:
    """What a workgroup computes."""

    invocations: int
    lanes: int
    """Invocations that share a value: of each query one for each vec4."""
    rows: int
    """Queries."""
    sharers: int
    """Invocations that share the product with a key."""
    keeps: bool = False
    """Whether values stay in the registers of those that read them; of one query only."""
    turns: int = 1
    """Tiles of keys of a workgroup."""
    parts: int = 1
    """Workgroups that divide the keys."""

    @property
    def keys(self) -> int:
        """Of a tile."""
        return self.invocations // self.sharers

    @property
    def slices(self) -> int:
        """Invocations that share a vec4 of the result."""
        return self.invocations // (self.rows * self.lanes)

    @property
    def iterations(self) -> int:
        """How often an invocation goes round the loops."""
        return self.turns + 2 * self.slices + self.rows

    def shared_bytes(self, head: int, width: int) -> int:
        """Of a workgroup, with a new row."""
        queries = (self.rows + 1) * -(-head // VECTOR) + -(-width // VECTOR)
        values = self.invocations if self.keeps else self.keys * self.lanes
        shares = self.rows * self.sharers * (self.keys + 32 // self.sharers)
        return 16 * (queries + values) + 4 * (shares + self.rows * self.keys + 2 * self.rows * self.slices + 1)

    def divided(self, keys: int, wanted: float) -> AttentionRow:
        """With keys among about as many workgroups as are wanted for each of what it computes."""
        tiles = -(-keys // self.keys)
        most = min(_MOST_PARTS, _MOST_OWN_PARTS * self.slices)
        turns = -(-tiles // max(min(math.ceil(wanted), tiles, most), 1))
        return replace(self, turns=turns, parts=-(-tiles // turns))


def may_attend_rows(queries: int, head: int, width: int) -> bool:
    """Whether queries are few enough, and not too long.

    Args:
        queries: those that share keys.
        head: elements of a query.
        width: elements of a value.
    """
    return queries <= MOST_QUERIES and max(head, width) <= _MOST_QUADS * VECTOR


def row_of(device: DeviceInfo, operands: AttentionOperands) -> AttentionRow:
    """How queries and keys are divided; see :func:`may_attend_rows`."""
    queries, keys = operands.query.sizes[-2], operands.key.sizes[-2]
    head, width = operands.query.sizes[-1], operands.value.sizes[-1]
    cores = core_count(device) / operands.batches
    for sharers in _SHARERS:
        row = _undivided(device, queries, head, width, _INVOCATIONS, sharers)
        groups = -(-queries // row.rows)
        if groups * -(-keys // row.keys) >= _LEAST_GROUPS_PER_CORE * cores:
            break
    usual = row.divided(keys, _GROUPS_PER_CORE * cores / groups)
    if usual.turns < _LONG_TURNS or queries > 1 or row.lanes > _LANES_OF_LONG or device.is_cpu:
        return usual
    large = _undivided(device, queries, head, width, _INVOCATIONS_OF_LONG, _SHARERS[-1], keeps=True)
    return large.divided(keys, _GROUPS_PER_CORE_OF_LONG * cores / groups)


def _undivided(
    device: DeviceInfo,
    queries: int,
    head: int,
    width: int,
    invocations: int,
    least_sharers: int,
    keeps: bool = False,
) -> AttentionRow:
    """As many queries as a workgroup has room for, with the largest tiles of these."""
    # The kernel's divisions leave nothing over, and one query's value has an invocation for each vec4.
    invocations = max(1 << device.workgroup(invocations).bit_length() - 1, _MOST_QUADS)
    limit = device.shared_memory_bytes
    quads = 1 << (-(-width // VECTOR) - 1).bit_length()
    rows = min(1 << (queries - 1).bit_length(), _MOST_ROWS)
    while True:
        sharers = least_sharers
        while sharers <= _MOST_QUADS:
            row = AttentionRow(invocations, max(quads, sharers), rows, sharers, keeps)
            if row.slices and row.shared_bytes(head, width) <= limit:
                return row
            sharers *= 2
        rows //= 2


@dataclass(frozen=True, eq=False)
class CachedRows:
    """The newest row of keys and values, which comes into their caches as part of attention. Tensors are nests as those
    of :class:`AttentionOperands`; the caches are its keys and values, dense and of float32."""

    key: DeviceTensor
    value: DeviceTensor
    tables: Sequence[DeviceTensor]
    """Cosines and sines of rotary positions, of the first elements of a row; none if nothing is turned."""
    is_query_turned: bool
    is_key_turned: bool
    of_neighbours: bool
    """Whether neighbours are turned, in place of halves."""
    place: DeviceTensor
    """The row of the caches, of int32; the run's flag is raised where caches have no such row."""
    wraps: bool
    """Whether places below zero count from the caches' end."""
    journal: DeviceTensor
    """Where the rows go that are written over."""

    @property
    def inputs(self) -> tuple[DeviceTensor, ...]:
        """What the kernel binds as nests; something for tables, too."""
        cosines, sines = self.tables or (self.key, self.key)
        return self.key, self.value, cosines, sines

    @property
    def constants(self) -> list[int]:
        """The last specialization constants of the kernel: those of ``attention_cache.glsl``."""
        forms = sum(int(element_form(tensor)) << 3 * number for number, tensor in enumerate(self.inputs))
        nests = [number // VECTOR for tensor in self.inputs for number in (tensor.offset, *tensor.strides[:BATCH_RANK])]
        turned = self.tables[0].sizes[-1] // VECTOR if self.tables else 0
        kinds = (int(self.is_query_turned), int(self.is_key_turned), turned, int(self.wraps))
        return [*kinds, self.place.offset, forms, *nests, int(self.of_neighbours)]


@replayable
def attend_rows(plan: Plan, operands: AttentionOperands, scale: float, rows: CachedRows | None = None) -> None:
    """Append the dispatch of ``softmax(q k^T scale + mask) v``, with what comes into caches before."""
    row = row_of(plan.device, operands)
    head, width = operands.query.sizes[-1], operands.value.sizes[-1]
    groups = operands.batches * -(-operands.query.sizes[-2] // row.rows)
    is_divided = row.parts > 1
    sums = plan.empty((groups * row.parts * row.rows * (row.lanes + 1) * VECTOR if is_divided else VECTOR,))
    forms = [int(element_form(tensor)) for tensor in (*operands.inputs, operands.result)]
    query, key, value, mask = operands.inputs
    caches = [bind(cache) if rows is None else writing(cache, reads=True) for cache in (key, value)]
    counters = plan.counters(groups if is_divided else 1)
    bindings = [writing(operands.result), bind(query), *caches, bind(mask), writing(sums, reads=True), counters]
    if rows is not None:
        bindings += [*map(bind, rows.inputs), bind(rows.place), plan.stream.raised_by(), writing(rows.journal)]
    plan.dispatch(
        "attention_row" if rows is None else "attention_row_cached",
        bindings,
        spread(groups * row.parts),
        [
            *(row.invocations, row.lanes, head, width, scale, operands.mask_kind, row.parts, *forms),
            *(row.rows, row.sharers, int(row.keeps)),
            *([] if rows is None else rows.constants),
        ],
        operands.push_constants(),
        iterations=row.iterations,
    )
