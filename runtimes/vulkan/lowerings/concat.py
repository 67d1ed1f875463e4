"""Joining tensors, and operators that place copies of one: padding, repeating, rolling, flipping, shuffling."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mobopt.ir import Node
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, contiguous_strides
from mobopt.runtimes.vulkan.kernels.copies import as_contiguous, copied, strided_copy
from mobopt.runtimes.vulkan.kernels.geometry import normalized_dim, view_strides
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.resampling import cropped
from mobopt.runtimes.vulkan.kernels.views import permuted, sliced, unsqueezed
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes
from mobopt.runtimes.vulkan.lowerings.creation import fill
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.runtimes.vulkan.lowerings.resize import pad_by_places


def slices_of(target: DeviceTensor, dim: int, lengths: Sequence[int]) -> list[DeviceTensor]:
    """Views of consecutive parts of a dimension: where each input of a concatenation goes, or is made in the first
    place."""
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    return [sliced(target, dim, start, length) for start, length in zip(starts, lengths, strict=True)]


def concatenated(plan: Plan, tensors: Sequence[DeviceTensor], dim: int, call: Node) -> DeviceTensor:
    """The tensors one after the other along a dimension."""
    if len(tensors) == 1 and tensors[0].dtype == call.output.dtype:
        return copied(plan, tensors[0])
    target = plan.own_result(call.output, strides=_strides_in_rows(tensors, dim, call))
    for tensor, place in zip(tensors, slices_of(target, dim, [t.sizes[dim] for t in tensors]), strict=True):
        strided_copy(plan, tensor, place)
    return target


def _strides_in_rows(tensors: Sequence[DeviceTensor], dim: int, call: Node) -> tuple[int, ...] | None:
    """Row-major strides where rows are added to many that lie so, as to a cache (batch, heads, positions, size).

    Attention wants them so, and they are no images.
    """
    sizes = call.output.sizes
    largest = max(tensors, key=lambda tensor: tensor.numel)
    in_rows = len(sizes) == 4 and dim == 2 and sizes[3] % 4 == 0 and largest.is_contiguous
    return contiguous_strides(sizes) if in_rows else None


@lowers("aten::cat", "aten::concat", "aten::concatenate", check=check_dtypes, exact=True, long=True)
def cat(plan: Plan, call: Node) -> DeviceTensor:
    """Concatenation; as in torch, empty vectors are skipped whatever the rank of the others."""
    rank = call.output.rank
    tensors = [plan.tensor(ref) for ref in call["tensors"] if ref.sizes != (0,) or rank == 1]
    return concatenated(plan, tensors, normalized_dim(call["dim"], rank), call)


@lowers("aten::stack", check=check_dtypes, exact=True, long=True)
def stack(plan: Plan, call: Node) -> DeviceTensor:
    """Concatenation along a new dimension."""
    dim = call["dim"] % call.output.rank
    return concatenated(plan, [unsqueezed(plan.tensor(ref), dim) for ref in call["tensors"]], dim, call)


@lowers("aten::hstack", "aten::vstack", check=check_dtypes, exact=True, long=True)
def stack_flat(plan: Plan, call: Node) -> DeviceTensor:
    """Concatenation along columns or rows, of tensors with at least that many dimensions."""
    least = 2 if call.qualified_op == "aten::vstack" else 1
    tensors = []
    for ref in call["tensors"]:
        tensor = plan.tensor(ref)
        while tensor.rank < least:
            tensor = unsqueezed(tensor, 0)
        tensors.append(tensor)
    dim = 0 if least == 2 or tensors[0].rank == 1 else 1
    return concatenated(plan, tensors, dim, call)


def padded(plan: Plan, tensor: DeviceTensor, call: Node, padding: Sequence[int], value: float) -> DeviceTensor:
    """Constant padding; ``padding`` counts from the last dimension, as torch's, and crops where it is negative."""
    count = len(padding) // 2
    pairs = [(0, 0)] * (tensor.rank - count) + [(padding[2 * d], padding[2 * d + 1]) for d in reversed(range(count))]
    target = plan.own_result(call.output)
    if any(amount > 0 for pair in pairs for amount in pair):
        fill(plan, target, bool(value) if target.dtype == torch.bool else value, fresh=True)
    inner = target
    source = cropped(tensor, pairs)
    for d, (before, _) in enumerate(pairs):
        inner = sliced(inner, d, max(before, 0), source.sizes[d])
    strided_copy(plan, source, inner)
    return target


@lowers("aten::constant_pad_nd", check=check_dtypes, exact=True, long=True)
def constant_pad(plan: Plan, call: Node) -> DeviceTensor:
    """Constant padding of any dimensions."""
    return padded(plan, plan.tensor(call.args[0]), call, call["pad"], call["value"])


@lowers("aten::pad", check=check_dtypes, exact=True, long=True)
def pad(plan: Plan, call: Node) -> DeviceTensor:
    """Padding in the mode that the call names."""
    tensor, mode = plan.tensor(call.args[0]), call["mode"]
    if mode == "constant":
        return padded(plan, tensor, call, call["pad"], call["value"] or 0)
    return pad_by_places(plan, tensor, call, list(call["pad"]), mode)


