"""Tensors on the device shown in another way: new strides, no dispatch, where strides can say it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.copies import as_contiguous, strided_copy
from mobopt.runtimes.vulkan.kernels.geometry import normalized_dim, view_strides
from mobopt.runtimes.vulkan.kernels.plan import Plan


def reshaped(
    plan: Plan, tensor: DeviceTensor, sizes: Sequence[int], wanted: Callable[[], Sequence[int] | None] = lambda: None
) -> DeviceTensor:
    """The tensor with other sizes: a view if strides allow it, else one copy into the layout that the new sizes get, or
    that is ``wanted``."""
    strides = view_strides(tensor.sizes, tensor.strides, sizes)
    if strides is not None:
        return tensor.view(sizes, strides)
    target = plan.empty(sizes, tensor.dtype, wanted(), tensor.storage.elements)
    as_source = view_strides(target.sizes, target.strides, tensor.sizes)
    if as_source is None:
        dense = as_contiguous(plan, tensor)
        dense_strides = view_strides(dense.sizes, dense.strides, sizes)
        assert dense_strides is not None
        return dense.view(sizes, dense_strides)
    strided_copy(plan, tensor, target.view(tensor.sizes, as_source), fresh=True)
    return target


def sliced(tensor: DeviceTensor, dim: int, start: int, length: int, step: int = 1) -> DeviceTensor:
    """Every ``step``-th of the elements of a dimension, ``length`` of them from ``start``."""
    sizes, strides = list(tensor.sizes), list(tensor.strides)
    sizes[dim], strides[dim] = length, tensor.strides[dim] * step
    return tensor.view(sizes, strides, tensor.offset + start * tensor.strides[dim])


def selected(tensor: DeviceTensor, dim: int, index: int) -> DeviceTensor:
    """One element of a dimension, which goes away; ``index`` is not negative."""
    return without_dims(sliced(tensor, dim, index, 1), (dim,))


def without_dims(tensor: DeviceTensor, dims: Sequence[int]) -> DeviceTensor:
    """The tensor without some dimensions of size 1."""
    kept = [d for d in range(tensor.rank) if d not in dims]
    return tensor.view([tensor.sizes[d] for d in kept], [tensor.strides[d] for d in kept])


def permuted(tensor: DeviceTensor, dims: Sequence[int]) -> DeviceTensor:
    """The dimensions in another order."""
    order = [normalized_dim(d, tensor.rank) for d in dims]
    return tensor.view([tensor.sizes[d] for d in order], [tensor.strides[d] for d in order])


def swapped(tensor: DeviceTensor, first: int, second: int) -> DeviceTensor:
    """Two dimensions exchanged."""
    order = list(range(tensor.rank))
    if order:
        a, b = normalized_dim(first, tensor.rank), normalized_dim(second, tensor.rank)
        order[a], order[b] = order[b], order[a]
    return permuted(tensor, order)


def unsqueezed(tensor: DeviceTensor, dim: int) -> DeviceTensor:
    """A new dimension of size 1 before ``dim``, which is not negative."""
    stride = tensor.sizes[dim] * tensor.strides[dim] if dim < tensor.rank else 1
    sizes, strides = list(tensor.sizes), list(tensor.strides)
    sizes.insert(dim, 1)
    strides.insert(dim, stride)
    return tensor.view(sizes, strides)


def strided_view(
    plan: Plan, tensor: DeviceTensor, sizes: Sequence[int], strides: Sequence[int], start: int
) -> DeviceTensor:
    """Elements by their places, counted from ``start`` in row-major order of the tensor."""
    dense = as_contiguous(plan, tensor)
    return dense.view(sizes, strides, dense.offset + start)


def diagonal_view(tensor: DeviceTensor, offset: int, first: int, second: int, sizes: Sequence[int]) -> DeviceTensor:
    """A diagonal of two dimensions as a last one, ``offset`` places above the main one; ``sizes`` are the view's."""
    a, b = normalized_dim(first, tensor.rank), normalized_dim(second, tensor.rank)
    start = tensor.offset + (offset * tensor.strides[b] if offset >= 0 else -offset * tensor.strides[a])
    kept = [d for d in range(tensor.rank) if d not in (a, b)]
    return tensor.view(sizes, [*(tensor.strides[d] for d in kept), tensor.strides[a] + tensor.strides[b]], start)
