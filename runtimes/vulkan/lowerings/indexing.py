"""Elements chosen by a tensor of indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from mobopt.ir import Node
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, StorageKind, contiguous_strides
from mobopt.runtimes.vulkan.kernels.copies import copied
from mobopt.runtimes.vulkan.kernels.geometry import broadcast_sizes, expanded, merged, normalized_dim
from mobopt.runtimes.vulkan.kernels.kernel_access import (
    VECTOR,
    is_vector_run,
    load_mode,
    local_size,
    placed,
    read_access,
    reading,
    spread,
    uses_texels,
    write_access,
    writing,
)
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute
from mobopt.runtimes.vulkan.kernels.pointwise_program import Kind, ProgramBuilder
from mobopt.runtimes.vulkan.lowerings.checks import OUT_OF_RANGE, check_dtypes, constants_within
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.shaders.enumerations import LoadMode, Negative, Opcode
from mobopt.shaders.push_blocks import PUSH_CONSTANT_WORDS
from mobopt.shaders.push_constants import SelectAlongPush

_ANY_LENGTH = 2**30
"""Stands for the length of a dimension where indices have been checked already."""


@replayable
def select_along(
    plan: Plan,
    target: DeviceTensor,
    data: DeviceTensor,
    indices: DeviceTensor,
    length: int,
    stride: int,
    negative: Negative,
) -> None:
    """``target[i...] = data[i... + stride * indices[i...]]`` in elements; ``data`` and ``indices`` have the target's
    sizes.

    ``length`` is the size of the dimension that the indices choose from. Indices that are computed are checked by the
    kernel; constants have been looked at by :func:`check_indices`.
    """
    if target.numel == 0:
        return
    nest = merged(target.sizes, [target.strides, data.strides, indices.strides])
    if nest.rank * 4 + 5 > PUSH_CONSTANT_WORDS:
        indices = copied(plan, indices, contiguous_strides(indices.sizes))
        nest = merged(target.sizes, [target.strides, data.strides, indices.strides])
    index_mode = LoadMode.SPLAT if nest.strides[2][-1] == 0 else LoadMode.SINGLES
    mode = load_mode(data.offset, (stride, *nest.strides[1])) if index_mode == LoadMode.SPLAT else LoadMode.SINGLES
    whole = nest.sizes[-1] % VECTOR == 0
    if not whole and mode == LoadMode.VECTOR:
        mode = LoadMode.SINGLES
    operands = [(data, mode), (indices, index_mode)]
    long = data.is_long or indices.is_long
    texels = not long and uses_texels(plan.device, operands)
    items = math.prod(nest.sizes[:-1]) * -(-nest.sizes[-1] // VECTOR)
    size = local_size(plan.device, items)
    stores = whole and is_vector_run(target.offset, nest.strides[0])
    bindings = [writing(target), *(reading(tensor, each, texels) for tensor, each in operands)]
    chosen = target.numel * data.elements.itemsize  # wherever in the storage it lies
    bindings[1] = replace(bindings[1], touched_bytes=chosen)
    checked = indices.storage.kind is not StorageKind.CONSTANT and length < _ANY_LENGTH
    plan.dispatch(
        f"select_along{'_checked' if checked else ''}{'_long' if long else '_texels' if texels else ''}",
        [*bindings, plan.stream.raised_by()] if checked else bindings,
        spread(-(-items // size)),
        [
            size,
            nest.rank,
            read_access(data, mode),
            read_access(indices, index_mode),
            write_access(target, stores),
            int(negative),
        ],
        SelectAlongPush(nest.sizes, placed((target, data, indices), nest.strides), length, stride),
        iterations=5 * (nest.rank + 1),
    )


def _chosen(
    plan: Plan, call: Node, data: DeviceTensor, dim: int, indices: DeviceTensor, negative: Negative
) -> DeviceTensor:
    """The result of a call that replaces one dimension by all dimensions of the indices."""
    before, after = range(dim), range(dim + 1, data.rank)
    sizes = [*(data.sizes[d] for d in before), *indices.sizes, *(data.sizes[d] for d in after)]
    here = [0] * indices.rank
    base = data.view(sizes, [*(data.strides[d] for d in before), *here, *(data.strides[d] for d in after)])
    places = indices.view(sizes, [*[0] * len(before), *indices.strides, *[0] * len(after)])
    target = plan.empty(sizes, data.dtype, elements=plan.elements_of(call.output))
    select_along(plan, target, base, places, data.sizes[dim], data.strides[dim], negative)
    return target


def check_indices(call: Node) -> str | None:
    """As :func:`check_dtypes`, and indices that are constants must be within the dimension that they choose from."""
    data, indices = (
        (call["weight"], call["indices"]) if "embedding" in call.qualified_op else (call.args[0], call["index"])
    )
    dim = 0 if "embedding" in call.qualified_op else call["dim"]
    size = data.sizes[normalized_dim(dim, data.rank)] if data.rank else 1
    return check_dtypes(call) if constants_within(indices, size, 0) else OUT_OF_RANGE


@lowers("aten::index_select", check=check_indices, exact=True, long=True)
def index_select(plan: Plan, call: Node) -> DeviceTensor:
    """Chosen places of one dimension."""
    data, indices = _not_scalar(plan.tensor(call.args[0])), _not_scalar(plan.tensor(call["index"]))
    chosen = _chosen(plan, call, data, normalized_dim(call["dim"], data.rank), indices, Negative.REFUSED)
    return chosen if chosen.rank == call.output.rank else chosen.view((), ())


@lowers("aten::embedding", check=check_indices, exact=True, long=True)
def embedding(plan: Plan, call: Node) -> DeviceTensor:
    """Chosen rows."""
    return _chosen(plan, call, plan.tensor(call["weight"]), 0, plan.tensor(call["indices"]), Negative.REFUSED)


@lowers("aten::gather", check=check_indices, exact=True, long=True)
def gather(plan: Plan, call: Node) -> DeviceTensor:
    """An element of one dimension for each index."""
    data, indices = _not_scalar(plan.tensor(call.args[0])), _not_scalar(plan.tensor(call["index"]))
    dim = normalized_dim(call["dim"], data.rank)
    strides = [0 if d == dim else stride for d, stride in enumerate(data.strides)]
    target = plan.empty(indices.sizes, data.dtype, elements=plan.elements_of(call.output))
    base = data.view(indices.sizes, strides)
    select_along(plan, target, base, indices, data.sizes[dim], data.strides[dim], Negative.REFUSED)
    return target if target.rank == call.output.rank else target.view((), ())


def _not_scalar(tensor: DeviceTensor) -> DeviceTensor:
    """The tensor, with one dimension if it has none."""
    return tensor if tensor.rank else tensor.view((1,), (1,))


def _check_index(call: Node) -> str | None:
    for ref, size in zip(call["indices"], call.args[0].sizes, strict=False):
        if ref is not None and not ref.dtype.is_floating_point and ref.dtype.itemsize == 1:
            return "a mask as an index makes a result whose size depends on values"
        if ref is not None and not constants_within(ref, size, -size):
            return OUT_OF_RANGE
    return check_dtypes(call)


@lowers("aten::index.Tensor", "aten::index.Tensor_hacked_twin", check=_check_index, exact=True, long=True)
def index(plan: Plan, call: Node) -> DeviceTensor:
    """Indices for several dimensions at once, which broadcast with each other."""
    data = plan.tensor(call.args[0])
    given = {d: plan.tensor(ref) for d, ref in enumerate(call["indices"]) if ref is not None}
    dims = list(given)
    shape = broadcast_sizes(*(tensor.sizes for tensor in given.values()))
    if len(dims) == 1:
        return _chosen(plan, call, data, dims[0], next(iter(given.values())), Negative.FROM_END)
    lengths, strides = ([own[d] for d in dims] for own in (data.sizes, data.strides))
    offsets = joined_places(plan, list(given.values()), lengths, strides, shape)
    kept = [d for d in range(data.rank) if d not in given]
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    first = dims[0] if adjacent else 0
    sizes = [*(data.sizes[d] for d in kept[:first]), *shape, *(data.sizes[d] for d in kept[first:])]
    zeros = [0] * len(shape)
    base = data.view(
        sizes, [*(data.strides[d] for d in kept[:first]), *zeros, *(data.strides[d] for d in kept[first:])]
    )
    places = offsets.view(sizes, [*[0] * first, *offsets.strides, *[0] * (len(kept) - first)])
    target = plan.empty(sizes, data.dtype, elements=plan.elements_of(call.output))
    select_along(plan, target, base, places, _ANY_LENGTH, 1, Negative.REFUSED)
    return target


_JOINED_AT_ONCE = 3
"""Indices that one pointwise program joins."""


def joined_places(
    plan: Plan, indices: Sequence[DeviceTensor], lengths: Sequence[int], strides: Sequence[int], shape: Sequence[int]
) -> DeviceTensor:
    """Indices of several dimensions as a distance in elements, broadcast to ``shape`` and dense; negative ones count
    from the end, and those out of range raise the flag of the run.

    ``lengths`` and ``strides`` are of the dimensions that they choose from.
    """
    total: DeviceTensor | None = None
    given = list(zip(indices, lengths, strides, strict=True))
    count = 1 if any(tensor.is_long for tensor in indices) else _JOINED_AT_ONCE
    for start in range(0, len(given), count):
        builder = ProgramBuilder()
        place = None if total is None else builder.tensor(total)
        for tensor, length, stride in given[start : start + count]:
            chosen = builder.tensor(expanded(tensor, shape))
            wrapped = builder.step(Opcode.INT_INDEX, chosen, builder.scalar(length, Kind.INTEGER), kind=Kind.INTEGER)
            term = builder.step(Opcode.INT_MUL, wrapped, builder.scalar(stride, Kind.INTEGER), kind=Kind.INTEGER)
            place = term if place is None else builder.step(Opcode.INT_ADD, place, term, kind=Kind.INTEGER)
        assert place is not None
        total = compute(plan, builder, place, shape, torch.int32)
    assert total is not None
    return total
