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

RANKS_OF_FORMATS = (4, 5)
"""Ranks of tensors for which PyTorch knows orders with the channels last."""
_RANK_OF_IMAGES = 4
_CHANNELS_LAST = (1, 3, 2, 0)
"""Dimensions of images in ``torch.channels_last``, innermost first."""


def row_major(sizes: tuple[int, ...], operands: Sequence[Lying]) -> Strides:
    """Whatever the order of operands is."""
    return dense(sizes)


def row_major_but_images(sizes: tuple[int, ...], operands: Sequence[Lying]) -> Strides | None:
    """As :func:`row_major`, where operands can't have their channels last."""
    if any(len(given) in RANKS_OF_FORMATS for given, _ in operands):
        return None
    return dense(sizes)


def as_image(sizes: tuple[int, ...], operands: Sequence[Lying]) -> Strides | None:
    """In the memory format of the first operand, where that is a batch of images."""
    given, strides = operands[0]
    if len(given) != _RANK_OF_IMAGES or 0 in given:
        return None
    is_last = has_channels_last(given, strides)
    if not is_last and _lie_alike(given, strides, dense(given, _CHANNELS_LAST)):
        return None  # sizes of 1 have strides of their own, and operators differ in what they make of these
    return dense(sizes, _CHANNELS_LAST if is_last else None)


def as_any_image(sizes: tuple[int, ...], operands: Sequence[Lying]) -> Strides | None:
    """With the channels last where images or filters, the first two operands, have them so."""
    if any(len(given) != _RANK_OF_IMAGES or 0 in given for given, _ in operands[:2]):
        return None
    is_last = any(has_channels_last(*operand) for operand in operands[:2])
    return dense(sizes, _CHANNELS_LAST if is_last else None)


def as_all_images(sizes: tuple[int, ...], operands: Sequence[Lying]) -> Strides | None:
    """With the channels last where all operands have them so; row-major where they can't have."""
    if all(len(given) not in RANKS_OF_FORMATS for given, _ in operands):
        return dense(sizes)
    if any(len(given) != _RANK_OF_IMAGES or 0 in given for given, _ in operands):
        return None
    is_last = all(has_channels_last(*operand) for operand in operands)
    return dense(sizes, _CHANNELS_LAST if is_last else None)


def outermost_first(strides: Sequence[int]) -> list[int]:
    """Dimensions in the order in which they lie."""
    return sorted(range(len(strides)), key=strides.__getitem__, reverse=True)


def has_channels_last(sizes: tuple[int, ...], strides: Strides) -> bool:
    """Whether PyTorch takes a batch of images for one in ``torch.channels_last``, also where it has gaps: the rule of
    ``suggest_memory_format``, with its choice where sizes of 1 leave one."""
    if strides[1] == 0:
        return False
    least = 0
    for dim in _CHANNELS_LAST:
        if strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * sizes[dim]
    return True


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


def _lie_alike(sizes: tuple[int, ...], strides: Strides, others: Strides) -> bool:
    """Whether strides differ in dimensions of size 1 at most."""
    return all(size == 1 or one == other for size, one, other in zip(sizes, strides, others, strict=True))


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
