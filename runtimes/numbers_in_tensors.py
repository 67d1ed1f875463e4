"""Operators that take a number out of a tensor, as operators that take the number: so only that number is read, and the
other tensors stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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


WITH_NUMBERS: dict[str, Callable[[Apply, str, Sequence[Any], Origin], tuple[str, Sequence[Any]]]] = {
    "aten::narrow.Tensor": _narrow,
    "aten::one_hot": _one_hot,
    "aten::tensor_split.tensor_indices_or_sections": _tensor_split,
}
"""By qualified name, what gives the operator to apply instead, and its arguments."""
