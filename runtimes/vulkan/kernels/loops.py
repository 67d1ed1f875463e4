"""Nests of loops that are too long for one dispatch, cut into boxes for several."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS

Box = tuple[tuple[int, int], ...]
"""Begin and end of each loop of a nest, outermost first."""

STRETCH = 64
"""Elements that the shaders for pools and general convolutions add up before they add their sum to the total."""

_MOST = 2 * USUAL_ITERATIONS


def loop_iterations(lengths: Sequence[int]) -> int:
    """How often an invocation goes round the loops of a nest, all of them together."""
    total = 0
    for length in reversed(lengths):
        total = length * (1 + total)
    return total


def summing_iterations(lengths: Sequence[int]) -> int:
    """The same where the innermost loop adds up :data:`STRETCH` elements at a time."""
    *outer, inner = lengths
    return loop_iterations([*outer, -(-inner // STRETCH), min(inner, STRETCH)])


def loop_boxes(lengths: Sequence[int], most: int = _MOST) -> Iterator[Box]:
    """Boxes that together are the whole nest, in its order, each of about ``most`` iterations at most: outer loops are
    cut before inner ones."""
    pieces = list(lengths)
    for d, length in enumerate(lengths):
        inside = 1 + loop_iterations(pieces[d + 1 :])
        pieces[d] = max(min(length, most // inside), 1)
        if pieces[d] * inside <= most:
            break
    ranges = [
        [(begin, min(begin + piece, length)) for begin in range(0, length, piece)] or [(0, 0)]
        for length, piece in zip(lengths, pieces, strict=True)
    ]
    return itertools.product(*ranges)
