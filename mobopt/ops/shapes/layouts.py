"""In which order new tensors lie in memory, where operands don't all lie row-major.

A layout is a function of a result's sizes and of the operands' sizes and strides, all numbers, that gives strides.
PyTorch's own rules are followed, for ``view`` and ``is_contiguous`` show them to models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Strides: TypeAlias = "tuple[int, ...]"
Lying: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]]"
"""Sizes and strides of an operand."""
Layout: TypeAlias = "Callable[[tuple[int, ...], Sequence[Lying]], tuple[int, ...] | None]"
"""The strides of a result of these sizes, or None where it isn't known."""
Order: TypeAlias = "Callable[[Sequence[Any]], Sequence[int] | None]"
"""The dimensions of a first result, innermost first, by the arguments of an operator, or None where it is row-major."""

_RANKS_OF_FORMATS = (4, 5)
"""Ranks of tensors for which PyTorch knows orders with the channels last."""


def row_major(sizes: tuple[int, ...], operands: Sequence[Lying]) -> Strides:
    """Whatever the order of operands is."""
    return dense(sizes)


def row_major_but_images(sizes: tuple[int, ...], operands: Sequence[Lying]) -> Strides | None:
    """As :func:`row_major`, where operands can't have their channels last."""
    if any(len(given) in _RANKS_OF_FORMATS for given, _ in operands):
        return None
    return dense(sizes)


def as_operands(sizes: tuple[int, ...], operands: Sequence[Lying]) -> Strides | None:
    """As ``TensorIterator`` lays out what pointwise operators make: dense, with dimensions in the order that they have
    in operands, of which the first that tells two apart decides."""
    if 0 in sizes:
        return None
    broadcast = [_expanded(sizes, *operand) for operand in operands]
    order = list(range(len(sizes)))[::-1]
    for end in range(1, len(order)):
        at = end
        for before in reversed(range(end)):
            comparison = _compare(order[before], order[at], sizes, broadcast)
            if comparison < 0:
                break
            if comparison > 0:
                order[before], order[at] = order[at], order[before]
                at = before
    return dense(sizes, order)


def dense(sizes: tuple[int, ...], order: Sequence[int] | None = None) -> Strides:
    """Strides of dimensions that lie in this order, the innermost first; row-major if none is given."""
    strides = [0] * len(sizes)
    step = 1
    for dim in range(len(sizes))[::-1] if order is None else order:
        strides[dim] = step
        step *= max(sizes[dim], 1)
    return tuple(strides)


def as_exchanged_operands(sizes: tuple[int, ...], operands: Sequence[Lying]) -> Strides | None:
    """As :func:`as_operands`, of an operator that exchanges them."""
    return as_operands(sizes, operands[::-1])


def _expanded(sizes: tuple[int, ...], given: tuple[int, ...], strides: tuple[int, ...]) -> Strides:
    """An operand's strides where it is expanded to the sizes of the result."""
    lead = len(sizes) - len(given)
    steps = (
        0 if size == 1 and size != whole else stride
        for whole, size, stride in zip(sizes[lead:], given, strides, strict=True)
    )
    return (*(0,) * lead, *steps)


def _compare(inner: int, outer: int, sizes: tuple[int, ...], operands: Sequence[Strides]) -> int:
    """Above 0 if two dimensions are to change places, below if they are in order, 0 if no operand tells."""
    for strides in operands:
        first, second = strides[inner], strides[outer]
        if first == 0 or second == 0:
            continue
        if first != second:
            return 1 if first > second else -1
        if sizes[inner] > sizes[outer]:
            return 1
    return 0
