"""How products of matrices want their operands: rows that are dense and start on vec4s."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, aligned_channels, contiguous_strides
from mobopt.runtimes.vulkan.kernels.copies import copied
from mobopt.runtimes.vulkan.kernels.geometry import merged
from mobopt.runtimes.vulkan.kernels.plan import Plan


def row_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides with rows of whole vec4s."""
    return contiguous_strides((*sizes[:-1], aligned_channels(sizes[-1])))


def has_dense_rows(tensor: DeviceTensor) -> bool:
    """Whether rows are dense and start on vec4s."""
    steps = [stride for size, stride in zip(tensor.sizes[:-1], tensor.strides[:-1], strict=True) if size > 1]
    aligned = all(number % 4 == 0 for number in (tensor.offset, tensor.storage.capacity, *steps))
    return aligned and (tensor.sizes[-1] == 1 or tensor.strides[-1] == 1)


def with_dense_rows(plan: Plan, tensor: DeviceTensor) -> DeviceTensor:
    """The tensor itself if its rows are dense and start on vec4s, else a copy of which that is true."""
    return tensor if has_dense_rows(tensor) else copied(plan, tensor, row_strides(tensor.sizes))


def rows_of_batches(plan: Plan, tensor: DeviceTensor, batch_rank: int) -> DeviceTensor:
    """A tensor, or a copy of it, as (batch, rows, columns) with dense rows that start on vec4s.

    The first ``batch_rank`` dimensions become the batch, the last the columns, those between the rows.
    """
    view = batched_view(tensor, batch_rank)
    if view is None:
        view = batched_view(copied(plan, tensor, row_strides(tensor.sizes)), batch_rank)
    assert view is not None
    return view


def batched_view(tensor: DeviceTensor, batch_rank: int) -> DeviceTensor | None:
    """The same without a copy; None if only that gives it."""
    if tensor.numel == 0:
        sizes = (math.prod(tensor.sizes[:batch_rank]), math.prod(tensor.sizes[batch_rank:-1]), tensor.sizes[-1])
        return tensor.view(sizes, (0, 0, 1), 0)
    batch = merged(tensor.sizes[:batch_rank], [tensor.strides[:batch_rank]], order_by=None)
    rows = merged(tensor.sizes[batch_rank:-1], [tensor.strides[batch_rank:-1]], order_by=None)
    if batch.rank > 1 or rows.rank > 1:
        return None
    columns = tensor.sizes[-1]
    steps = tuple(0 if nest.sizes[0] == 1 else nest.strides[0][0] for nest in (batch, rows))
    dense = columns == 1 or tensor.strides[-1] == 1
    aligned = all(count % 4 == 0 for count in (*steps, tensor.offset, tensor.storage.capacity))
    if not dense or not aligned:
        return None
    return tensor.view((batch.sizes[0], rows.sizes[0], columns), (*steps, 1))
