"""Operators on small matrices, by factors and triangular systems."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes


@decomposes("aten::linalg_lu")
def lu(build: NodeBuilder, node: Node) -> Sequence[Value]:
    """Factors, and what they are made of."""
    factors, pivots, _ = build.all("aten::linalg_lu_factor_ex", node["A"], pivot=node["pivot"])
    return build.all("aten::lu_unpack", factors, pivots)


@decomposes("aten::lu_unpack")
def lu_unpack(build: NodeBuilder, node: Node) -> Sequence[Value] | None:
    """A permutation, and the triangles of a matrix."""
    if not node["unpack_data"]:
        return None
    factors: Value = node["LU_data"]
    rows, columns = factors.sizes[-2:]
    steps = min(rows, columns)
    permutation, _, _ = build.all("aten::lu_unpack", factors, node["LU_pivots"], False, node["unpack_pivots"])
    low = build("aten::tril", build("aten::narrow", factors, -1, 0, steps), -1)
    low = build("aten::add.Tensor", low, Value.of_elements(torch.eye(rows, steps)))
    high = build("aten::triu", build("aten::narrow", factors, -2, 0, steps))
    return permutation, low, high


@decomposes("aten::linalg_qr")
def qr(build: NodeBuilder, node: Node) -> Sequence[Value]:
    """A triangle, and a product of reflections, which has no fewer columns than it takes."""
    x, mode = node["A"], node["mode"]
    rows, columns = x.sizes[-2:]
    vectors, scales = build.all("aten::geqrf", x)
    wide = rows if mode == "complete" else min(rows, columns)
    triangle = build("aten::triu", build("aten::narrow", vectors, -2, 0, wide))
    if mode == "r":
        return Value.of_elements(torch.empty(node.outputs[0].sizes)), triangle
    if wide < columns:
        vectors = build("aten::narrow", vectors, -1, 0, wide)
    elif wide > columns:
        vectors = build("aten::constant_pad_nd", vectors, [0, wide - columns])
    return build("aten::linalg_householder_product", vectors, scales), triangle


@decomposes("aten::triangular_solve")
def triangular_solve(build: NodeBuilder, node: Node) -> Sequence[Value]:
    """The older form, whose matrix may be transposed, and comes back."""
    sides, matrices, upper = node["self"], node["A"], node["upper"]
    batches = (_batch(value, node.outputs[0].rank) for value in (sides, matrices))
    batch = [max(pair) for pair in zip(*batches, strict=True)]
    copy = build("aten::clone", build("aten::expand", matrices, [*batch, *matrices.sizes[-2:]]))
    if node["transpose"]:
        matrices, upper = build("aten::transpose.int", matrices, -2, -1), not upper
    unit = node["unitriangular"]
    solved = build("aten::linalg_solve_triangular", matrices, sides, upper=upper, unitriangular=unit)
    return solved, copy


def _batch(value: Value, rank: int) -> list[int]:
    return [1] * (rank - value.rank) + list(value.sizes[:-2])


@decomposes("aten::cholesky_solve")
def cholesky_solve(build: NodeBuilder, node: Node) -> Value:
    """Two triangular systems."""
    triangle, upper = node["input2"], node["upper"]
    turned = build("aten::transpose.int", triangle, -2, -1)
    low, high = (turned, triangle) if upper else (triangle, turned)
    first = build("aten::linalg_solve_triangular", low, node["self"], upper=False)
    return build("aten::linalg_solve_triangular", high, first, upper=True)


@decomposes("aten::cholesky_inverse")
def cholesky_inverse(build: NodeBuilder, node: Node) -> Value:
    """The systems of the identity."""
    triangle: Value = node["self"]
    identity = build("aten::expand", Value.of_elements(torch.eye(triangle.sizes[-1])), list(triangle.sizes))
    return build("aten::cholesky_solve", identity, triangle, node["upper"])


@decomposes("aten::addbmm")
def addbmm(build: NodeBuilder, node: Node) -> Value:
    """The sum over a batch of products is one product, of the matrices beside each other."""
    first, second = node["batch1"], node["batch2"]
    batch, rows, inner = first.sizes
    left = build("aten::reshape", build("aten::permute", first, [1, 0, 2]), [rows, batch * inner])
    right = build("aten::reshape", second, [batch * inner, second.sizes[2]])
    return build("aten::addmm", node["self"], left, right, beta=node["beta"], alpha=node["alpha"])


@decomposes("aten::linalg_matrix_power", "aten::matrix_power")
def matrix_power(build: NodeBuilder, node: Node) -> Value:
    """By squares; negative powers are those of the inverse."""
    base, exponent = node["self"], node["n"]
    if exponent == 0:
        return build("aten::expand", Value.of_elements(torch.eye(base.sizes[-1])), list(base.sizes))
    if exponent < 0:
        base, exponent = build("aten::linalg_inv", base), -exponent
    result: Value | None = None
    while True:
        if exponent % 2:
            result = base if result is None else build("aten::matmul", result, base)
        exponent //= 2
        if result is not None and not exponent:
            return result
        base = build("aten::matmul", base, base)


@decomposes("aten::linalg_tensorinv")
def tensorinv(build: NodeBuilder, node: Node) -> Value:
    """The inverse of what is a matrix, if the first dimensions are its rows."""
    x, count = node["self"], node["ind"]
    rows = math.prod(x.sizes[:count])
    return build(
        "aten::reshape", build("aten::linalg_inv", build("aten::reshape", x, [rows, rows])), list(node.output.sizes)
    )


@decomposes("aten::linalg_tensorsolve")
def tensorsolve(build: NodeBuilder, node: Node) -> Value:
    """A system of what is a matrix, if the right side's dimensions are its rows."""
    x, side = node["self"], node["other"]
    if node["dims"] is not None:
        moved = [dim % x.rank for dim in node["dims"]]
        kept = [dim for dim in range(x.rank) if dim not in moved]
        x = build("aten::permute", x, [*kept, *moved])
    matrix = build("aten::reshape", x, [side.numel, side.numel])
    solved = build("aten::linalg_solve", matrix, build("aten::reshape", side, [side.numel]))
    return build("aten::reshape", solved, list(node.output.sizes))
