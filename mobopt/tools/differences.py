"""How far one tensor is from another, in the few numbers that tell what kind of difference it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

_PIECE = 1 << 20
"""Elements that are widened to float64 at a time."""


@contextmanager
def _one_thread() -> Iterator[None]:
    """A piece takes a dozen short steps. Where cores are taken, as by a driver that computes on the CPU, threads that
    wait for one another in each step take thirty times as long as one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Difference:
    """A tensor beside its reference."""

    error: float
    """The largest difference of an element, over the largest finite magnitude of the reference; infinite where one of
    the two is not a number, or another infinity."""
    mean: float
    """Mean difference of the elements that are finite in both, on the same scale."""
    cosine: float
    """Cosine of the angle between the two, of elements that are finite in both; 1 if both are zero."""
    scale: float
    """The largest finite magnitude of the reference."""
    nans: tuple[int, int]
    """Elements that are not a number: of the reference, and of the other."""
    infinities: tuple[int, int]


@_one_thread()
def difference(reference: torch.Tensor, other: torch.Tensor) -> Difference:
    """Compare two tensors of the same shape, of any dtypes, a piece at a time."""
    scale = max((_largest(left) for left, _ in _pieces(reference, other)), default=0.0)
    worst, total, count = 0.0, 0.0, 0
    products = torch.zeros(3, dtype=torch.float64)
    counts = torch.zeros(4, dtype=torch.int64)
    unit = scale or 1.0
    for left, right in _pieces(reference, other):
        kinds = (left.isnan(), right.isnan(), left.isinf(), right.isinf())
        counts += torch.stack([kind.sum() for kind in kinds])
        same = (left == right) | (kinds[0] & kinds[1])
        finite = left.isfinite() & right.isfinite()
        apart = torch.where(same, 0.0, (left - right).abs())
        if bool((~same & ~finite).any()):
            worst = math.inf
        left, right, apart = left[finite] / unit, right[finite] / unit, apart[finite] / unit
        worst = max(worst, float(apart.max()) if apart.numel() else 0.0)
        total, count = total + float(apart.sum()), count + apart.numel()
        products += torch.stack([left @ left, right @ right, left @ right])
    if scale == 0 and worst > 0:
        worst = math.inf
    lengths = math.sqrt(float(products[0])) * math.sqrt(float(products[1]))
    zeros = float(products[0]) == float(products[1]) == 0
    cosine = min(1.0, float(products[2]) / lengths) if lengths else (1.0 if zeros else 0.0)
    nans, infinities = counts[:2].tolist(), counts[2:].tolist()
    return Difference(worst, total / count if count else 0.0, cosine, scale, tuple(nans), tuple(infinities))


def _pieces(reference: torch.Tensor, other: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    flat = reference.detach().reshape(-1), other.detach().reshape(-1)
    for start in range(0, reference.numel(), _PIECE):
        left, right = (_wide(tensor[start : start + _PIECE]) for tensor in flat)
        yield left, right


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor).reshape(-1).double() if tensor.is_complex() else tensor.double()


def _largest(piece: torch.Tensor) -> float:
    finite = piece[piece.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


@dataclass(frozen=True)
class RankChanges:
    """Whether the largest elements of an output's rows are the same ones."""

    k: int
    rows: int
    first: int
    """Rows whose largest element is another."""
    order: int
    """Rows whose ``k`` largest are others, or in another order."""

    def __str__(self) -> str:
        if self.rows > 1:
            text = f"of {self.rows} rows, the largest element is another in {self.first}"
            return f"{text}, the order of the {self.k} largest in {self.order}"
        first, order = ("another" if count else "the same" for count in (self.first, self.order))
        return f"the largest element is {first}, the order of the {self.k} largest {order}"


_RANKED = 5
_IMAGES = 4
"""Dimensions from which the second is that of channels: scores of classes, for each place of an image."""


def rank_changes(reference: torch.Tensor, other: torch.Tensor) -> RankChanges | None:
    """Of rows along the last dimension, or along the channels of images; None for what has no rows, or no order."""
    if reference.dim() == 0 or reference.is_complex() or not reference.is_floating_point() or not reference.numel():
        return None
    ranked = 1 if reference.dim() >= _IMAGES else -1
    width = reference.shape[ranked]
    if width < 2:
        return None
    k = min(_RANKED, width)
    rows = (tensor.detach().movedim(ranked, -1).reshape(-1, width) for tensor in (reference, other))
    left, right = (tensor.topk(k).indices for tensor in rows)
    apart = left != right
    return RankChanges(k, len(left), int(apart[:, 0].sum()), int(apart.any(1).sum()))
