"""Dispatching ``shaders/glsl/attention_row.comp``: attention of few queries, as a decoder asks for each token."""

from __future__ import annotations

from dataclasses import dataclass

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import bind
from mobopt.runtimes.vulkan.kernels.attention_kernel import AttentionOperands
from mobopt.runtimes.vulkan.kernels.device_costs import core_count
from mobopt.runtimes.vulkan.kernels.kernel_access import VECTOR, element_form, spread, writing
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable

MOST_QUERIES = 8
"""Each has workgroups of its own, which read all keys; more share what they read by another kernel."""
_MOST_QUADS = 32
"""vec4s of a query, and of a value: registers hold a quarter of them."""
_INVOCATIONS = 256
_SHARERS = 4
"""Invocations that share the product with a key."""
_MOST_PARTS = 32
_GROUPS_PER_CORE = 2


@dataclass(frozen=True)
class AttentionRow:
    """What a workgroup computes."""

    invocations: int
    lanes: int
    """Invocations that share a value."""
    turns: int
    """Tiles of keys of a workgroup."""
    parts: int
    """Workgroups that divide the keys of a query."""

    @property
    def iterations(self) -> int:
        """How often an invocation goes round the loops."""
        return self.turns + self.invocations // self.lanes + self.parts


def row_of(device: DeviceInfo, operands: AttentionOperands, is_causal: bool) -> AttentionRow | None:
    """How the keys are divided; None where queries are too many, or too long."""
    queries, keys = operands.query.sizes[-2], operands.key.sizes[-2]
    head, width = (-(-tensor.sizes[-1] // VECTOR) for tensor in (operands.query, operands.value))
    if is_causal or queries > MOST_QUERIES or max(head, width) > _MOST_QUADS:
        return None
    invocations = device.workgroup(_INVOCATIONS)
    lanes = max(1 << (width - 1).bit_length(), _SHARERS)
    tiles = -(-keys // (invocations // _SHARERS))
    wanted = -(-_GROUPS_PER_CORE * core_count(device) // (operands.batches * queries))
    turns = -(-tiles // max(min(wanted, tiles, _MOST_PARTS), 1))
    return AttentionRow(invocations, lanes, turns, -(-tiles // turns))


@replayable
def attend_rows(plan: Plan, operands: AttentionOperands, row: AttentionRow, scale: float) -> None:
    """Append the dispatch of ``softmax(q k^T scale + mask) v``."""
    head, width = operands.query.sizes[-1], operands.value.sizes[-1]
    queries = operands.batches * operands.query.sizes[-2]
    is_divided = row.parts > 1
    sums = plan.empty((queries * row.parts * (row.lanes + 1) * VECTOR if is_divided else VECTOR,))
    forms = [int(element_form(tensor)) for tensor in (*operands.inputs, operands.result)]
    plan.dispatch(
        "attention_row",
        [
            *(writing(operands.result), *map(bind, operands.inputs)),
            *(writing(sums, reads=True), plan.counters(queries if is_divided else 1)),
        ],
        spread(queries * row.parts),
        [row.invocations, row.lanes, head, width, scale, operands.mask_kind, row.parts, *forms],
        operands.push_constants(),
        iterations=row.iterations,
    )
