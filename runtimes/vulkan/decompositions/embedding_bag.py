"""Sums, means and maxima of rows of a table, bag by bag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.refusals import unless
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes


class Mode(IntEnum):
    """What becomes of the rows of a bag."""

    SUM = 0
    MEAN = 1
    MAX = 2


@decomposes(
    "aten::embedding_bag",
    "aten::embedding_bag.padding_idx",
    "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only",
)
def embedding_bag(build: NodeBuilder, node: Node) -> Sequence[Value | None] | None:
    """Bags whose bounds are known become rows of a matrix of indices, the shorter ones padded; of others, each row is
    put to those of its bag.

    Nothing else than the first result is computed: the others are for training.
    """
    weight, indices, offsets, _, mode, _, factors, has_last, padding = (*node.args, None)[:9]
    if indices.rank != 1 or any(value.is_used for value in node.outputs[1:]):
        return None
    padding = None if padding is None or padding == -1 else padding % weight.sizes[0]
    read = _Rows(weight, indices, factors, padding)
    bags = offsets.sizes[0] - bool(has_last)
    if offsets.elements is not None:
        made = _of_known_bounds(build, read, offsets.elements.tolist(), bags, Mode(mode))
    elif indices.numel == 0 or bags < 1:
        made = None
    else:
        made = _put_together(build, *read.made(build), _bag_of_each(build, offsets, indices.numel), bags, Mode(mode))
    return None if made is None else (made, None, None, None)


@dataclass(frozen=True)
class _Rows:
    """Which rows of a table are read, and what they are multiplied by."""

    table: Value
    indices: Value
    factors: Value | None
    padding: int | None
    """The row that counts nowhere."""

    def arranged(self, move: Callable[[Value], Value]) -> _Rows:
        """The same in another order or shape."""
        factors = None if self.factors is None else move(self.factors)
        return _Rows(self.table, move(self.indices), factors, self.padding)

    def made(self, build: NodeBuilder) -> tuple[Value, Value | None]:
        """The rows, and which are padding, if any can be."""
        rows = build("aten::embedding", self.table, self.indices)
        if self.factors is not None:
            rows = build("aten::mul.Tensor", rows, build("aten::unsqueeze", self.factors, -1))
        if self.padding is None:
            return rows, None
        return rows, build("aten::unsqueeze", build("aten::eq.Scalar", self.indices, self.padding), -1)


def _of_known_bounds(build: NodeBuilder, read: _Rows, starts: list[int], bags: int, mode: Mode) -> Value | None:
    count = read.indices.numel
    ends = [*starts[1:], count][: len(starts)]
    lengths = [end - start for start, end in zip(starts, ends, strict=True)][:bags]
    length = max(lengths, default=0)
    if length == 0 or min(lengths) < 0 or starts[0] != 0 or sum(lengths) != count:
        return None
    if min(lengths) == length:
        matrix = read.arranged(lambda value: build("aten::reshape", value, [bags, length]))
        return _reduced(build, *matrix.made(build), mode)
    steps = torch.arange(length)
    places = torch.tensor(starts[:bags])[:, None] + steps
    is_short = Value.of_elements((steps >= torch.tensor(lengths)[:, None])[..., None])
    chosen = Value.of_elements(places.clamp(max=count - 1))
    rows, unused = read.arranged(lambda value: build("aten::index.Tensor", value, [chosen])).made(build)
    unused = is_short if unused is None else build("aten::logical_or", is_short, unused)
    return _reduced(build, rows, unused, mode)


def _bag_of_each(build: NodeBuilder, offsets: Value, count: int) -> Value:
    """Which bag each index is in. Bags that don't begin with the first index, or begin beyond the last, are refused,
    as torch does."""
    wrong = build("aten::logical_or", build("aten::lt.Scalar", offsets, 0), build("aten::gt.Scalar", offsets, count))
    first = build("aten::ne.Scalar", build("aten::narrow", offsets, 0, 0, 1), 0)
    places = Value.of_elements(torch.arange(count))
    after = build("aten::searchsorted.Tensor", build("aten::to.dtype", offsets, torch.int64), places, right=True)
    return unless(build, build("aten::logical_or", wrong, first), build("aten::sub.Scalar", after, 1))


def _put_together(build: NodeBuilder, rows: Value, unused: Value | None, bag: Value, bags: int, mode: Mode) -> Value:
    """The rows of each bag as one; what lies behind the last bag goes into one more, which is cut off."""
    neutral = float("-inf") if mode == Mode.MAX else 0.0
    rows = rows if unused is None else build("aten::masked_fill.Scalar", rows, unused, neutral)
    start = build("aten::new_full", rows, [bags + 1, rows.sizes[1]], neutral)
    if mode == Mode.MAX:
        made = build("aten::index_reduce", start, 0, bag, rows, "amax")
        is_empty = build("aten::eq.Scalar", _counts(build, rows, unused, bag, bags), 0.0)
        made = build("aten::masked_fill.Scalar", made, is_empty, 0.0)
    else:
        made = build("aten::index_add", start, 0, bag, rows)
    if mode == Mode.MEAN:
        made = build("aten::div.Tensor", made, build("aten::clamp_min", _counts(build, rows, unused, bag, bags), 1))
    return build("aten::narrow", made, 0, 0, bags)


def _counts(build: NodeBuilder, rows: Value, unused: Value | None, bag: Value, bags: int) -> Value:
    """How many rows of each bag are used, as a column."""
    ones = build("aten::new_ones", rows, [rows.sizes[0], 1])
    ones = ones if unused is None else build("aten::masked_fill.Scalar", ones, unused, 0.0)
    return build("aten::index_add", build("aten::new_zeros", rows, [bags + 1, 1]), 0, bag, ones)


def _reduced(build: NodeBuilder, rows: Value, unused: Value | None, mode: Mode) -> Value:
    """The rows of each bag as one, without those that are ``unused``; of an empty bag, zeros."""
    if mode == Mode.MAX:
        if unused is None:
            return build("aten::amax", rows, [1])
        largest = build("aten::amax", build("aten::masked_fill.Scalar", rows, unused, float("-inf")), [1])
        return build("aten::masked_fill.Scalar", largest, build("aten::all.dim", unused, 1), 0.0)
    if unused is None:
        return build("aten::mean.dim" if mode == Mode.MEAN else "aten::sum.dim_IntList", rows, [1])
    total = build("aten::sum.dim_IntList", build("aten::masked_fill.Scalar", rows, unused, 0.0), [1])
    if mode == Mode.SUM:
        return total
    used = build("aten::to.dtype", build("aten::logical_not", unused), rows.dtype)
    count = build("aten::clamp_min", build("aten::sum.dim_IntList", used, [1]), 1)
    return build("aten::div.Tensor", total, count)
