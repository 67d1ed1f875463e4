"""Elements put at places of a copy that a tensor of indices says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.half_ranges import HALVES
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, contiguous_strides, word_type
from mobopt.runtimes.vulkan.kernels.copies import as_contiguous
from mobopt.runtimes.vulkan.kernels.geometry import broadcast_sizes, expanded, normalized_dim
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute, compute_into
from mobopt.runtimes.vulkan.kernels.pointwise_program import Kind, ProgramBuilder, Term, kind_of
from mobopt.runtimes.vulkan.kernels.scatter_kernel import MAX_SCATTER_RANK, scatter_along, updated_copy
from mobopt.runtimes.vulkan.kernels.views import permuted
from mobopt.runtimes.vulkan.lowerings.checks import OUT_OF_RANGE, check_dtypes, constants_within
from mobopt.runtimes.vulkan.lowerings.indexing import joined_places
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.shaders.enumerations import Negative, Opcode, Put

_PUTS = {
    "add": Put.ADD,
    "sum": Put.ADD,
    "mean": Put.ADD,
    "multiply": Put.MULTIPLY,
    "prod": Put.MULTIPLY,
    "amax": Put.LARGEST,
    "amin": Put.SMALLEST,
}
_NEUTRAL = {Put.ADD: 0.0, Put.MULTIPLY: 1.0, Put.LARGEST: -math.inf, Put.SMALLEST: math.inf}


def _not_scalar(tensor: DeviceTensor) -> DeviceTensor:
    """The tensor, with one dimension if it has none."""
    return tensor if tensor.rank else tensor.view((1,), (1,))


def _check(call: Node, lowest: int = 0) -> str | None:
    data, indices = call.args[0], call["index"]
    size = data.sizes[normalized_dim(call["dim"], data.rank)] if data.rank else 1
    if data.rank > MAX_SCATTER_RANK:
        return f"a tensor has rank {data.rank}; this kernel takes at most {MAX_SCATTER_RANK}"
    return check_dtypes(call) if constants_within(indices, size, lowest * size) else OUT_OF_RANGE


def check_scattered(call: Node) -> str | None:
    """Indices are counted from the front."""
    return _check(call)


def check_filled(call: Node) -> str | None:
    """Indices below zero are counted from the end."""
    return _check(call, lowest=-1)


def check_combined(call: Node) -> str | None:
    """As :func:`check_scattered`, of numbers."""
    if call.args[0].dtype == torch.bool:
        return "bools are combined by their values as numbers, which is not computed"
    return _check(call)


def _filled(
    plan: Plan, number: Any, sizes: Sequence[int], dtype: torch.dtype, elements: torch.dtype | None
) -> DeviceTensor:
    """A tensor whose elements are one number."""
    builder = ProgramBuilder(is_long=elements == torch.int64)
    value = _loaded(builder, plan, number, kind_of(dtype))
    return expanded(compute(plan, builder, value, (1,), dtype, elements), sizes)


def _long_elements(plan: Plan, call: Node) -> torch.dtype | None:
    """The type of the elements of a call's result if they have 64 bits; None if they are what stands for its dtype."""
    return torch.int64 if call.output in plan.long else None


def _loaded(builder: ProgramBuilder, plan: Plan, number: Any, kind: Kind) -> Term:
    if isinstance(number, Value):
        return builder.tensor(plan.tensor(number))
    return builder.scalar(number, kind)


def _operands(plan: Plan, call: Node) -> tuple[DeviceTensor, DeviceTensor, int]:
    """What is copied, the indices, and the dimension."""
    data, indices = _not_scalar(plan.tensor(call.args[0])), _not_scalar(plan.tensor(call["index"]))
    return data, indices, normalized_dim(call["dim"], data.rank)


def _given(plan: Plan, call: Node, data: DeviceTensor, sizes: Sequence[int]) -> DeviceTensor:
    """What is put: a number, or the first elements of a tensor."""
    given = call.args[3]
    if not isinstance(given, Value) or not given.rank:
        return _filled(plan, given, sizes, data.dtype, _long_elements(plan, call))
    source = plan.tensor(given)
    return source.view(sizes, source.strides)


def _written_copy(plan: Plan, call: Node, data: DeviceTensor, order: Sequence[int] | None = None) -> DeviceTensor:
    """A copy that elements are put into: as the data's, or of 64 bits where the result needs them."""
    if call.output in plan.long:
        return updated_copy(plan, data, data.dtype, order, torch.int64)
    return updated_copy(plan, data, data.storage.elements, order)


