from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mobopt.runtimes.vulkan.engine.memory_plan import Life, largest_live_set, plan_arena

_ALIGNMENT = 256
_CHUNK = 1 << 20


@st.composite
def _lives(draw: st.DrawFn) -> Life:
    first = draw(st.integers(0, 30))
    return Life(draw(st.integers(1, 40_000)), first, first + draw(st.integers(0, 8)))


@settings(max_examples=200, deadline=None)
@given(st.lists(_lives(), max_size=30))
def test_overlapping_lives_share_no_byte(lives):
    plan = plan_arena(lives, _ALIGNMENT, _CHUNK)
    placed = list(zip(plan.offsets, lives, strict=True))
    for (start, life), (other_start, other) in combinations(placed, 2):
        if life.first <= other.last and other.first <= life.last:
            assert start + life.nbytes <= other_start or other_start + other.nbytes <= start
    assert all(offset % _ALIGNMENT == 0 for offset in plan.offsets)
    assert plan.nbytes == max((offset + life.nbytes for offset, life in placed), default=0)
    assert plan.nbytes >= largest_live_set(lives)


@settings(max_examples=100, deadline=None)
@given(st.lists(_lives(), max_size=30))
def test_nothing_crosses_a_chunk(lives):
    chunk = 40_192
    plan = plan_arena(lives, _ALIGNMENT, chunk)
    for offset, life in zip(plan.offsets, lives, strict=True):
        assert offset // chunk == (offset + life.nbytes - 1) // chunk


def test_largest_live_set_counts_both_ends():
    assert largest_live_set([Life(10, 0, 2), Life(7, 2, 3), Life(5, 3, 4)]) == 17
    assert largest_live_set([]) == 0


def _plain_network(sizes: list[int]) -> list[Life]:
    """Each layer reads the one before."""
    return [Life(size, step, step + 1) for step, size in enumerate(sizes)]


def _residual_network(blocks: int) -> list[Life]:
    """Bottlenecks: the block's input lives until the sum at its end; sizes shrink along the way."""
    lives = []
    for block in range(blocks):
        size, step = 800_000 >> (block // 3), block * 4
        lives += [Life(size, step, step + 4), Life(size // 4, step + 1, step + 2), Life(size // 4, step + 2, step + 3)]
        lives.append(Life(size, step + 3, step + 4))
    return lives


def _u_network(depth: int) -> list[Life]:
    """Encoder outputs live until the decoder reads them."""
    last = 4 * depth
    encoder = [Life(1_000_000 >> level, 2 * level, last - 2 * level) for level in range(depth)]
    inner = [Life(1_000_000 >> (level + 1), 2 * level + 1, 2 * level + 2) for level in range(depth)]
    decoder = [Life(1_000_000 >> level, last - 2 * level - 1, last - 2 * level + 1) for level in range(depth)]
    return encoder + inner + decoder


def _dense_network(layers: int) -> list[Life]:
    """A block's buffer lives through it; every layer has two short-lived results of its own."""
    lives = [Life(64_000 * layers, 0, 3 * layers)]
    for layer in range(layers):
        lives += [Life(4_000 * (layer + 1), 3 * layer, 3 * layer + 1), Life(96_000, 3 * layer + 1, 3 * layer + 2)]
    return lives


@pytest.mark.parametrize(
    "lives",
    [
        _plain_network([3_211_264, 1_605_632, 4_816_896, 1_204_224, 1_806_336, 301_056, 602_112, 150_528] * 3),
        _residual_network(16),
        _u_network(5),
        _dense_network(24),
    ],
    ids=["plain", "residual", "u", "dense"],
)
def test_real_shapes_stay_near_the_lower_bound(lives):
    assert plan_arena(lives, _ALIGNMENT, 1 << 30).nbytes <= 1.2 * largest_live_set(lives)
