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
    """How many singular values are above a limit; of symmetric matrices they are magnitudes of eigenvalues."""
    x = node.args[0]
    if 0 in x.sizes or x.dtype != torch.float32:
        return None
    if node["hermitian"]:
        values = build("aten::abs", build("aten::linalg_eigvalsh", x))
    else:
        values = build("aten::linalg_svdvals", x)
    above = build("aten::gt.Tensor", values, _limit(build, node, x, values))
    return build("aten::sum.dim_IntList", above, [-1])


@decomposes("aten::linalg_matrix_rank", "aten::linalg_matrix_rank.tol_tensor")
def old_rank(build: NodeBuilder, node: Node) -> Value:
    """The older form, which takes a limit alone."""
    form = "tensor" if isinstance(node["tol"], Value) else "float"
    nothing = Value.of_elements(torch.zeros(())) if form == "tensor" else 0.0
    return build(f"aten::linalg_matrix_rank.atol_rtol_{form}", node.args[0], node["tol"], nothing, node["hermitian"])


@decomposes("aten::linalg_pinv.atol_rtol_tensor", "aten::linalg_pinv.atol_rtol_float")
def pseudoinverse(build: NodeBuilder, node: Node) -> Value | None:
    """The inverse of what singular values above a limit make, or eigenvalues of symmetric matrices."""
    x = node["self"]
    if 0 in x.sizes or x.dtype != torch.float32:
        return None
    if node["hermitian"]:
        values, columns = build.all("aten::linalg_eigh", x)
        left, magnitudes = columns, build("aten::abs", values)
    else:
        left, values, right = build.all("aten::linalg_svd", x, False)
        columns, magnitudes = build("aten::transpose.int", right, -2, -1), values
    above = build("aten::gt.Tensor", magnitudes, _limit(build, node, x, magnitudes))
    inverted = build("aten::where.self", above, build("aten::reciprocal", values), build("aten::zeros_like", values))
    rows = build("aten::mul.Tensor", build("aten::unsqueeze", inverted, -1), build("aten::transpose.int", left, -2, -1))
    return build("aten::matmul", columns, rows)


@decomposes("aten::linalg_pinv", "aten::pinverse", "aten::linalg_pinv.rcond_tensor")
def old_pseudoinverse(build: NodeBuilder, node: Node) -> Value:
    """The older forms, whose limit is a share of the largest value."""
    form, share = "tensor" if isinstance(node["rcond"], Value) else "float", node["rcond"]
    hermitian = node.op != "aten::pinverse" and node["hermitian"]
    nothing = Value.of_elements(torch.zeros(())) if form == "tensor" else 0.0
    return build(f"aten::linalg_pinv.atol_rtol_{form}", node["self"], atol=nothing, rtol=share, hermitian=hermitian)


def _limit(build: NodeBuilder, node: Node, x: Value, magnitudes: Value) -> Value:
    """The larger of an absolute one and a share of the largest, which is that of rounding unless something is given."""
    absolute, relative = node["atol"], node["rtol"]
    largest = build("aten::amax", magnitudes, [-1], True)
    if relative is None:
        relative = _share_of_rounding(build, absolute, x)
    share = _times(build, largest, relative)
    if absolute is None:
        return share
    if isinstance(absolute, Value):
        return build("aten::maximum", share, build("aten::unsqueeze", absolute, -1))
    return build("aten::clamp_min", share, absolute)


def _share_of_rounding(build: NodeBuilder, absolute: Value | float | None, x: Value) -> Value | float:
    """None of it where an absolute limit is positive."""
    share = torch.finfo(torch.float32).eps * max(x.sizes[-2:])
    if isinstance(absolute, Value):
        return build("aten::mul.Scalar", build("aten::le.Scalar", absolute, 0.0), share)
    return 0.0 if absolute is not None and absolute > 0 else share


def _times(build: NodeBuilder, largest: Value, relative: Value | float) -> Value:
    if isinstance(relative, Value):
        return build("aten::mul.Tensor", largest, build("aten::unsqueeze", relative, -1))
    return build("aten::mul.Scalar", largest, relative)
