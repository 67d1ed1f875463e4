"""Eigenvalues of small symmetric matrices: singular values of the matrix plus so much of the identity that none is
negative, less that. Rounding is that of the largest eigenvalue, as everywhere else."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes


@decomposes("aten::_linalg_eigh")
def eigenvalues_and_more(build: NodeBuilder, node: Node) -> Sequence[Value | None]:
    """What torch makes the others of."""
    if node["compute_v"]:
        return build.all("aten::linalg_eigh", node["A"], node["UPLO"])
    return build("aten::linalg_eigvalsh", node["A"], node["UPLO"]), None


@decomposes("aten::linalg_eigvalsh")
def eigenvalues(build: NodeBuilder, node: Node) -> Value | None:
    """From the smallest to the largest."""
    shifted = _without_negative(build, node)
    if shifted is None:
        return None
    matrices, shift = shifted
    return _from_smallest(build, build("aten::linalg_svdvals", matrices), shift)


@decomposes("aten::linalg_eigh")
def eigenvectors(build: NodeBuilder, node: Node) -> Sequence[Value] | None:
    """The same with vectors, as columns."""
    shifted = _without_negative(build, node)
    if shifted is None:
        return None
    matrices, shift = shifted
    _, values, rows = build.all("aten::linalg_svd", matrices, False)
    vectors = build("aten::transpose.int", build("aten::flip", rows, [-2]), -2, -1)
    return _from_smallest(build, values, shift), vectors


def _from_smallest(build: NodeBuilder, values: Value, shift: Value) -> Value:
    return build("aten::flip", build("aten::sub.Tensor", values, build("aten::squeeze.dim", shift, -1)), [-1])


def _without_negative(build: NodeBuilder, node: Node) -> tuple[Value, Value] | None:
    """Matrices without negative eigenvalues, of one of the triangles, and by how much these are larger: by the largest
    sum of magnitudes in a row, which no eigenvalue exceeds."""
    x = node.args[0]
    if x.dtype != torch.float32 or 0 in x.sizes:
        return None
    triangle, beside = ("aten::tril", -1) if node["UPLO"].upper() == "L" else ("aten::triu", 1)
    other = build("aten::transpose.int", build(triangle, x, beside), -2, -1)
    symmetric = build("aten::add.Tensor", build(triangle, x), other)
    sums = build("aten::sum.dim_IntList", build("aten::abs", symmetric), [-1], True)
    shift = build("aten::amax", sums, [-2], True)
    identity = Value.of_elements(torch.eye(x.sizes[-1]))
    return build("aten::add.Tensor", symmetric, build("aten::mul.Tensor", identity, shift)), shift
