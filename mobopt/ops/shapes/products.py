"""Products of matrices and vectors, and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mobopt.ir.dimensions import Dimension
from mobopt.ir.types import TensorType
from mobopt.ops.shapes.layouts import row_major
from mobopt.ops.shapes.rules import (
    REALS,
    Sizes,
    broadcast,
    equal,
    require,
    shape_rule,
    view_rule,
)
from mobopt.ops.shapes.views import with_sizes


def _check(*tensors: TensorType) -> None:
    require(all(item.dtype == tensors[0].dtype and item.dtype in REALS for item in tensors))


@shape_rule("aten::mm", layout=row_major)
def mm(a: TensorType, b: TensorType) -> TensorType:
    """Two matrices."""
    _check(a, b)
    require(a.rank == b.rank == 2 and a.sizes[1] == b.sizes[0])
    return with_sizes(a, (a.sizes[0], b.sizes[1]))


@shape_rule("aten::bmm", layout=row_major)
def bmm(a: TensorType, b: TensorType) -> TensorType:
    """Two batches of matrices."""
    _check(a, b)
    require(a.rank == b.rank == 3 and a.sizes[0] == b.sizes[0] and a.sizes[2] == b.sizes[1])
    return with_sizes(a, (a.sizes[0], a.sizes[1], b.sizes[2]))


@shape_rule("aten::mv", layout=row_major)
def mv(a: TensorType, b: TensorType) -> TensorType:
    """A matrix and a vector."""
    _check(a, b)
    require(a.rank == 2 and b.rank == 1 and a.sizes[1] == b.sizes[0])
    return with_sizes(a, a.sizes[:1])


@shape_rule("aten::dot", "aten::vdot", "aten::inner")
def dot(a: TensorType, b: TensorType) -> TensorType:
    """Two vectors."""
    _check(a, b)
    require(a.rank == b.rank == 1 and a.sizes[0] == b.sizes[0])
    return with_sizes(a, ())


@shape_rule("aten::outer", "aten::ger")
def outer(a: TensorType, b: TensorType) -> TensorType:
    """Two vectors, to a matrix."""
    _check(a, b)
    require(a.rank == b.rank == 1)
    return with_sizes(a, (*a.sizes, *b.sizes))


@shape_rule("aten::matmul", "aten::linalg_matmul", layout=row_major)
def matmul(a: TensorType, b: TensorType) -> TensorType:
    """Matrices or vectors, with broadcast batches; the result is row-major, also where torch exchanges operands."""
    _check(a, b)
    require(a.sizes and b.sizes and a.sizes[-1] == b.sizes[-2 if b.rank > 1 else 0])
    rows = a.sizes[-2:-1]
    columns = b.sizes[-1:] if b.rank > 1 else ()
    return with_sizes(a, (*broadcast(a.sizes[:-2], b.sizes[:-2]), *rows, *columns))


@shape_rule("aten::linear", layout=row_major)
def linear(x: TensorType, weight: TensorType, bias: TensorType | None) -> TensorType:
    """``[..., I]`` and ``[O, I]`` to ``[..., O]``."""
    _check(x, weight, *([bias] if bias is not None else []))
    require(x.sizes and weight.rank == 2 and x.sizes[-1] == weight.sizes[1])
    require(bias is None or (bias.rank == 1 and bias.sizes[0] == weight.sizes[0]))
    return with_sizes(x, (*x.sizes[:-1], weight.sizes[0]))


@shape_rule("aten::bilinear")
def bilinear(x: TensorType, y: TensorType, weight: TensorType, bias: TensorType | None) -> TensorType:
    """``[..., I]``, ``[..., J]`` and ``[O, I, J]`` to ``[..., O]``."""
    _check(x, y, weight, *([bias] if bias is not None else []))
    require(x.sizes and weight.rank == 3 and equal(x.sizes[:-1], y.sizes[:-1]))
    require(x.sizes[-1] == weight.sizes[1] and y.sizes[-1] == weight.sizes[2])
    require(x.numel > 0 and weight.numel > 0)  # torch refuses some that are empty
    require(bias is None or (bias.rank == 1 and bias.sizes[0] == weight.sizes[0]))
    return with_sizes(x, (*x.sizes[:-1], weight.sizes[0]))


@shape_rule("aten::addmm", layout=row_major)
def addmm(added: TensorType, a: TensorType, b: TensorType, *_: Any) -> TensorType:
    """``a @ b`` and what is broadcast to it."""
    return _added(added, mm(a, b))


@shape_rule("aten::addmv", layout=row_major)
def addmv(added: TensorType, a: TensorType, b: TensorType, *_: Any) -> TensorType:
    """As :func:`addmm`, of a vector."""
    require(b.sizes[0] > 0)  # of an empty one torch makes what is added, without a broadcast
    return _added(added, mv(a, b))


@shape_rule("aten::baddbmm", layout=row_major)
def baddbmm(added: TensorType, a: TensorType, b: TensorType, *_: Any) -> TensorType:
    """As :func:`addmm`, of batches."""
    return _added(added, bmm(a, b))


@shape_rule("aten::addbmm", layout=row_major)
def addbmm(added: TensorType, a: TensorType, b: TensorType, *_: Any) -> TensorType:
    """As :func:`addmm`, of the sum of a batch."""
    made = bmm(a, b)
    return _added(added, with_sizes(a, made.sizes[1:]))


def _added(added: TensorType, made: TensorType) -> TensorType:
    _check(added, made)
    require(equal(broadcast(added.sizes, made.sizes), made.sizes))
    return made


@shape_rule("aten::scaled_dot_product_attention", layout=row_major)
def attention(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    mask: TensorType | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> TensorType:
    """``[..., L, E]``, ``[..., S, E]``, ``[..., S, V]`` to ``[..., L, V]``; batches are equal.

    On the CPU the result may lie as the query does; torch's meta kernel says row-major.
    """
    require(not enable_gqa and not (is_causal and mask is not None))
    require(mask is None or mask.dtype in (torch.bool, query.dtype))
    _check(query, key, value)
    require(query.dtype.is_floating_point and query.rank == key.rank == value.rank and query.rank >= 2)
    require(equal(query.sizes[:-2], key.sizes[:-2]) and equal(key.sizes[:-2], value.sizes[:-2]))
    require(query.sizes[-1] == key.sizes[-1] and key.sizes[-2] == value.sizes[-2])
    made: Sizes = (*query.sizes[:-1], value.sizes[-1])
    if mask is not None:
        weights: Sizes = (*query.sizes[:-1], key.sizes[-2])
        require(equal(broadcast(mask.sizes, weights), weights))
    return with_sizes(query, made)


@view_rule("aten::einsum")
def einsum(equation: str, tensors: Sequence[TensorType], path: Any) -> TensorType:
    """A sum over products of floats, written with one letter for each dimension; ellipses are torch's to judge, and so
    are integers, which sums of one operand widen."""
    text = equation.replace(" ", "")
    operands, arrow, result = text.partition("->")
    subscripts = operands.split(",")
    letters = operands.replace(",", "")
    require(letters.isalpha() and (not result or result.isalpha()) and len(subscripts) == len(tensors))
    require(all(item.dtype == tensors[0].dtype and item.dtype.is_floating_point for item in tensors))
    sizes: dict[str, Dimension] = {}
    for names, tensor in zip(subscripts, tensors, strict=True):
        require(len(names) == tensor.rank)
        for name, size in zip(names, tensor.sizes, strict=True):
            sizes[name] = broadcast((sizes[name],), (size,))[0] if name in sizes else size
    if not arrow:
        result = "".join(sorted(name for name in sizes if letters.count(name) == 1))
    require(len(set(result)) == len(result))
    return with_sizes(tensors[0], [sizes[name] for name in result])


@view_rule("aten::geqrf")
def geqrf(x: TensorType) -> tuple[TensorType, TensorType]:
    """A triangle over vectors of reflections, and their scales."""
    require(x.rank >= 2 and x.dtype in (torch.float32, torch.float64))
    return x, with_sizes(x, (*x.sizes[:-2], min(x.sizes[-2:])))
