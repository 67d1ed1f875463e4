"""Which rows of a tensor other tensors have, after views, permutations and rolls of it.

A row is all that lies along one dimension: the last, or the channels of images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mobopt.ir import Node, Value
from mobopt.ir.dimensions import Expression
from mobopt.ir.nests import map_leaves
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.cpu.kernels import kernel_in_line

_MOST_ELEMENTS = 1 << 23
"""Of tensors whose elements are followed."""
_IMAGE_RANK = 4


@dataclass(frozen=True, eq=False)
class Shown:
    """What a chain of nodes, each of which shows every element of one tensor once, makes of a tensor."""

    value: Value
    order: torch.Tensor
    """int64 numbers of the tensor's rows, in the order in which the value has them."""
    axis: int
    """The dimension of the value along which its rows lie."""
    row: int
    """Elements of a row; the value's ``axis`` may hold several rows one after the other."""
    is_copied: bool
    """Whether the elements have to be moved for it."""
    is_one_copy: bool
    """Whether all of that is one copy of elements a fixed distance apart."""

    @property
    def is_whole(self) -> bool:
        """Whether the value's own rows are those of the tensor, not several of them."""
        return sizes_of(self.value)[self.axis] == self.row


@dataclass(frozen=True)
class Followed:
    """What is made of a tensor."""

    shown: list[Shown]
    has_other_rows: bool
    """Whether somebody reads what shows all of it by other rows."""


def is_mover(node: Node) -> bool:
    """Whether a node shows every element of its only tensor once."""
    if len(node.outputs) != 1 or len(node.inputs) != 1 or not isinstance(node.args[0], Value):
        return False
    if not all(has_trait(node.qualified_op, trait) for trait in (Trait.MOVES_ELEMENTS, Trait.DISTINCT)):
        return False
    source = node.args[0]
    return source.dtype == node.output.dtype and math.prod(sizes_of(source)) == math.prod(sizes_of(node.output))


def sizes_of(value: Value) -> tuple[int, ...]:
    """Sizes, of examples where they are open; no guard."""
    return tuple(_of_example(size) if isinstance(size, Expression) else size for size in value.sizes)


def row_axes(value: Value) -> Iterator[int]:
    """Dimensions along which rows may lie."""
    if value.rank > 1:
        yield value.rank - 1
    if value.rank == _IMAGE_RANK:
        yield 1


def row_count(sizes: Sequence[int], axis: int) -> int:
    """How many rows there are."""
    return math.prod(sizes) // sizes[axis]


def followed(root: Value, axis: int) -> Followed:
    """What is made of a tensor by nodes that show all of it: those values that somebody else reads."""
    sizes = sizes_of(root)
    if not 0 < math.prod(sizes) <= _MOST_ELEMENTS:
        return Followed([], True)
    moved = [size for d, size in enumerate(sizes) if d != axis]
    places = torch.arange(math.prod(sizes), dtype=torch.int32).view(*moved, sizes[axis]).movedim(-1, axis)
    found: list[Shown] = []
    has_other_rows = False
    pending = [(root, places, 0, False)]
    while pending:
        value, at, copies, is_rolled = pending.pop()
        for node in [user for user, _ in value.uses if is_mover(user)]:
            now = _moved(node, at)
            copied = now.untyped_storage().data_ptr() != at.untyped_storage().data_ptr()
            rolled = is_rolled or (copied and not has_trait(node.qualified_op, Trait.KEEPS_ORDER))
            pending.append((node.output, now, copies + copied, rolled))
            if all(is_mover(user) for user, _ in node.output.uses):
                continue
            shown = _shown(node.output, now, sizes[axis], copies + copied, rolled)
            if shown is None:
                has_other_rows = True
            else:
                found.append(shown)
    return Followed(found, has_other_rows)


def _shown(value: Value, places: torch.Tensor, row: int, copies: int, is_rolled: bool) -> Shown | None:
    for axis in row_axes(value):
        order = _rows(places, axis, row)
        if order is not None:
            return Shown(value, order, axis, row, copies > 0, copies == 1 and not is_rolled)
    return None


def _rows(places: torch.Tensor, axis: int, row: int) -> torch.Tensor | None:
    """Numbers of the rows that elements are of, if they are whole ones."""
    if places.shape[axis] % row:
        return None
    rows = places.movedim(axis, -1).reshape(-1, row)
    first = rows[:, :1]
    is_whole = bool((first % row == 0).all()) and torch.equal(rows, first + torch.arange(row, dtype=rows.dtype))
    return first[:, 0].long() // row if is_whole else None


def _moved(node: Node, places: torch.Tensor) -> torch.Tensor:
    _, *others = map_leaves(list(node.args), Expression, _of_example)
    result = kernel_in_line(node.qualified_op)(places, *others)
    only: torch.Tensor = result if isinstance(result, torch.Tensor) else result[0]  # the one part of a list
    return only


def _of_example(size: Expression) -> Any:
    return size.substitute(size.decisions.examples)
