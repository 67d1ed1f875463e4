"""Elements chosen by a tensor of indices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mobopt.runtimes.call import Call
from mobopt.runtimes.vulkan.geometry import broadcast_sizes, expanded, merged, normalized_dim
from mobopt.runtimes.vulkan.kernel_access import (
    PUSH_CONSTANT_WORDS,
    VECTOR,
    LoadMode,
    is_vector_run,
    load_mode,
    local_size,
    reading,
    spread,
    uses_texels,
    words,
    writing,
)
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes
from mobopt.runtimes.vulkan.plan import Plan
from mobopt.runtimes.vulkan.pointwise_kernel import compute
from mobopt.runtimes.vulkan.pointwise_program import Kind, Opcode, ProgramBuilder
from mobopt.runtimes.vulkan.registry import lowers
from mobopt.runtimes.vulkan.tensor import DeviceTensor, contiguous_strides


def select_along(
    plan: Plan, target: DeviceTensor, data: DeviceTensor, indices: DeviceTensor, length: int, stride: int
) -> None:
    """``target[i...] = data[i... + stride * indices[i...]]`` in elements; ``data`` and ``indices`` have the target's
    sizes.

    ``length`` is the size of the dimension that the indices choose from: negative ones count from its end.
    """
    if target.numel == 0:
        return
    nest = merged(target.sizes, [target.strides, data.strides, indices.strides])
    if nest.rank * 4 + 5 > PUSH_CONSTANT_WORDS:
        indices = plan.copy(indices, contiguous_strides(indices.sizes))
        nest = merged(target.sizes, [target.strides, data.strides, indices.strides])
    index_mode = LoadMode.SPLAT if nest.strides[2][-1] == 0 else LoadMode.LANES
    mode = load_mode(data.offset, (stride, *nest.strides[1])) if index_mode == LoadMode.SPLAT else LoadMode.LANES
    whole = nest.sizes[-1] % VECTOR == 0
    if not whole and mode == LoadMode.VECTOR:
        mode = LoadMode.LANES
    operands = [(data, mode), (indices, index_mode)]
    texels = uses_texels(plan.device, operands)
    items = math.prod(nest.sizes[:-1]) * -(-nest.sizes[-1] // VECTOR)
    size = local_size(plan.device, items)
    geometry = list(nest.sizes)
    for tensor, strides in zip((target, data, indices), nest.strides, strict=True):
        geometry += [tensor.offset, *strides]
    stores = int(whole and is_vector_run(target.offset, nest.strides[0]))
    plan.dispatch(
        f"select_along{'_texels' if texels else ''}",
        [writing(target), *(reading(tensor, each, texels) for tensor, each in operands)],
        spread(-(-items // size)),
        [size, nest.rank, int(mode), int(index_mode), stores],
        words([*geometry, length, stride]),
    )


def _chosen(plan: Plan, data: DeviceTensor, dim: int, indices: DeviceTensor) -> DeviceTensor:
    """One dimension replaced by all dimensions of the indices."""
    before, after = range(dim), range(dim + 1, data.rank)
    sizes = [*(data.sizes[d] for d in before), *indices.sizes, *(data.sizes[d] for d in after)]
    here = [0] * indices.rank
    base = data.view(sizes, [*(data.strides[d] for d in before), *here, *(data.strides[d] for d in after)])
    places = indices.view(sizes, [*[0] * len(before), *indices.strides, *[0] * len(after)])
    target = plan.empty(sizes, data.dtype)
    select_along(plan, target, base, places, data.sizes[dim], data.strides[dim])
    return target


@lowers("aten::index_select", check=check_dtypes)
def index_select(plan: Plan, call: Call) -> DeviceTensor:
    """Chosen places of one dimension."""
    data, indices = plan.tensor(call.args[0]), plan.tensor(call["index"])
    if data.rank == 0:
        return plan.copy(data)
    if indices.rank == 0:
        indices = indices.view((1,), (1,))
    return _chosen(plan, data, normalized_dim(call["dim"], data.rank), indices)


@lowers("aten::embedding", check=check_dtypes)
def embedding(plan: Plan, call: Call) -> DeviceTensor:
    """Chosen rows."""
    return _chosen(plan, plan.tensor(call["weight"]), 0, plan.tensor(call["indices"]))


@lowers("aten::gather", check=check_dtypes)
def gather(plan: Plan, call: Call) -> DeviceTensor:
    """An element of one dimension for each index."""
    data, indices = plan.tensor(call.args[0]), plan.tensor(call["index"])
    if data.rank == 0:
        return plan.copy(data.view(indices.sizes, [0] * indices.rank))
    dim = normalized_dim(call["dim"], data.rank)
    strides = [0 if d == dim else stride for d, stride in enumerate(data.strides)]
    target = plan.empty(indices.sizes, data.dtype)
    select_along(plan, target, data.view(indices.sizes, strides), indices, data.sizes[dim], data.strides[dim])
    return target


def _check_index(call: Call) -> str | None:
    for ref in call["indices"]:
        if ref is not None and not ref.dtype.is_floating_point and ref.dtype.itemsize == 1:
            return "a mask as an index makes a result whose size depends on values"
    return check_dtypes(call)


@lowers("aten::index.Tensor", "aten::index.Tensor_hacked_twin", check=_check_index)
def index(plan: Plan, call: Call) -> DeviceTensor:
    """Indices for several dimensions at once, which broadcast with each other."""
    data = plan.tensor(call.args[0])
    given = {d: plan.tensor(ref) for d, ref in enumerate(call["indices"]) if ref is not None}
    dims = list(given)
    shape = broadcast_sizes(*(tensor.sizes for tensor in given.values()))
    if len(dims) == 1:
        return _chosen(plan, data, dims[0], next(iter(given.values())))
    offsets = _combined_offsets(plan, data, given, shape)
    kept = [d for d in range(data.rank) if d not in given]
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    first = dims[0] if adjacent else 0
    sizes = [*(data.sizes[d] for d in kept[:first]), *shape, *(data.sizes[d] for d in kept[first:])]
    zeros = [0] * len(shape)
    base = data.view(
        sizes, [*(data.strides[d] for d in kept[:first]), *zeros, *(data.strides[d] for d in kept[first:])]
    )
    places = offsets.view(sizes, [*[0] * first, *offsets.strides, *[0] * (len(kept) - first)])
    target = plan.empty(sizes, data.dtype)
    select_along(plan, target, base, places, 2**30, 1)
    return target


def _combined_offsets(
    plan: Plan, data: DeviceTensor, given: dict[int, DeviceTensor], shape: Sequence[int]
) -> DeviceTensor:
    """For each place of the indices, the distance in elements from the start of the data."""
    builder = ProgramBuilder()
    total = None
    for d, tensor in given.items():
        chosen = builder.tensor(expanded(tensor, shape))
        length = builder.scalar(data.sizes[d], Kind.INTEGER)
        wrapped = builder.step(Opcode.INT_REMAINDER, chosen, length, kind=Kind.INTEGER)
        term = builder.step(Opcode.INT_MUL, wrapped, builder.scalar(data.strides[d], Kind.INTEGER), kind=Kind.INTEGER)
        total = term if total is None else builder.step(Opcode.INT_ADD, total, term, kind=Kind.INTEGER)
    assert total is not None
    return compute(plan, builder, total, shape, next(iter(given.values())).dtype)
