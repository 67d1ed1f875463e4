"""Operators that add a border."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mobopt.ir.dimensions import Dimension, minimum
from mobopt.ir.types import TensorType
from mobopt.ops.shapes.layouts import as_image
from mobopt.ops.shapes.rules import PLAIN, require, shape_rule, view_rule
from mobopt.ops.shapes.views import with_sizes


@shape_rule("aten::constant_pad_nd")
def constant_pad(x: TensorType, pad: Sequence[Dimension], *_: Any) -> TensorType:
    """Pairs of numbers from the last dimension on; negative ones take away."""
    require(len(pad) % 2 == 0 and len(pad) // 2 <= x.rank and x.dtype in PLAIN)
    sizes = list(x.sizes)
    for index in range(len(pad) // 2):
        before, behind = pad[2 * index], pad[2 * index + 1]
        size = sizes[-1 - index]
        require(size + minimum(before, 0) + minimum(behind, 0) >= 0)
        sizes[-1 - index] = size + before + behind
    return with_sizes(x, sizes)


@shape_rule(
    *(f"aten::{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)), layout=as_image
)
def border_pad(x: TensorType, pad: Sequence[Dimension]) -> TensorType:
    """What is repeated or mirrored is there: no border is wider than the tensor less one."""
    require(len(pad) in (2, 4, 6) and x.rank in (len(pad) // 2 + 1, len(pad) // 2 + 2))
    require(x.dtype in PLAIN and all(size > 0 for size in x.sizes))
    for index, item in enumerate(pad):
        require(0 <= item < x.sizes[-1 - index // 2])
    return constant_pad(x, pad)


@view_rule("aten::pad")
def pad(x: TensorType, border: Sequence[Dimension], mode: str, value: float | None) -> TensorType:
    """By mode; without a border it is the operand."""
    if mode == "constant":
        return constant_pad(x, border)
    if mode == "circular":
        require(len(border) // 2 + 2 == x.rank)
        require(all(0 <= item <= x.sizes[-1 - index // 2] for index, item in enumerate(border)))
        return constant_pad(x, border)
    return border_pad(x, border)