def _finished(tensor: DeviceTensor, call: Node) -> DeviceTensor:
    return tensor if tensor.rank == call.output.rank else tensor.view((), ())


@lowers("aten::scatter.src", "aten::scatter.value", check=check_scattered, exact=True, long=True)
def scatter(plan: Plan, call: Node) -> DeviceTensor:
    """An element put for each index; of equal places the last one stays."""
    data, indices, dim = _operands(plan, call)
    target = _written_copy(plan, call, data)
    scatter_along(plan, target, _given(plan, call, data, indices.sizes), indices, dim, Put.REPLACE)
    return _finished(replace(target, dtype=data.dtype), call)


@lowers(
    "aten::scatter.reduce",
    "aten::scatter.value_reduce",
    "aten::scatter_add",
    "aten::scatter_reduce.two",
    check=check_combined,
    long=True,
)
def scatter_combined(plan: Plan, call: Node) -> DeviceTensor:
    """An element combined with what is there for each index, in their order."""
    data, indices, dim = _operands(plan, call)
    how = "add" if call.qualified_op == "aten::scatter_add" else call["reduce"]
    includes = call["include_self"] if call.qualified_op == "aten::scatter_reduce.two" else True
    source = _given(plan, call, data, indices.sizes)
    return _finished(_combined(plan, call, data, source, indices, dim, how, includes), call)


def _combined(
    plan: Plan,
    call: Node,
    data: DeviceTensor,
    source: DeviceTensor,
    indices: DeviceTensor,
    dim: int,
    how: str,
    includes: bool,
) -> DeviceTensor:
    """A copy of the data, as elements of its dtype, with the elements of the source combined with what is there.

    Args:
        plan: where dispatches go.
        call: what is lowered.
        data: what is copied.
        source: in the sizes of the indices.
        indices: no larger than the data but for ``dim``.
        dim: counted from the front.
        how: torch's name of the combination.
        includes: whether what is there takes part where something is put.
    """
    put, elements = _PUTS[how], _long_elements(plan, call)
    target = updated_copy(plan, data, data.dtype, elements=elements)
    if not includes:
        neutral = _NEUTRAL[put]
        if not data.is_floating and math.isinf(neutral):
            limits = torch.iinfo(target.elements)
            neutral = limits.max if neutral > 0 else limits.min
        first = _filled(plan, neutral, indices.sizes, data.dtype, elements)
        scatter_along(plan, target, first, indices, dim, Put.REPLACE)
    scatter_along(plan, target, source, indices, dim, put)
    if how != "mean":
        return target
    counts = _counts(plan, data.sizes, indices, dim, includes)
    floating = data.is_floating
    builder = ProgramBuilder()
    kind = Kind.FLOAT if floating else Kind.INTEGER
    number = builder.step(Opcode.INT_MAX, builder.tensor(counts), builder.scalar(1, Kind.INTEGER), kind=Kind.INTEGER)
    total = builder.tensor(replace(target, dtype=data.dtype))
    rounded = plan.final_dtype(call.output)  # as torch rounds both
    if floating:
        number = builder.stored_as(number, rounded)
    if rounded != torch.int64:
        total = builder.stored_as(total, rounded)
    mean = builder.step(Opcode.DIV if floating else Opcode.INT_DIV_FLOOR, total, number, kind=kind)
    return compute(plan, builder, mean, data.sizes, data.dtype, elements)


def _counts(plan: Plan, sizes: Sequence[int], indices: DeviceTensor, dim: int, includes: bool) -> DeviceTensor:
    """How many elements come to each place: integers, which may be added up in any order, once for all lines that have
    the same indices.

    Args:
        plan: where dispatches go.
        sizes: of the places.
        indices: no larger than these but for ``dim``.
        dim: counted from the front.
        includes: whether what is there counts, too.
    """
    shared = [d != dim and indices.strides[d] == 0 and indices.sizes[d] == size for d, size in enumerate(sizes)]
    one, start = (_filled(plan, number, (1,), torch.int32, None) for number in (1, int(includes)))
    counted, places = (
        [1 if alike else size for alike, size in zip(shared, whole, strict=True)] for whole in (indices.sizes, sizes)
    )
    counts = updated_copy(plan, expanded(start, places), torch.int32)
    scatter_along(plan, counts, expanded(one, counted), indices.view(counted, indices.strides), dim, Put.ADD)
    return expanded(counts, sizes)


