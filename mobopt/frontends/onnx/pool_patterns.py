"""Pools of PyTorch that exporters write as indices, masks and sums, known again by the graph that was made of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from mobopt.frontends.onnx.operands import Operand
from mobopt.frontends.onnx.patterns import is_all, is_number, made_by
from mobopt.frontends.onnx.registry import Call
from mobopt.ir import Node, Value

_ADAPTIVE = ((2, 3, 0, 1), (4, 5, 0, 1, 2, 3))
"""Orders of the dimensions before and after the windows are taken."""


def mean_of_windows(call: Call, x: Any, axes: Sequence[Any]) -> Any:
    """``aten::adaptive_avg_pool2d`` whose windows are equally large; None if it is none.

    PyTorch's decomposition takes the rows and columns of each window by indices, ``N x C x H x kH x W x kW``, and the
    mean over ``kH`` and ``kW``.
    """
    if sorted(axis % 6 if isinstance(axis, int) else -1 for axis in axes) != [3, 5]:
        return None
    taken = _windows(x)
    return None if taken is None else _adaptive(call, *taken, torch.zeros(1, dtype=torch.bool), None)


def quotient_of_windows(call: Call, total: Any, counts: Any) -> Any:
    """The same where windows differ: what is beyond a smaller one is masked, and the sum is divided by their sizes."""
    if not isinstance(counts, torch.Tensor):
        return None
    source, places = _summed(total)
    mask = torch.zeros(1, dtype=torch.bool)
    while (filled := made_by(source, "aten::where.self")) is not None:
        more, fill = (_constant(value) for value in filled.inputs[:2])
        if more is None or not is_all(fill, 0):
            return None
        source, mask = filled.inputs[2], mask | more
    taken = _windows(source)
    if taken is None or sorted(places) != [(i, j) for i in range(taken[1].shape[1]) for j in range(taken[1].shape[3])]:
        return None
    return _adaptive(call, *taken, mask, counts)


def plane_indices(x: Any, first: Any) -> Value | None:
    """Indices of ``MaxPool`` less that of the plane's first element, as PyTorch has them; None if it is none.

    The exporter takes the latter from a pool of one element.
    """
    indices, begins = _pooled_indices(x), made_by(first, "aten::slice.Tensor")
    if indices is None or begins is None:
        return None
    pool = indices.producer
    rank = len(pool.inputs[1].constant) if pool is not None and pool.inputs[1].is_constant else 0
    beginning: Value | None = begins.outputs[0]
    for dim in reversed(range(2, 2 + rank)):
        cut = made_by(beginning, "aten::slice.Tensor")
        if cut is None or [_number(value) for value in cut.inputs[1:]] != [dim, 0, 1, 1]:
            return None
        beginning = cut.inputs[0]
    single = _pooled_indices(beginning)
    other = single.producer if single is not None else None
    if pool is None or other is None or other.inputs[0] is not pool.inputs[0]:
        return None
    return indices if _numbers(other.inputs[1]) == [1] * rank and set(_numbers(other.inputs[2]) or [1]) == {1} else None


def unpooled(call: Call, x: Any, sizes: Sequence[Any]) -> Any:
    """``aten::max_unpool2d``, of indices that a pool of at most such planes gave; None if it is none.

    PyTorch's decomposition puts all elements into a row of zeros, at indices to which each plane adds where it begins.
    """
    node = made_by(x, "aten::index_put")
    if node is None or len(sizes) != 4 or any(not isinstance(size, int) for size in sizes):
        return None
    empty, (index, *others), accumulates = _constant(node.inputs[0]), _items(node.inputs[1]), node.inputs[3]
    values, places = made_by(node.inputs[2], "aten::reshape"), made_by(index, "aten::reshape")
    if others or values is None or places is None or not is_all(empty, 0) or not is_number(accumulates, 0):
        return None
    moved = made_by(places.inputs[0], "aten::add.Tensor")
    if moved is None or not is_number(moved.inputs[2], 1):
        return None
    begins, indices = _constant(moved.inputs[1]), moved.inputs[0]
    planes, plane = sizes[0] * sizes[1], sizes[2] * sizes[3]
    expected = (torch.arange(planes) * plane).reshape(sizes[0], sizes[1], 1, 1)
    if begins is None or empty is None or empty.numel() != planes * plane or not torch.equal(begins, expected):
        return None
    pool = made_by(indices, "aten::max_pool2d_with_indices")
    pooled = _known_sizes(call, pool.inputs[0]) if pool is not None and indices is pool.outputs[1] else None
    if pooled is None or len(pooled) != 4 or list(pooled[:2]) != list(sizes[:2]) or math.prod(pooled[2:]) > plane:
        return None
    return call.emit("max_unpool2d", values.inputs[0], indices, list(sizes[2:]))


def is_of_pool(value: Any) -> bool:
    """Whether it is indices of a pool, perhaps moved forwards and reshaped: none is less than zero."""
    while isinstance(value, Value) and value.producer is not None:
        node = value.producer
        if node.qualified_op in ("aten::reshape", "aten::unsqueeze"):
            value = node.inputs[0]
        elif node.qualified_op == "aten::add.Tensor" and is_number(node.inputs[2], 1):
            begins = _constant(node.inputs[1])
            if begins is None or bool((begins < 0).any()):
                return False
            value = node.inputs[0]
        else:
            return node.op.endswith("_with_indices") and value is node.outputs[1]
    return False


def _adaptive(
    call: Call, image: Value, rows: torch.Tensor, columns: torch.Tensor, mask: torch.Tensor, counts: Any
) -> Any:
    """The pool, if each window is as torch's, and is divided by the number of its elements, if that is given."""
    sizes = _known_sizes(call, image)
    if sizes is None or len(sizes) != 4 or mask.dim() > 4:
        return None
    used = ~mask.expand(rows.shape)
    row_used, column_used = used.any(3).any(2), used.any(1).any(0)
    if not torch.equal(used, row_used[:, :, None, None] & column_used):
        return None
    if not (rows == rows[:, :, :1, :1]).all() or not (columns == columns[:1, :1]).all():
        return None
    for size, places, kept in ((sizes[2], rows[:, :, 0, 0], row_used), (sizes[3], columns[0, 0], column_used)):
        if [row[keep].tolist() for row, keep in zip(places, kept, strict=True)] != list(_edges(size, len(places))):
            return None
    areas = row_used.sum(1)[:, None] * column_used.sum(1)
    if counts is not None and (counts.dim() > 2 or not torch.equal(counts.expand(areas.shape), areas.to(counts.dtype))):
        return None
    return call.emit("adaptive_avg_pool2d", image, list(areas.shape))


