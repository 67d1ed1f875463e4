"""Products of matrices of integers, by products of float32, which are exact below 2**24.

Operands are taken apart into bytes, and rows into pieces so short that no sum of products of bytes reaches 2**24 in any
order; what comes out is added up as int32, which wraps as torch's integers do. Where that were too many products, as of
int64, all products of elements are made, and summed up, a piece of the rows after another.
"""

from __future__ import annotations

import math
from itertools import product

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes

_BYTES = {torch.int8: 1, torch.uint8: 1, torch.int16: 2, torch.int32: 4}
_MOST_BYTES = max(_BYTES.values())
_EXACT = 1 << 24
"""All integers up to here are numbers of float32."""
_MOST_PRODUCTS = 64
"""Of float32, that one of integers becomes."""
_MOST_SUMMED = 1 << 20
"""Products of elements of int64 that are held at once."""
_MOST_SUMS = 32
"""Sums of such that a product of matrices becomes; what needs more is left to the CPU."""


@decomposes("aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::matmul", "aten::_int_mm")
def integer_product(build: NodeBuilder, node: Node) -> Value | None:
    """``a @ b``."""
    a, b = node.args[:2]
    return _product(build, a, b, node.outputs[0])


@decomposes("aten::linear")
def integer_linear(build: NodeBuilder, node: Node) -> Value | None:
    """``x @ weight.T + bias``."""
    x, weight, bias = node.args
    if weight.rank != 2 or weight.dtype.is_floating_point:
        return None
    made = _product(build, x, build("aten::t", weight), node.outputs[0])
    return made if made is None or bias is None else build("aten::add.Tensor", made, bias)


@decomposes("aten::addmm", "aten::baddbmm", "aten::addmv")
def added_integer_product(build: NodeBuilder, node: Node) -> Value | None:
    """``beta * input + alpha * (a @ b)``, whose factors torch cuts off to integers."""
    addend, a, b = node.args[:3]
    if not (math.isfinite(node["alpha"]) and math.isfinite(node["beta"])):
        return None
    made = _product(build, a, b, node.outputs[0])
    if made is None:
        return None
    alpha, beta = int(node["alpha"]), int(node["beta"])
    made = made if alpha == 1 else build("aten::mul.Scalar", made, alpha)
    return made if beta == 0 else build("aten::add.Tensor", made, addend, alpha=beta)


def _product(build: NodeBuilder, a: Value, b: Value, result: Value) -> Value | None:
    """As ``torch.matmul``, in the dtype of ``result``; None for what is no product of integers, or too long a one."""
    if a.dtype == b.dtype == torch.int64:
        return _sums_of_products(build, a, b, result)
    if a.dtype not in _BYTES or b.dtype not in _BYTES or 0 in (a.numel, b.numel, result.numel):
        return None
    a, b = _unwidened(a), _unwidened(b)
    length, step = a.sizes[-1], _EXACT // (_largest(a) * _largest(b))
    places = [
        (i, j)
        for i, j in product(range(_BYTES[a.dtype]), range(_BYTES[b.dtype]))
        if i + j < _BYTES[result.dtype]  # what is beyond does not change the result
    ]
    starts = range(0, length, step)
    if len(places) * len(starts) > _MOST_PRODUCTS:
        return _sums_of_products(build, _as(build, a, result.dtype), _as(build, b, result.dtype), result)
    rows, columns = _bytes_of(build, a), _bytes_of(build, b)
    total: Value | None = None
    for (i, j), start in product(places, starts):
        end = min(start + step, length)
        part = build("aten::matmul", _piece(build, rows[i], -1, start, end), _piece(build, columns[j], -2, start, end))
        part = build("aten::to.dtype", part, torch.int32)
        part = build("aten::mul.Scalar", part, 1 << 8 * (i + j)) if i + j else part
        total = part if total is None else build("aten::add.Tensor", total, part)
    assert total is not None
    return total if result.dtype == torch.int32 else build("aten::to.dtype", total, result.dtype)


def _sums_of_products(build: NodeBuilder, a: Value, b: Value, result: Value) -> Value | None:
    """As ``torch.matmul``, by way of tensors with all products of elements, each of a piece of the inner dimension."""
    length, step = a.sizes[-1], max(_MOST_SUMMED // max(result.numel, 1), 1)
    if length > step * _MOST_SUMS:
        return None
    rows = build("aten::unsqueeze", a if a.rank > 1 else build("aten::unsqueeze", a, 0), -1)
    columns = build("aten::unsqueeze", b if b.rank > 1 else build("aten::unsqueeze", b, 1), -3)
    total: Value | None = None
    for start in range(0, length, step) or [0]:
        end = min(start + step, length)
        pieces = (_piece(build, rows, -2, start, end), _piece(build, columns, -2, start, end))
        made = build("aten::sum.dim_IntList", build("aten::mul.Tensor", *pieces), [-2], False, result.dtype)
        total = made if total is None else build("aten::add.Tensor", total, made)
    assert total is not None
    return build("aten::reshape", total, list(result.sizes))


def _as(build: NodeBuilder, value: Value, dtype: torch.dtype) -> Value:
    return value if value.dtype == dtype else build("aten::to.dtype", value, dtype)


def _unwidened(value: Value) -> Value:
    """The same integers in fewer bytes, where they come from such."""
    node = value.producer
    if node is not None and node.qualified_op == "aten::to.dtype":
        source = node.inputs[0]
        if _BYTES.get(source.dtype, _MOST_BYTES) < _BYTES[value.dtype]:
            return source
    return value


def _largest(value: Value) -> int:
    """What no byte of a tensor exceeds in magnitude."""
    return 128 if value.dtype == torch.int8 else 255


def _bytes_of(build: NodeBuilder, value: Value) -> list[Value]:
    """The bytes of integers as floats, the lowest first, the highest with its sign."""
    count = _BYTES[value.dtype]
    whole = value if count == 1 else build("aten::to.dtype", value, torch.int32)
    parts = []
    for place in range(count):
        part = build("aten::bitwise_right_shift.Tensor_Scalar", whole, 8 * place) if place else whole
        part = build("aten::bitwise_and.Scalar", part, 255) if place < count - 1 else part
        parts.append(build("aten::to.dtype", part, torch.float32))
    return parts


def _piece(build: NodeBuilder, value: Value, dim: int, start: int, end: int) -> Value:
    """Some of the inner dimension, which a vector has as its only one."""
    dim = max(dim, -value.rank)
    if (start, end) == (0, value.sizes[dim]):
        return value
    return build("aten::slice.Tensor", value, dim, start, end, 1)
