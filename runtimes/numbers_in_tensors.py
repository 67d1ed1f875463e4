"""Operators that take numbers out of a tensor, or select by a mask, as operators that take the numbers or the places:
so only that tensor is read, and the others stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mobopt.ir import Origin
from mobopt.runtimes.abstract import TracedTensor

Apply = Callable[[str, Sequence[Any], Origin], Any]
"""Applies an operator to traced tensors; see :meth:`mobopt.runtimes.recorder.Recorder.apply`."""


def _narrow(apply: Apply, op: str, args: Sequence[Any], source: Origin) -> tuple[str, Sequence[Any]]:
    x, dim, start, length = args
    if start.meta.dim() != 0:
        return op, args  # torch refuses it
    return "aten::narrow", [x, dim, apply("aten::item", [start], source), length]


def _one_hot(apply: Apply, op: str, args: Sequence[Any], source: Origin) -> tuple[str, Sequence[Any]]:
    classes: TracedTensor = args[0]
    if args[1] != -1 or classes.meta.numel() == 0:
        return op, args
    largest = apply("aten::item", [apply("aten::max", [classes], source)], source)
    return op, [classes, max(largest + 1, 1)]


def _tensor_split(apply: Apply, op: str, args: Sequence[Any], source: Origin) -> tuple[str, Sequence[Any]]:
    x, given, dim = args
    if given.meta.dim() == 0:
        return "aten::tensor_split.sections", [x, apply("aten::item", [given], source), dim]
    return "aten::tensor_split.indices", [x, apply("prim::tolist", [given], source), dim]


def _index(apply: Apply, op: str, args: Sequence[Any], source: Origin) -> tuple[str, Sequence[Any]]:
    """A mask stands for the places where it is true, in as many indices as it has dimensions."""
    x, items = args
    indices: list[Any] = []
    for item in items:
        if not is_mask(item):
            indices.append(item)
            continue
        rank = item.meta.dim()
        if rank == 0 or item.meta.shape != x.meta.shape[len(indices) : len(indices) + rank]:
            return op, args  # torch makes a dimension of it, or refuses it
        places = apply("aten::nonzero", [item], source)
        indices += [apply("aten::select.int", [places, 1, number], source) for number in range(rank)]
    return op, [x, indices]


def is_mask(item: Any) -> bool:
    """Whether an index is a tensor that says of each element whether it is chosen."""
    return isinstance(item, TracedTensor) and item.meta.dtype in (torch.bool, torch.uint8)


def _masked_select(apply: Apply, op: str, args: Sequence[Any], source: Origin) -> tuple[str, Sequence[Any]]:
    x, mask = args
    try:
        shape = list(torch.broadcast_shapes(x.meta.shape, mask.meta.shape))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return op, args  # torch refuses it
    if not shape or mask.meta.dtype != torch.bool:
        return op, args
    x, mask = (apply("aten::expand", [tensor, shape, False], source) for tensor in (x, mask))
    return _index(apply, "aten::index.Tensor", [x, [mask]], source)


def _repeat_interleave(apply: Apply, op: str, args: Sequence[Any], source: Origin) -> tuple[str, Sequence[Any]]:
    x, repeats, dim, size = args
    if dim is None:
        x, dim = apply("aten::reshape", [x, [-1]], source), 0
    if x.meta.dim() == 0 or repeats.meta.dim() > 1:
        return op, args  # torch takes elements, or refuses it
    if repeats.meta.numel() == 1:  # all alike
        repeats = apply("aten::expand", [repeats, [x.meta.shape[dim]], False], source)
    if repeats.meta.shape[0] != x.meta.shape[dim]:
        return op, args  # torch refuses it
    return "aten::index_select", [x, dim, apply("aten::repeat_interleave.Tensor", [repeats, size], source)]


WITH_NUMBERS: dict[str, Callable[[Apply, str, Sequence[Any], Origin], tuple[str, Sequence[Any]]]] = {
    "aten::index.Tensor": _index,
    "aten::masked_select": _masked_select,
    "aten::narrow.Tensor": _narrow,
    "aten::one_hot": _one_hot,
    "aten::repeat_interleave.self_Tensor": _repeat_interleave,
    "aten::tensor_split.tensor_indices_or_sections": _tensor_split,
}
"""By qualified name, what gives the operator to apply instead, and its arguments."""