@lowers("aten::repeat", "aten::tile", check=check_dtypes, exact=True, long=True)
def repeat(plan: Plan, call: Node) -> DeviceTensor:
    """Copies of the whole tensor along each dimension."""
    tensor = plan.tensor(call.args[0])
    times = list(call.args[1])
    rank = max(len(times), tensor.rank)
    times = [1] * (rank - len(times)) + times
    while tensor.rank < rank:
        tensor = unsqueezed(tensor, 0)
    target = plan.own_result(call.output)
    sizes = [each for d in range(rank) for each in (times[d], tensor.sizes[d])]
    sources = [each for d in range(rank) for each in (0, tensor.strides[d])]
    places = [each for d in range(rank) for each in (target.strides[d] * tensor.sizes[d], target.strides[d])]
    strided_copy(plan, tensor.view(sizes, sources), target.view(sizes, places), fresh=True)
    return target


@lowers("aten::repeat_interleave.self_int", check=check_dtypes, exact=True, long=True)
def repeat_interleave(plan: Plan, call: Node) -> DeviceTensor:
    """Each element several times in a row."""
    tensor, times = plan.tensor(call.args[0]), call["repeats"]
    if call["dim"] is None:
        tensor = as_contiguous(plan, tensor)
        tensor = tensor.view((tensor.numel,), (1,))
    dim = normalized_dim(call["dim"] or 0, tensor.rank)
    target = plan.own_result(call.output)
    sizes, sources, places = list(tensor.sizes), list(tensor.strides), list(target.strides)
    sizes.insert(dim + 1, times)
    sources.insert(dim + 1, 0)
    places.insert(dim, places[dim] * times)
    strided_copy(plan, tensor.view(sizes, sources), target.view(sizes, places), fresh=True)
    return target


@lowers("aten::flip", check=check_dtypes, exact=True, long=True)
def flip(plan: Plan, call: Node) -> DeviceTensor:
    """The order of elements reversed along dimensions."""
    tensor = plan.tensor(call.args[0])
    strides, offset = list(tensor.strides), tensor.offset
    for d in {normalized_dim(d, tensor.rank) for d in call["dims"]} if tensor.rank else ():
        offset += (tensor.sizes[d] - 1) * strides[d]
        strides[d] = -strides[d]
    target = plan.own_result(call.output)
    strided_copy(plan, tensor.view(tensor.sizes, strides, offset), target)
    return target


@lowers("aten::roll", check=check_dtypes, exact=True, long=True)
def roll(plan: Plan, call: Node) -> DeviceTensor:
    """Elements moved along dimensions, those that leave coming back at the other end."""
    tensor = plan.tensor(call.args[0])
    shifts, dims = list(call["shifts"]), list(call["dims"])
    if not dims:
        dense = as_contiguous(plan, tensor)
        rolled = _rolled(plan, dense.view((dense.numel,), (1,)), shifts[0], 0)
        strides = view_strides(rolled.sizes, rolled.strides, tensor.sizes)
        assert strides is not None
        return rolled.view(tensor.sizes, strides)
    for shift, dim in zip(shifts, dims, strict=True):
        tensor = _rolled(plan, tensor, shift, normalized_dim(dim, tensor.rank))
    return tensor


def _rolled(plan: Plan, tensor: DeviceTensor, shift: int, dim: int) -> DeviceTensor:
    target = plan.empty(tensor.sizes, tensor.dtype, elements=tensor.storage.elements)
    size = tensor.sizes[dim]
    first = shift % size if size else 0
    strided_copy(plan, sliced(tensor, dim, 0, size - first), sliced(target, dim, first, size - first))
    strided_copy(plan, sliced(tensor, dim, size - first, first), sliced(target, dim, 0, first))
    return target


def _regrouped(
    plan: Plan, tensor: DeviceTensor, split: Sequence[int], order: Sequence[int], call: Node
) -> DeviceTensor:
    """Split dimensions, permute them, and join them to the call's result, in one copy."""
    strides = view_strides(tensor.sizes, tensor.strides, split)
    assert strides is not None
    source = permuted(tensor.view(split, strides), order)
    target = plan.own_result(call.output)
    places = view_strides(target.sizes, target.strides, source.sizes)
    assert places is not None
    strided_copy(plan, source, target.view(source.sizes, places), fresh=True)
    return target


@lowers("aten::pixel_shuffle", check=check_dtypes, exact=True, long=True)
def pixel_shuffle(plan: Plan, call: Node) -> DeviceTensor:
    """Channels become space."""
    tensor, r = plan.tensor(call.args[0]), call["upscale_factor"]
    *batch, c, h, w = tensor.sizes
    n = len(batch)
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return _regrouped(plan, tensor, (*batch, c // (r * r), r, r, h, w), order, call)


@lowers("aten::pixel_unshuffle", check=check_dtypes, exact=True, long=True)
def pixel_unshuffle(plan: Plan, call: Node) -> DeviceTensor:
    """Space becomes channels."""
    tensor, r = plan.tensor(call.args[0]), call["downscale_factor"]
    *batch, c, h, w = tensor.sizes
    n = len(batch)
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    return _regrouped(plan, tensor, (*batch, c, h // r, r, w // r, r), order, call)


@lowers("aten::channel_shuffle", "aten::native_channel_shuffle", check=check_dtypes, exact=True, long=True)
def channel_shuffle(plan: Plan, call: Node) -> DeviceTensor:
    """Channels of groups interleaved."""
    tensor, groups = plan.tensor(call.args[0]), call["groups"]
    n, c, *space = tensor.sizes
    order = [0, 2, 1, *range(3, 3 + len(space))]
    return _regrouped(plan, tensor, (n, groups, c // groups, *space), order, call)
