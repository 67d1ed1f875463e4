"""How a result should lie for who reads it not to copy it: a product of matrices, or a view that merges dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

from mobopt.ir import Node, Value
from mobopt.ir.schemas import argument_names
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.engine.tensor import (
    DeviceTensor,
    Storage,
    aligned_channels,
    contiguous_strides,
    default_strides,
)
from mobopt.runtimes.vulkan.kernels.operand_rows import batched_view
from mobopt.runtimes.vulkan.lowerings.views import is_view, shown

_MOST_VIEWS = 8
_MOST_DIMENSIONS = 4
"""Of more than one element, whose orders are tried."""


_IMAGE_RANK = 4


class _Reading(NamedTuple):
    """What becomes of a result."""

    views: list[Node]
    """Calls that show it in other ways, one after the other, each the only reader of what the one before shows."""
    product: Node | None
    """The product of matrices that reads what the last of them shows, if that does."""
    operand: Value
    """What the product reads."""


def wanted_strides(
    result: Value, usual: Sequence[int], can_write: Callable[[DeviceTensor], bool] = lambda tensor: True
) -> tuple[int, ...] | None:
    """Strides with which nobody has to copy a result where with the usual ones somebody would.

    Rows of operands of products start on vec4s, and have room for whole ones.

    Args:
        result: of a call that is lowered.
        usual: its strides otherwise.
        can_write: whether the kernel can write a tensor that lies so.

    Returns:
        None if there are no such strides, or nobody would.
    """
    reading = _reading(result)
    dims = [d for d, size in enumerate(result.sizes) if size != 1]
    if (reading.product is None and not reading.views) or len(dims) > _MOST_DIMENSIONS or result.numel == 0:
        return None
    if _seen(result, usual, reading) is not None:
        return None
    for strides in _layouts(result.sizes, dims):
        seen = _seen(result, strides, reading)
        if seen is not None and _is_dense(seen) and can_write(_lying(result, strides)):
            return strides
    return None


def wanted_of(result: Value) -> tuple[int, ...] | None:
    """The same for a result that any kernel writes."""
    return wanted_strides(result, default_strides(result.sizes, result.dtype))


def _reading(result: Value) -> _Reading:
    views: list[Node] = []
    value = result
    for _ in range(_MOST_VIEWS):
        readers = [user for user, _ in value.uses]
        if len(readers) != 1:
            break
        (reader,) = readers
        whole = _whole(value, reader)
        if whole is not None:
            value = whole.outputs[0]
        elif is_view(reader) and reader.args[0] is value:
            views.append(reader)
            value = reader.output
        else:
            return _Reading(views, reader if has_trait(reader.qualified_op, Trait.PRODUCT) else None, value)
    return _Reading(views, None, value)


def _whole(value: Value, reader: Node) -> Node | None:
    """The node that makes what a value becomes within it, if the reader is one of its steps."""
    body = None if value.producer is None else value.producer.block
    return body.node if body is not None and body is reader.block else None


def _layouts(sizes: Sequence[int], dims: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Strides for each order of dimensions, row-major first, with rows of whole vec4s and without gaps."""
    for order in permutations(dims):
        own = [sizes[d] for d in order]
        for last in (aligned_channels(own[-1]), own[-1]) if own else ():
            steps = dict(zip(order, contiguous_strides([*own[:-1], last]), strict=True))
            yield tuple(steps.get(d, 1) for d in range(len(sizes)))


def _seen(result: Value, strides: Sequence[int], reading: _Reading) -> DeviceTensor | None:
    """What the last view shows of a result; None if somebody copies."""
    tensor: DeviceTensor | None = _lying(result, strides)
    for view in reading.views:
        tensor = None if tensor is None else shown(tensor, view)
    if tensor is None or (reading.product is not None and not _takes(reading.product, reading.operand, tensor)):
        return None
    return tensor


def _is_dense(tensor: DeviceTensor) -> bool:
    """Whether neighbours along the last dimension, or among the channels of images, are neighbours in memory."""
    dims = (-1, 1) if tensor.rank == _IMAGE_RANK else (-1,)
    return tensor.rank == 0 or any(tensor.sizes[d] == 1 or tensor.strides[d] == 1 for d in dims)


def _lying(result: Value, strides: Sequence[int]) -> DeviceTensor:
    return DeviceTensor(Storage(0), result.dtype, result.sizes, tuple(strides))


def _takes(product: Node, operand: Value, tensor: DeviceTensor) -> bool:
    """Whether a product reads an operand that lies so as it is."""
    start = 1 if "alpha" in argument_names(product.qualified_op) else 0
    left, right = product.args[start : start + 2]
    if operand is left and operand.rank > 1:
        is_batched = isinstance(right, Value) and math.prod(right.sizes[:-2]) != 1
        return batched_view(tensor, operand.rank - 2 if is_batched else 0) is not None
    if operand is not right or operand.rank < 2 or "weight" in argument_names(product.qualified_op):
        return True
    view = batched_view(tensor, operand.rank - 2)
    return view is not None and (view.sizes[1] == 1 or view.strides[1] >= aligned_channels(view.sizes[2]))
