"""Covariances, histograms, and functions of many arguments that are sums of simpler ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.refusals import unless
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes

_MOST_BINS = 2**20


@decomposes("aten::mvlgamma", "aten::special_multigammaln")
def multivariate_log_gamma(build: NodeBuilder, node: Node) -> Value:
    """Logarithms of gamma functions at places half a step from one another (NIST Digital Library, 35.3.4)."""
    x, order = node["self"], node["p"]
    steps = Value.of_elements(-0.5 * torch.arange(order, dtype=torch.float32))
    places = build("aten::add.Tensor", build("aten::unsqueeze", x, -1), steps)
    total = build("aten::sum.dim_IntList", build("aten::lgamma", places), [-1])
    total = build("aten::add.Scalar", total, order * (order - 1) / 4 * math.log(math.pi))
    return build("aten::to.dtype", total, node.output.dtype)  # the steps are float32, narrower numbers rounded once


@decomposes("aten::special_spherical_bessel_j0")
def spherical_bessel(build: NodeBuilder, node: Node) -> Value:
    """``sin(x) / x``."""
    x = node["x"]
    ratio = build("aten::div.Tensor", build("aten::sin", x), x)
    ratio = build("aten::masked_fill.Scalar", ratio, build("aten::eq.Scalar", x, 0.0), 1.0)
    return build("aten::masked_fill.Scalar", ratio, build("aten::isinf", x), 0.0)


@decomposes("aten::cov")
def covariances(build: NodeBuilder, node: Node) -> Value | None:
    """Of the rows of a matrix, whose columns may have weights."""
    rows = _rows(build, node["self"])
    if rows is None:
        return None
    weights = [node[name] for name in ("fweights", "aweights") if node[name] is not None]
    weights = [build("aten::to.dtype", each, rows.dtype) if each.dtype != rows.dtype else each for each in weights]
    if not weights:
        made = _plain_covariances(build, rows, node["correction"])
    else:
        share = weights[-1] if node["aweights"] is not None else None
        made = _weighted_covariances(build, rows, weights, share, node["correction"])
    return build("aten::reshape", made, list(node.output.sizes))


def _rows(build: NodeBuilder, x: Value) -> Value | None:
    if x.dtype != torch.float32 or x.rank == 0 or x.numel == 0:
        return None
    return x if x.rank == 2 else build("aten::reshape", x, [1, x.numel])


def _plain_covariances(build: NodeBuilder, rows: Value, correction: int) -> Value:
    centred = build("aten::sub.Tensor", rows, build("aten::mean.dim", rows, [1], True))
    # As in torch, as many corrections as columns divide by zero.
    return build("aten::div.Scalar", _products(build, centred, centred), max(rows.sizes[1] - correction, 0))


def _weighted_covariances(
    build: NodeBuilder, rows: Value, factors: Sequence[Value], share: Value | None, correction: int
) -> Value:
    """The columns' weights are products of ``factors``; what is a ``share`` of a column, not how often it is there,
    counts for the correction."""
    weights = factors[0] if len(factors) == 1 else build("aten::mul.Tensor", *factors)
    total = build("aten::sum", weights)
    sums = build("aten::sum.dim_IntList", build("aten::mul.Tensor", rows, weights), [1], True)
    centred = build("aten::sub.Tensor", rows, build("aten::div.Tensor", sums, total))
    if share is None or correction == 0:
        divisor = build("aten::sub.Scalar", total, correction)
    else:
        squares = build("aten::sum", build("aten::mul.Tensor", weights, share))
        lost = build("aten::mul.Scalar", build("aten::div.Tensor", squares, total), correction)
        divisor = build("aten::sub.Tensor", total, lost)
    made = _products(build, build("aten::mul.Tensor", centred, weights), centred)
    return build("aten::div.Tensor", made, build("aten::clamp_min", divisor, 0))


def _products(build: NodeBuilder, a: Value, b: Value) -> Value:
    return build("aten::mm", a, build("aten::t", b))


@decomposes("aten::corrcoef")
def correlations(build: NodeBuilder, node: Node) -> Value | None:
    """Covariances, divided by the deviations of both rows."""
    rows = _rows(build, node["self"])
    if rows is None:
        return None
    shared = _plain_covariances(build, rows, 1)
    deviations = build("aten::sqrt", build("aten::diagonal", shared))
    for dim in (1, 0):
        shared = build("aten::div.Tensor", shared, build("aten::unsqueeze", deviations, dim))
    if node.output.rank == 0:
        return build("aten::reshape", shared, [])
    return build("aten::clamp", shared, -1.0, 1.0)


@decomposes("aten::histc")
def histogram(build: NodeBuilder, node: Node) -> Value | None:
    """How many elements lie in each of some bins of one width; those outside count nowhere. Without bounds, or with two
    equal ones, the bins reach from the smallest element to the largest."""
    x: Value = node["self"]
    bins, low, high = node["bins"], float(node["min"]), float(node["max"])
    if x.dtype != torch.float32 or x.numel == 0 or not low <= high or not 0 < bins <= _MOST_BINS:
        return None
    flat = build("aten::reshape", x, [-1])
    if low < high:
        above, width = build("aten::sub.Scalar", flat, low), Value.of_elements(torch.tensor(high - low))
        inside = build("aten::logical_and", build("aten::ge.Scalar", flat, low), build("aten::le.Scalar", flat, high))
    else:
        above, width = _from_the_smallest(build, flat)
        inside = build("aten::ge.Scalar", above, 0.0)
    place = build("aten::floor", build("aten::div.Tensor", build("aten::mul.Scalar", above, bins), width))
    place = build(
        "aten::clamp", build("aten::where.self", inside, place, build("aten::zeros_like", place)), 0, bins - 1
    )
    ones = build("aten::to.dtype", inside, torch.float32)
    empty = Value.of_elements(torch.zeros(bins))
    return build("aten::scatter_add", empty, 0, build("aten::to.dtype", place, torch.int64), ones)


def _from_the_smallest(build: NodeBuilder, flat: Value) -> tuple[Value, Value]:
    """How far elements are above the lower bound, and the upper one: a step around elements that are all equal.

    What is not finite is refused, as torch does.
    """
    smallest, largest = build("aten::amin", flat, [0]), build("aten::amax", flat, [0])
    is_finite = build("aten::isfinite", build("aten::sub.Tensor", largest, smallest))
    around = build("aten::to.dtype", build("aten::eq.Tensor", smallest, largest), torch.float32)
    low = unless(build, build("aten::logical_not", is_finite), build("aten::sub.Tensor", smallest, around))
    high = build("aten::add.Tensor", largest, around)
    return build("aten::sub.Tensor", flat, low), build("aten::sub.Tensor", high, low)
