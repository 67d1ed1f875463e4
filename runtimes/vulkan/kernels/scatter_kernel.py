"""Dispatching ``shaders/glsl/scatter.comp``: elements put at places that indices say."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, contiguous_strides
from mobopt.runtimes.vulkan.kernels.copies import strided_copy
from mobopt.runtimes.vulkan.kernels.geometry import expanded, merged
from mobopt.runtimes.vulkan.kernels.kernel_access import element_form, local_size, placed, reading, spread, writing
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.sort_kernel import sorted_lines
from mobopt.runtimes.vulkan.kernels.views import sliced
from mobopt.shaders.enumerations import LoadMode, Negative, Put
from mobopt.shaders.push_constants import OrderedScatterPush, ScatterPush

MAX_SCATTER_RANK = 7
"""Dimensions of the tensors; more do not fit into the push constants."""

_ALONE = 256
"""Elements from which on a line is divided among invocations, where its order makes no difference."""
_MANY_LINES = 2048
"""Lines that keep a device busy, so that none of them needs to be divided."""
_ORDERED = 64
"""Elements of a line from which on its indices are sorted on GPUs: one after the other, each takes an H200 .4 us."""
_OWN_LINES = 512
"""Lines with indices of their own from which on GPUs walk them: by an estimate, sorting so many takes as long."""
_AHEAD = 8
"""Elements of a run of equal indices that are read at once: one after the other, each waits for the memory."""
_RUN = 3 * USUAL_ITERATIONS * _AHEAD
"""Those that a dispatch puts; runs are seldom as long, and each dispatch looks at all."""


@replayable
def scatter_along(
    plan: Plan,
    target: DeviceTensor,
    source: DeviceTensor,
    indices: DeviceTensor,
    dim: int,
    put: Put,
    negative: Negative = Negative.REFUSED,
) -> None:
    """``target[..., indices[i...], ...] = source[i...]`` along ``dim``, or combined with what is there.

    Where indices are equal, elements come in the order of the source, as on the CPU: an invocation walks a line, or, on
    GPUs, a run of equal indices, which are sorted before. An index out of range raises the flag of the run.

    Args:
        plan: where the dispatches go.
        target: what is written; nothing else may lie between its elements.
        source: elements in the sizes of the indices.
        indices: integers; of sizes no larger than the target's but for ``dim``.
        dim: counted from the front.
        put: how equal places are combined.
        negative: what an index below zero means.
    """
    count = indices.sizes[dim]
    lines = math.prod(size for d, size in enumerate(indices.sizes) if d != dim)
    if indices.numel == 0:
        return
    commutes = put in (Put.ADD, Put.LARGEST, Put.SMALLEST) and not target.is_floating
    commutes |= put == Put.REPLACE and not any(source.strides)  # by one number
    commutes &= target.has_words and not any(tensor.is_long for tensor in (source, indices))  # of 32 bits
    if commutes and count >= _ALONE and lines < _MANY_LINES:
        _dispatch(plan, target, source, indices, dim, put, negative, atomic=True)
        return
    own = math.prod(size for d, size in enumerate(indices.sizes) if d != dim and indices.strides[d])
    pays = count >= _ORDERED and own < _OWN_LINES
    if pays and negative == Negative.REFUSED and _is_ordered(plan.device, (target, source, indices)):
        _put_runs(plan, target, source, indices, dim, put)
        return
    for start in range(0, count, USUAL_ITERATIONS):
        length = min(USUAL_ITERATIONS, count - start)
        pieces = [sliced(tensor, dim, start, length) for tensor in (source, indices)]
        _dispatch(plan, target, pieces[0], pieces[1], dim, put, negative, atomic=False)


def _dispatch(
    plan: Plan,
    target: DeviceTensor,
    source: DeviceTensor,
    indices: DeviceTensor,
    dim: int,
    put: Put,
    negative: Negative,
    *,
    atomic: bool,
) -> None:
    tensors = (target, source, indices)
    outer = [d for d in range(indices.rank) if d != dim]
    sizes = [indices.sizes[d] for d in outer]
    strides = [[tensor.strides[d] for d in outer] for tensor in tensors]
    steps = [tensor.strides[dim] for tensor in tensors]
    count = indices.sizes[dim]
    if atomic:
        sizes, strides = [*sizes, count], [[*own, step] for own, step in zip(strides, (0, *steps[1:]), strict=True)]
        count = 1
    nest = merged(sizes, strides, order_by=2 if atomic else 0)
    lines = math.prod(nest.sizes)
    size = local_size(plan.device, lines * count)
    plan.dispatch(
        "scatter_long" if any(tensor.is_long for tensor in tensors) else "scatter",
        [
            writing(target, reads=True),
            reading(source, LoadMode.SINGLES, False),
            reading(indices, LoadMode.SINGLES, False),
            plan.stream.raised_by(),
        ],
        spread(-(-lines // size)),
        [
            size,
            nest.rank,
            element_form(target),
            element_form(source),
            element_form(indices),
            int(put),
            int(not target.is_floating),
            int(negative),
            int(atomic),
        ],
        ScatterPush(nest.sizes, placed(tensors, nest.strides), count, target.sizes[dim], *steps),
        iterations=5 * (nest.rank + 1) + count,
    )


def _is_ordered(device: DeviceInfo, tensors: Sequence[DeviceTensor]) -> bool:
    """Whether equal indices are brought together first. CPUs walk lines faster."""
    return device.kind != "cpu" and not any(tensor.is_long for tensor in tensors)


def _put_runs(
    plan: Plan, target: DeviceTensor, source: DeviceTensor, indices: DeviceTensor, dim: int, put: Put
) -> None:
    """With indices that are sorted, once for all lines that share them: runs of equal ones are put at the same time."""
    shared = [d != dim and not stride for d, stride in enumerate(indices.strides)]
    sizes = [1 if one else size for one, size in zip(shared, indices.sizes, strict=True)]
    keys, places = (
        expanded(lines, indices.sizes)
        for lines in sorted_lines(plan, indices.view(sizes, indices.strides), dim, descending=False)
    )
    tensors = (target, source, keys)
    outer = [d for d in range(indices.rank) if d != dim]
    nest = merged([indices.sizes[d] for d in outer], [[tensor.strides[d] for d in outer] for tensor in tensors])
    count, ends = indices.sizes[dim], (target.sizes[dim], target.strides[dim], source.strides[dim])
    most, ahead = (1, 1) if put == Put.REPLACE else (_RUN, _AHEAD)
    for skipped in range(0, 1 if put == Put.REPLACE else count, most):
        items = math.prod(nest.sizes) * (count - skipped)
        size = local_size(plan.device, items)
        plan.dispatch(
            "scatter_ordered",
            [
                writing(target, reads=True),
                reading(source, LoadMode.SINGLES, False),
                reading(keys, LoadMode.SINGLES, False),
                plan.stream.raised_by(),
                reading(places, LoadMode.SINGLES, False),
            ],
            spread(-(-items // size)),
            [
                *(size, nest.rank, element_form(target), element_form(source), element_form(keys), int(put)),
                *(int(not target.is_floating), int(Negative.REFUSED), most, ahead),
            ],
            OrderedScatterPush(nest.sizes, placed(tensors, nest.strides), count, *ends, skipped=skipped),
            iterations=5 * (nest.rank + 1) + -(-min(most, count - skipped) // ahead),
        )


def updated_copy(
    plan: Plan,
    tensor: DeviceTensor,
    dtype: torch.dtype | None = None,
    order: Sequence[int] | None = None,
    elements: torch.dtype | None = None,
) -> DeviceTensor:
    """A dense copy that may be written to and read back.

    Args:
        plan: where the dispatch goes.
        tensor: what is copied.
        dtype: of the copy; that of the tensor's elements if not given.
        order: the dimensions as they lie in memory, outermost first; their own order if not given.
        elements: the type of what it holds, if that isn't what stands for its dtype.
    """
    dims = range(tensor.rank) if order is None else order
    steps = dict(zip(dims, contiguous_strides([tensor.sizes[d] for d in dims]), strict=True))
    strides = [steps[d] for d in range(tensor.rank)]
    target = plan.empty(tensor.sizes, tensor.dtype if dtype is None else dtype, strides, elements)
    strided_copy(plan, tensor, target, fresh=True)
    return target
