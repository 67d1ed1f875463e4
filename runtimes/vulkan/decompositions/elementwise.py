"""Functions of two numbers whose special cases are choices between simpler ones, and distances."""

from __future__ import annotations

import math

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes

_MOST_DIFFERENCES = 2**26
"""Elements of the differences of all pairs of points."""


def _as_result(build: NodeBuilder, node: Node) -> list[Value]:
    """The operands as elements of the result's dtype."""
    dtype = node.output.dtype
    return [value if value.dtype == dtype else build("aten::to.dtype", value, dtype) for value in node.args[:2]]


def _without_nan(build: NodeBuilder, node: Node, operator: str) -> Value:
    a, b = _as_result(build, node)
    chosen = build(operator, a, b)
    if not chosen.dtype.is_floating_point:
        return chosen
    chosen = build("aten::where.self", build("aten::isnan", a), b, chosen)
    return build("aten::where.self", build("aten::isnan", b), a, chosen)


@decomposes("aten::fmax")
def fmax(build: NodeBuilder, node: Node) -> Value:
    """The larger of two numbers; the other where one is NaN."""
    return _without_nan(build, node, "aten::maximum")


@decomposes("aten::fmin")
def fmin(build: NodeBuilder, node: Node) -> Value:
    """The smaller of two numbers; the other where one is NaN."""
    return _without_nan(build, node, "aten::minimum")


@decomposes("aten::hypot")
def hypot(build: NodeBuilder, node: Node) -> Value | None:
    """``sqrt(a^2 + b^2)``, of numbers divided by the larger one, so that no square is out of range."""
    a, b = (build("aten::abs", value) for value in _as_result(build, node))
    if not a.dtype.is_floating_point:
        return None
    large, small = build("aten::maximum", a, b), build("aten::minimum", a, b)
    ratio = build("aten::div.Tensor", small, large)
    root = build("aten::sqrt", build("aten::add.Scalar", build("aten::mul.Tensor", ratio, ratio), 1.0))
    result = build("aten::mul.Tensor", large, root)
    result = build("aten::where.self", build("aten::eq.Scalar", large, 0.0), large, result)
    infinite = build("aten::logical_or", build("aten::isinf", a), build("aten::isinf", b))
    return build("aten::masked_fill.Scalar", result, infinite, math.inf)


@decomposes("aten::_cdist_forward")
def distances(build: NodeBuilder, node: Node) -> Value | None:
    """Norms of the differences of all pairs of points, (..., P, M) and (..., R, M)."""
    a, b, order, _ = node.args
    if math.prod(node.output.sizes) * a.sizes[-1] > _MOST_DIFFERENCES or a.sizes[-1] == 0:
        return None
    differences = build("aten::sub.Tensor", build("aten::unsqueeze", a, -2), build("aten::unsqueeze", b, -3))
    return build("aten::linalg_vector_norm", differences, order, [-1])


@decomposes("aten::bilinear")
def bilinear(build: NodeBuilder, node: Node) -> Value:
    """``x W y`` for each of the matrices of ``W``."""
    x, y, weight, bias = node.args
    *lead, _ = x.sizes
    rows = math.prod(lead)
    x, y = (build("aten::reshape", value, [rows, value.sizes[-1]]) for value in (x, y))
    made = build("aten::einsum", "ni,oij,nj->no", [x, weight, y])
    made = made if bias is None else build("aten::add.Tensor", made, bias)
    return build("aten::reshape", made, [*lead, weight.sizes[0]])


@decomposes("aten::_pdist_forward")
def pairs(build: NodeBuilder, node: Node) -> Value | None:
    """Norms of the differences of all pairs of rows, each pair once."""
    x: Value = node["self"]
    if math.prod(node.output.sizes) * x.sizes[-1] > _MOST_DIFFERENCES or node.output.numel == 0 or x.numel == 0:
        return None
    first, second = (Value.of_elements(places) for places in torch.triu_indices(x.sizes[0], x.sizes[0], 1))
    differences = build(
        "aten::sub.Tensor", build("aten::index_select", x, 0, first), build("aten::index_select", x, 0, second)
    )
    return build("aten::linalg_vector_norm", differences, node["p"], [-1])


@decomposes("aten::rrelu")
def randomised_slopes(build: NodeBuilder, node: Node) -> Value | None:
    """Outside of training the slope is the middle one."""
    if node["training"]:
        return None
    return build("aten::leaky_relu", node["self"], (float(node["lower"]) + float(node["upper"])) / 2)
