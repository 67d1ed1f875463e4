"""Instructions of kernels that come from memory before they are needed.

The weights of a large network drive the instructions of its kernels out of the device's cache from call to call, and
the first dispatch of each pipeline waits for them: 1 to 5 us in kernels whose loops are long (H100, by clocks inside of
them). Dispatches that wait by counters (``chains.py``) leave cores idle meanwhile. So some steps earlier one workgroup
runs the same kernel on no rows and no columns: it reads nothing but weights, writes nothing, and nobody waits for it.
What else it read might be written to meanwhile, and lines of it would stay in a core's cache as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mobopt import shaders
from mobopt.runtimes.vulkan.engine.hazards import Barrier, GpuOperation
from mobopt.runtimes.vulkan.engine.pipelines import PipelineKey
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.shaders.push_constants import ProductPush

_STEPS = 8
"""Between that workgroup and the dispatch whose kernel it runs: with 4 as much was gained, but for ConvNeXt-tiny."""
_LEAST_PLACE = 2
"""Of a dispatch for which there is time before it."""
_INNER = 128
"""vec4s of the inner dimension, at most: some turns of the loop."""
_MOST_WORK = 1 << 25
"""Of a product: rows times vec4s of columns times vec4s of the inner dimension, 1 GFLOP. Larger ones keep all cores
busy, so such a workgroup would keep others off one: ResNet50 took 2 % longer at batch 8."""
RESTING_SOURCES = frozenset({"product_fragments.comp", "product_matrix.comp"})
"""Kernels with long loops, that do nothing where a product has no rows and no columns."""


def plan_code_ahead(
    operations: Sequence[GpuOperation], barriers: Sequence[Barrier | None], keys: Mapping[Dispatch, PipelineKey]
) -> dict[int, list[Dispatch]]:
    """Dispatches whose kernels' instructions are to be read, by the number of the operation after which.

    Args:
        operations: of one submission.
        barriers: before each.
        keys: the pipelines of dispatches.
    """
    found: dict[int, list[Dispatch]] = {}
    met: set[PipelineKey] = set()
    for number, operation in enumerate(operations):
        if not isinstance(operation, Dispatch) or keys[operation] in met:
            continue
        met.add(keys[operation])
        if number < _LEAST_PLACE or not _is_worth_it(operation, keys[operation]):
            continue
        places = range(max(0, number - _STEPS), number)
        # A barrier that comes next would wait for it.
        place = next((place for place in places if barriers[place + 1] is None), None)
        if place is not None:
            found.setdefault(place, []).append(operation)
    return found


def _is_worth_it(dispatch: Dispatch, key: PipelineKey) -> bool:
    if not key.layout.is_chained or shaders.variants()[key.shader].source not in RESTING_SOURCES:
        return False
    push = ProductPush.unpack(dispatch.push_constants)
    return push.rows * push.columns * push.inner * push.taps_high * push.taps_wide <= _MOST_WORK


def emptied(dispatch: Dispatch) -> Dispatch:
    """One workgroup of a product that has no rows, no columns, and little between them."""
    push = ProductPush.unpack(dispatch.push_constants)
    inner = max(2, _INNER // (push.taps_high * push.taps_wide) // 2 * 2)
    push = replace(push, rows=0, columns=0, inner=min(push.inner, inner))
    return replace(dispatch, groups=(1, 1, 1), push_constants=push.pack())