# One dimension of indices for all lines.


def _rows(plan: Plan, call: Node) -> tuple[DeviceTensor, DeviceTensor, DeviceTensor, int]:
    """What is copied, what is put, the index of each of its elements, and the dimension."""
    data, indices, dim = _operands(plan, call)
    sizes = [indices.sizes[0] if d == dim else size for d, size in enumerate(data.sizes)]
    places = indices.view(sizes, [indices.strides[0] if d == dim else 0 for d in range(len(sizes))])
    given = call.args[3]
    if isinstance(given, Value) and given.rank:
        source = plan.tensor(given)
        return data, source.view(sizes, source.strides), places, dim
    return data, _filled(plan, given, sizes, data.dtype, _long_elements(plan, call)), places, dim


def _takes_one_place(plan: Plan, call: Node) -> bool:
    """Whether there is one index only, as where a decoder puts a token into its caches, and no integer of 64 bits."""
    tensors = [plan.tensor(value) for value in call.inputs]
    return call["index"].numel == 1 and call.output.rank > 0 and not any(tensor.is_long for tensor in tensors)


def _copied_but_for_one_place(plan: Plan, call: Node, negative: Negative) -> DeviceTensor:
    """The copy takes what is put there from its source: one dispatch, where a copy that is written to takes two."""
    data, given = plan.tensor(call.args[0]), call.args[3]
    dim = normalized_dim(call["dim"], data.rank)
    size = data.sizes[dim]
    builder = ProgramBuilder()
    place = builder.tensor(expanded(_not_scalar(plan.tensor(call["index"])), (1,) * data.rank))
    if negative == Negative.REFUSED:  # without their signs they are out of range
        place = builder.step(Opcode.INT_AND, place, builder.scalar(2**31 - 1, Kind.INTEGER), kind=Kind.INTEGER)
    place = builder.step(Opcode.INT_INDEX, place, builder.scalar(size, Kind.INTEGER), kind=Kind.INTEGER)
    steps = plan.tensor(_steps(size)).view((size, *[1] * (data.rank - dim - 1)), (1, *[0] * (data.rank - dim - 1)))
    is_there = builder.step(Opcode.INT_EQ, builder.tensor(steps), place, kind=Kind.BOOL)
    kind = kind_of(data.dtype)
    if isinstance(given, Value) and given.rank:
        row = plan.tensor(given)
        put = builder.tensor(row.view([1 if d == dim else data.sizes[d] for d in range(data.rank)], row.strides))
    else:
        put = builder.converted(_loaded(builder, plan, given, kind), kind)
    value = builder.step(Opcode.SELECT, is_there, put, builder.tensor(data), kind=kind)
    target = plan.empty(data.sizes, data.dtype, contiguous_strides(data.sizes), data.storage.elements)
    compute_into(plan, builder, value, target, fresh=True)
    return target


@lru_cache(maxsize=64)
def _steps(size: int) -> Value:
    """The places of a dimension."""
    return Value.of_elements(torch.arange(size, dtype=torch.int32))


@lowers("aten::index_copy", check=check_scattered, exact=True, long=True)
@lowers("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor", check=check_filled, exact=True, long=True)
def index_copy(plan: Plan, call: Node) -> DeviceTensor:
    """Rows, or a number, put at some places of a dimension; of equal places the last row stays."""
    negative = Negative.REFUSED if call.qualified_op == "aten::index_copy" else Negative.FROM_END
    if _takes_one_place(plan, call):
        return _copied_but_for_one_place(plan, call, negative)
    data, source, places, dim = _rows(plan, call)
    target = _written_copy(plan, call, data)
    scatter_along(plan, target, source, places, dim, Put.REPLACE, negative)
    return _finished(replace(target, dtype=data.dtype), call)