def _edges(size: int, count: int) -> Iterator[list[int]]:
    """The elements of each window of an adaptive pool along one dimension."""
    for index in range(count):
        yield list(range(index * size // count, -(-(index + 1) * size // count)))


def _windows(x: Any) -> tuple[Value, torch.Tensor, torch.Tensor] | None:
    """The image, rows and columns of ``N x C x H x kH x W x kW`` elements that are taken of an image by indices."""
    after = made_by(x, "aten::permute")
    taken = made_by(after.inputs[0], "aten::index.Tensor") if after is not None else None
    before = made_by(taken.inputs[0], "aten::permute") if taken is not None else None
    if after is None or taken is None or before is None:
        return None
    if tuple(tuple(_numbers(node.inputs[1]) or ()) for node in (before, after)) != _ADAPTIVE:
        return None
    places = [_constant(value) for value in _items(taken.inputs[1])]
    if len(places) != 2 or any(place is None or place.dim() != 4 for place in places):
        return None
    rows, columns = (place for place in places if place is not None)
    return (before.inputs[0], rows, columns) if rows.shape == columns.shape else None


def _summed(total: Any) -> tuple[Any, list[tuple[int, int]]]:
    """What elements of a window are added of, and which they are."""
    places, sources, rest = list[tuple[int, int]](), list[Any](), [total]
    while rest:
        item = rest.pop()
        node = made_by(item, "aten::add.Tensor")
        if node is not None and is_number(node.inputs[2], 1):
            rest += node.inputs[:2]
            continue
        inner = made_by(item, "aten::select.int")
        outer = made_by(inner.inputs[0], "aten::select.int") if inner is not None else None
        if inner is None or outer is None or _number(inner.inputs[1]) != 4 or _number(outer.inputs[1]) != 3:
            return None, []
        places.append((_number(outer.inputs[2]), _number(inner.inputs[2])))
        sources.append(outer.inputs[0])
    return (sources[0], places) if all(source is sources[0] for source in sources) else (None, [])


def _pooled_indices(x: Any) -> Value | None:
    """Indices in planes, of those in the whole tensor that ``MaxPool`` gives."""
    moved = made_by(x, "aten::add.Tensor")
    indices = moved.inputs[0] if moved is not None else None
    node: Node | None = indices.producer if indices is not None else None
    if node is None or not node.op.endswith("_with_indices") or indices is not node.outputs[1]:
        return None
    return indices


def _known_sizes(call: Call, value: Value) -> tuple[int, ...] | None:
    """The sizes of a value that the model has a name for."""
    for operand in call.translator.environment.values():
        if isinstance(operand, Operand) and operand.value is value:
            return operand.known_sizes
    return None


def _items(value: Value) -> Sequence[Value]:
    node = made_by(value, "prim::ListConstruct")
    return () if node is None else node.inputs


def _constant(value: Value) -> torch.Tensor | None:
    constant = value.constant if value.is_constant else None
    return constant if isinstance(constant, torch.Tensor) else None


def _number(value: Value) -> Any:
    return value.constant if value.is_constant else None


def _numbers(value: Value) -> list[Any] | None:
    found = value.constant if value.is_constant else None
    return list(found) if isinstance(found, (list, tuple)) else None
