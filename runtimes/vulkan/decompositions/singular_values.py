"""What singular values tell of small matrices: norms, ranks, conditions, and pseudoinverses."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes

_OF_VALUES = {2.0: "aten::amax", -2.0: "aten::amin"}


@decomposes("aten::_linalg_svd")
def svd(build: NodeBuilder, node: Node) -> Sequence[Value]:
    """What torch makes the others of: singular values, mostly without vectors."""
    if node["compute_uv"]:
        return build.all("aten::linalg_svd", node["A"], node["full_matrices"])
    left, _, right = (Value.of_elements(torch.empty(output.sizes)) for output in node.outputs)
    return left, build("aten::linalg_svdvals", node["A"]), right


@decomposes("aten::svd")
def old_svd(build: NodeBuilder, node: Node) -> Sequence[Value] | None:
    """The older form, whose right vectors are columns."""
    if not node["compute_uv"]:
        return None
    left, values, right = build.all("aten::linalg_svd", node["self"], not node["some"])
    return left, values, build("aten::transpose.int", right, -2, -1)


@decomposes(
    "aten::linalg_matrix_norm", "aten::linalg_matrix_norm.str_ord", "aten::linalg_norm", "aten::linalg_norm.ord_str"
)
def matrix_norm(build: NodeBuilder, node: Node) -> Value | None:
    """The largest, the smallest, or the sum of the singular values, or the root of the sum of their squares; others
    are norms of elements."""
    x, order = node["self"], node["ord"]
    if x.dtype != torch.float32 or node["dtype"] is not None or order not in ("nuc", "fro", *_OF_VALUES):
        return None
    dims = range(x.rank) if node["dim"] is None else [dim % x.rank for dim in node["dim"]]
    if len(dims) != 2:
        return None  # a norm of vectors
    if order == "fro":
        return build("aten::linalg_vector_norm", x, 2.0, list(dims), node["keepdim"])
    rows, columns = dims
    rest = [dim for dim in range(x.rank) if dim not in (rows, columns)]
    values = build("aten::linalg_svdvals", build("aten::permute", x, [*rest, rows, columns]))
    if 0 in values.sizes:
        return None
    norm = build("aten::sum.dim_IntList", values, [-1]) if order == "nuc" else build(_OF_VALUES[order], values, [-1])
    return build("aten::reshape", norm, list(node.output.sizes))


@decomposes("aten::linalg_cond")
def condition(build: NodeBuilder, node: Node) -> Value | None:
    """The largest singular value over the smallest, or that turned around."""
    x, order = node["self"], node["p"]
    if order not in (None, 2, -2) or 0 in x.sizes:
        return None
    values = build("aten::linalg_svdvals", x)
    ends = build("aten::select.int", values, -1, 0), build("aten::select.int", values, -1, values.sizes[-1] - 1)
    return build("aten::div.Tensor", *(ends[::-1] if order == -2 else ends))


@decomposes("aten::linalg_matrix_rank.atol_rtol_tensor", "aten::linalg_matrix_rank.atol_rtol_float")
def rank(build: NodeBuilder, node: Node) -> Value | None:
    """How many singular values are above a limit."""
    x = node.args[0]
    if node["hermitian"] or 0 in x.sizes:
        return None
    values = build("aten::linalg_svdvals", x)
    above = build("aten::gt.Tensor", values, _limit(build, node, x, values))
    return build("aten::sum.dim_IntList", above, [-1])


@decomposes("aten::linalg_pinv.atol_rtol_tensor", "aten::linalg_pinv.atol_rtol_float")
def pseudoinverse(build: NodeBuilder, node: Node) -> Value | None:
    """The inverse of what singular values above a limit make."""
    x = node["self"]
    if node["hermitian"] or 0 in x.sizes or x.dtype != torch.float32:
        return None
    left, values, right = build.all("aten::linalg_svd", x, False)
    above = build("aten::gt.Tensor", values, _limit(build, node, x, values))
    inverted = build("aten::where.self", above, build("aten::reciprocal", values), build("aten::zeros_like", values))
    rows = build("aten::mul.Tensor", build("aten::unsqueeze", inverted, -1), build("aten::transpose.int", left, -2, -1))
    return build("aten::matmul", build("aten::transpose.int", right, -2, -1), rows)


def _limit(build: NodeBuilder, node: Node, x: Value, values: Value) -> Value:
    """The larger of an absolute one and a share of the largest, which is that of rounding unless something is given."""
    absolute, relative = node["atol"], node["rtol"]
    if relative is None:
        relative = torch.finfo(torch.float32).eps * max(x.sizes[-2:]) if absolute is None else 0.0
    largest = build("aten::narrow", values, -1, 0, 1)
    share = _times(build, largest, relative)
    if absolute is None:
        return share
    if isinstance(absolute, Value):
        return build("aten::maximum", share, build("aten::unsqueeze", absolute, -1))
    return build("aten::clamp_min", share, absolute)


def _times(build: NodeBuilder, largest: Value, relative: Value | float) -> Value:
    if isinstance(relative, Value):
        return build("aten::mul.Tensor", largest, build("aten::unsqueeze", relative, -1))
    return build("aten::mul.Scalar", largest, relative)
