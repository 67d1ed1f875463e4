"""Arithmetic of sizes and strides: merging dimensions, broadcasting, the strides of a reshaped view. No device, no
tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from mobopt.ir.guards import UndecidedError
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, contiguous_strides

_KEPT_NESTS = 4096


@dataclass(frozen=True)
class Iteration:
    """A loop nest over several tensors at once: sizes, and for each tensor the strides of those dimensions."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.sizes)


def merged(sizes: Sequence[int], strides: Sequence[Sequence[int]], *, order_by: int | None = 0) -> Iteration:
    """The same loop nest with as few dimensions as possible, at least one.

    Dimensions of size 1 are dropped and neighbours that are one run in every tensor become one.

    Args:
        sizes: sizes of the nest.
        strides: for each tensor, a stride per dimension.
        order_by: the tensor whose strides put the dimensions in order, outermost first; None keeps the order.
    """
    nest = tuple(sizes), tuple(map(tuple, strides)), order_by
    try:
        return _kept_merged(*nest)
    except UndecidedError:  # sizes of a recording are no keys
        return _merged(*nest)


def _merged(sizes: tuple[int, ...], strides: tuple[tuple[int, ...], ...], order_by: int | None) -> Iteration:
    """See :func:`merged`."""
    dims = [d for d, size in enumerate(sizes) if size != 1]
    if order_by is not None:
        dims.sort(key=lambda d: -abs(strides[order_by][d]))
    new_sizes: list[int] = []
    new_strides: list[list[int]] = [[] for _ in strides]
    for d in dims:
        steps = [tensor[d] for tensor in strides]
        if new_sizes and all(new[-1] == step * sizes[d] for new, step in zip(new_strides, steps, strict=True)):
            new_sizes[-1] *= sizes[d]
            for new, step in zip(new_strides, steps, strict=True):
                new[-1] = step
        else:
            new_sizes.append(sizes[d])
            for new, step in zip(new_strides, steps, strict=True):
                new.append(step)
    if not new_sizes:
        return Iteration((1,), tuple((1,) for _ in strides))
    return Iteration(tuple(new_sizes), tuple(tuple(new) for new in new_strides))


_kept_merged = lru_cache(maxsize=_KEPT_NESTS)(_merged)
"""Equal layers ask for the same again and again."""


def broadcast_sizes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The sizes that shapes broadcast to, by torch's rules (the shapes are known to be compatible)."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((size for size in column if size != 1), 1) for column in zip(*padded, strict=True))


def expanded(tensor: DeviceTensor, sizes: Sequence[int]) -> DeviceTensor:
    """The tensor as a view of larger sizes: new leading dimensions, and stride 0 where a size of 1 grows. -1 keeps
    a size."""
    extra = len(sizes) - tensor.rank
    new_sizes: list[int] = []
    strides: list[int] = []
    for d, size in enumerate(sizes):
        own = tensor.sizes[d - extra] if d >= extra else 1
        grown = own if size == -1 else size
        new_sizes.append(grown)
        strides.append(tensor.strides[d - extra] if d >= extra and own == grown else 0)
    return tensor.view(new_sizes, strides)


def view_strides(sizes: Sequence[int], strides: Sequence[int], new_sizes: Sequence[int]) -> tuple[int, ...] | None:
    """Strides that show the same elements with other sizes, or None if only a copy can.

    The old dimensions fall into runs that are dense among themselves; each new dimension must lie within one run.
    """
    if math.prod(sizes) == 0:
        return contiguous_strides(new_sizes)
    runs = [list(run) for run in _dense_runs(sizes, strides)]
    result: list[int] = []
    for size in reversed(new_sizes):
        if size == 1:
            result.append(runs[-1][1] if runs else 1)
            continue
        while runs and runs[-1][0] == 1:
            runs.pop()
        if not runs or runs[-1][0] % size:
            return None
        result.append(runs[-1][1])
        runs[-1][0] //= size
        runs[-1][1] *= size
    return tuple(reversed(result))


def _dense_runs(sizes: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """(size, stride) of each group of neighbouring dimensions that is a single run, outermost first."""
    runs: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == stride * size:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    return runs


def normalized_dim(dim: int, rank: int) -> int:
    """A dimension counted from the front; a scalar has the one dimension 0."""
    return dim % max(rank, 1)


def normalized_dims(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Dimensions counted from the front, in ascending order; None and an empty list mean all of them."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(rank))
    listed = (dims,) if isinstance(dims, int) else dims
    return tuple(sorted(normalized_dim(d, rank) for d in listed)) if rank else ()
