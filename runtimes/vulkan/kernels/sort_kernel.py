"""Dispatching ``shaders/glsl/sort.comp`` and ``search.comp``: stable orders of lines, and places in sorted lines."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, contiguous_strides
from mobopt.runtimes.vulkan.kernels.geometry import merged
from mobopt.runtimes.vulkan.kernels.kernel_access import element_form, local_size, placed, reading, spread, writing
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.shaders.enumerations import LoadMode
from mobopt.shaders.push_constants import MergePush, SearchPush, SortPush

MAX_SEARCH_RANK = 6
"""Dimensions that fit into the push constants."""

_BLOCK = 32
_HALVINGS = 32
"""An upper bound of the rounds of a binary search."""
_WAYS, _CPU_WAYS = 4, 2
"""Runs that are merged at once: what an element does grows with them, and each pass waits for the one before. On an
H200 four are the fastest, of 1,000 elements as of 3 million."""


def sorted_places(plan: Plan, tensor: DeviceTensor, dim: int, *, descending: bool) -> DeviceTensor:
    """For each place of the sorted lines along ``dim`` where its element was; equal elements keep their order.

    NaN counts as larger than all. The result is int64, in the sizes of the tensor.
    """
    return replace(sorted_lines(plan, tensor, dim, descending=descending)[1], dtype=torch.int64)


def sorted_lines(plan: Plan, tensor: DeviceTensor, dim: int, *, descending: bool) -> tuple[DeviceTensor, DeviceTensor]:
    """The keys of the sorted lines along ``dim``, and where they were: integers, those of each line side by side.

    Keys of integers are the integers, if ``descending`` their complements; of 64 bits, if they have them.
    """
    outer = [d for d in range(tensor.rank) if d != dim]
    sizes = [tensor.sizes[d] for d in outer]
    length, count = tensor.sizes[dim], tensor.numel
    key = torch.int64 if tensor.is_long else torch.int32
    keys, places = plan.empty((count,), key, elements=key), plan.empty((count,), torch.int32)
    size = local_size(plan.device, count)
    nest = merged(sizes, [[tensor.strides[d] for d in outer]], order_by=None)
    if count:
        plan.dispatch(
            "sort_long" if tensor.is_long else "sort",
            [writing(keys), writing(places), reading(tensor, LoadMode.SINGLES, False)],
            spread(-(-count // size)),
            [size, nest.rank, element_form(tensor), int(not tensor.is_floating), int(descending), _BLOCK],
            SortPush(nest.sizes, (tensor.offset, *nest.strides[0]), count, length, tensor.strides[dim]),
            iterations=_BLOCK + nest.rank,
        )
    width = _BLOCK
    while width < length and count:
        runs = -(-length // width)
        ways = min(_CPU_WAYS if plan.device.is_cpu else _WAYS, 1 << (runs - 1).bit_length())
        merged_keys, merged_places = plan.empty((count,), key, elements=key), plan.empty((count,), torch.int32)
        plan.dispatch(
            "sort_merge_long" if tensor.is_long else "sort_merge",
            [
                *(writing(made) for made in (merged_keys, merged_places)),
                *(reading(old, LoadMode.SINGLES, False) for old in (keys, places)),
            ],
            spread(-(-count // size)),
            [size, ways],
            MergePush(count, length, width),
            iterations=_HALVINGS * (ways + 1) + 2 * ways,
        )
        keys, places = merged_keys, merged_places
        width *= ways
    steps = dict(zip([*outer, dim], contiguous_strides([*sizes, length]), strict=True))
    strides = tuple(steps[d] for d in range(tensor.rank))
    return keys.view(tensor.sizes, strides), places.view(tensor.sizes, strides)


@replayable
def places_in(
    plan: Plan,
    lines: DeviceTensor,
    values: DeviceTensor,
    target: DeviceTensor,
    length: int,
    stride: int,
    *,
    right: bool,
) -> None:
    """How many elements of a sorted line are less than each value, or, if ``right``, not greater.

    Args:
        plan: where the dispatch goes.
        lines: where the line of each value begins, in the sizes of the values.
        values: of the dtype of the lines.
        target: of 32-bit integers, in the sizes of the values.
        length: elements of a line.
        stride: along a line.
        right: which end of a run of equal elements is meant.
    """
    if not target.numel:
        return
    nest = merged(target.sizes, [target.strides, lines.strides, values.strides])
    items = math.prod(nest.sizes)
    size = local_size(plan.device, items)
    plan.dispatch(
        "search_long" if lines.is_long or values.is_long else "search",
        [writing(target), reading(lines, LoadMode.SINGLES, False), reading(values, LoadMode.SINGLES, False)],
        spread(-(-items // size)),
        [size, nest.rank, element_form(lines), element_form(values), int(not values.is_floating), int(right)],
        SearchPush(nest.sizes, placed((target, lines, values), nest.strides), length, stride),
        iterations=_HALVINGS + 5 * (nest.rank + 1),
    )