@lowers("aten::index_add", check=check_combined, exact=True, long=True)
def index_add(plan: Plan, call: Node) -> DeviceTensor:
    """Rows, times a number, added at some places of a dimension, in their order.

    torch rounds halves at each step, but for the dimensions for which it calls ``scatter_add``.
    """
    data, source, places, dim = _rows(plan, call)
    is_outer = data.rank > 1 and dim in (0, data.rank - 1)
    if data.dtype in HALVES.values() and is_outer and call["alpha"] == 1 and call["index"].dtype == torch.int64:
        data = replace(data, dtype=torch.float32)
        builder = ProgramBuilder()
        total = builder.tensor(_combined(plan, call, data, source, places, dim, "add", includes=True))
        return _finished(compute(plan, builder, total, data.sizes, call.output.dtype), call)
    if call["alpha"] != 1:
        elements = _long_elements(plan, call)
        builder = ProgramBuilder(is_long=elements is not None)
        kind = Kind.FLOAT if data.is_floating else Kind.INTEGER
        opcode = Opcode.MUL if data.is_floating else Opcode.INT_MUL
        scaled = builder.step(opcode, builder.tensor(source), builder.scalar(call["alpha"], kind), kind=kind)
        source = compute(plan, builder, scaled, source.sizes, elements or word_type(data.dtype), elements)
    return _finished(_combined(plan, call, data, source, places, dim, "add", includes=True), call)


@lowers("aten::index_reduce", check=check_combined, exact=True, long=True)
def index_reduce(plan: Plan, call: Node) -> DeviceTensor:
    """Rows combined with what is there at some places of a dimension, in their order."""
    data, source, places, dim = _rows(plan, call)
    return _finished(_combined(plan, call, data, source, places, dim, call["reduce"], call["include_self"]), call)


# Indices of several dimensions at once.


def check_put(call: Node) -> str | None:
    """Indices of integers, those that are constants within their dimensions."""
    data = call.args[0]
    if data.rank > MAX_SCATTER_RANK:
        return f"a tensor has rank {data.rank}; this kernel takes at most {MAX_SCATTER_RANK}"
    if call["accumulate"] and data.dtype == torch.bool:
        return "bools are added as numbers, which is not computed"
    for ref, size in zip(call["indices"], data.sizes, strict=False):
        if ref is not None and ref.dtype in (torch.bool, torch.uint8):
            return "a mask that chooses from several dimensions, or goes with other indices, is not computed"
        if ref is not None and not constants_within(ref, size, -size):
            return OUT_OF_RANGE
    return check_dtypes(call)


def _put(plan: Plan, call: Node, put: Put) -> DeviceTensor:
    data, values = plan.tensor(call.args[0]), plan.tensor(call["values"])
    given = {d: plan.tensor(ref) for d, ref in enumerate(call["indices"]) if ref is not None}
    dims = list(given)
    kept = [d for d in range(data.rank) if d not in given]
    shape = broadcast_sizes(*(tensor.sizes for tensor in given.values()))
    lengths = [data.sizes[d] for d in dims]
    places = joined_places(plan, list(given.values()), lengths, contiguous_strides(lengths), shape)
    first = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    sizes = [*(data.sizes[d] for d in kept[:first]), *shape, *(data.sizes[d] for d in kept[first:])]
    source = expanded(values, sizes)
    rank = len(shape)
    source = permuted(source, [*range(first, first + rank), *range(first), *range(first + rank, len(sizes))])
    count = math.prod(shape)
    rest = tuple(data.sizes[d] for d in kept)
    lines = _merged_front(plan, source, rank, count)
    order = [*dims, *kept]
    if put is Put.REPLACE:
        target = _written_copy(plan, call, data, order)
    else:
        target = updated_copy(plan, data, data.dtype, order, _long_elements(plan, call))
    length = math.prod(lengths)
    flat = target.view((length, *rest), contiguous_strides((length, *rest)))
    scatter_along(plan, flat, lines, places.view((count, *rest), (1, *[0] * len(rest))), 0, put)
    return replace(target, dtype=data.dtype)


def _merged_front(plan: Plan, tensor: DeviceTensor, rank: int, count: int) -> DeviceTensor:
    """The first ``rank`` dimensions as one of ``count``."""
    sizes = (count, *tensor.sizes[rank:])
    if all(stride == 0 for stride in tensor.strides[:rank]):
        return tensor.view(sizes, (0, *tensor.strides[rank:]))
    if rank == 1:
        return tensor
    dense = as_contiguous(plan, tensor)
    return dense.view(sizes, contiguous_strides(sizes))


@lowers("aten::index_put", "aten::index_put.hacked_twin", check=check_put, exact=True, long=True)
def index_put(plan: Plan, call: Node) -> DeviceTensor:
    """Elements put at places that indices of one or more dimensions say; of equal places the last one stays.

    With ``accumulate`` they are added, in their order.
    """
    return _put(plan, call, Put.ADD if call["accumulate"] else Put.REPLACE)
