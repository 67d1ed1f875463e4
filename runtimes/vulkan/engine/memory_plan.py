"""Where temporaries lie: storages whose lives don't overlap share bytes of one arena.

Greedy by size, as in Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020): the largest
storages are placed first, each in the tightest gap between those placed that are alive at the same time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Life:
    """Bytes that are needed from one step of a plan to another, both included."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class ArenaPlan:
    """Byte offsets, in the order of the lives given, and how many bytes the arena takes."""

    offsets: tuple[int, ...]
    nbytes: int


def plan_arena(lives: Sequence[Life], alignment: int, chunk_bytes: int) -> ArenaPlan:
    """Place every life so that no two that overlap share a byte.

    Args:
        lives: none larger than a chunk.
        alignment: every offset is a multiple of it.
        chunk_bytes: a multiple of the alignment; the arena is cut at its multiples, and no life crosses a cut.

    Returns:
        The smaller of the plans that placing by size and placing by time give.
    """
    orders: list[Callable[[int], tuple[int, int]]] = [
        lambda index: (-lives[index].nbytes, lives[index].first),
        lambda index: (lives[index].first, -lives[index].nbytes),
    ]
    best: ArenaPlan | None = None
    least = largest_live_set(lives)
    for order in orders:
        plan = _place(lives, sorted(range(len(lives)), key=order), alignment, chunk_bytes)
        if best is None or plan.nbytes < best.nbytes:
            best = plan
        if best.nbytes == least:
            break
    assert best is not None
    return best


def largest_live_set(lives: Sequence[Life]) -> int:
    """The most bytes alive at one step: no plan needs fewer."""
    changes: dict[int, int] = {}
    for life in lives:
        changes[life.first] = changes.get(life.first, 0) + life.nbytes
        changes[life.last + 1] = changes.get(life.last + 1, 0) - life.nbytes
    alive = largest = 0
    for step in sorted(changes):
        alive += changes[step]
        largest = max(largest, alive)
    return largest


def align(value: int, alignment: int) -> int:
    """The smallest multiple of ``alignment`` that is at least ``value``."""
    return -(-value // alignment) * alignment


def _place(lives: Sequence[Life], order: Sequence[int], alignment: int, chunk_bytes: int) -> ArenaPlan:
    offsets = [0] * len(lives)
    placed: list[tuple[int, int, int, int]] = []
    # Where each begins and ends, in bytes and in steps; in order of the bytes.
    for index in order:
        life = lives[index]
        first, last = life.first, life.last
        occupied = [(start, end) for start, end, begun, done in placed if first <= done and begun <= last]
        offset = offsets[index] = _best_gap(occupied, life.nbytes, alignment, chunk_bytes)
        insort(placed, (offset, offset + life.nbytes, first, last))
    return ArenaPlan(tuple(offsets), max((place[1] for place in placed), default=0))


def _best_gap(occupied: Sequence[tuple[int, int]], nbytes: int, alignment: int, chunk_bytes: int) -> int:
    """Offset in the tightest gap that ``nbytes`` fit into, or after everything."""
    best_offset, best_size = -1, 0
    reached = 0
    for start, end in occupied:
        offset = _aligned_offset(reached, nbytes, alignment, chunk_bytes)
        gap = start - reached
        if offset + nbytes <= start and (best_offset < 0 or gap < best_size):
            best_offset, best_size = offset, gap
        reached = max(reached, end)
    return best_offset if best_offset >= 0 else _aligned_offset(reached, nbytes, alignment, chunk_bytes)


def _aligned_offset(start: int, nbytes: int, alignment: int, chunk_bytes: int) -> int:
    offset = align(start, alignment)
    crosses = nbytes > 0 and offset // chunk_bytes != (offset + nbytes - 1) // chunk_bytes
    return align(offset, chunk_bytes) if crosses else offset
