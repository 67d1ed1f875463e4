"""The exponential of matrices."""

from __future__ import annotations

import math

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.refusals import unless
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes

_LARGEST = 0.5
"""Norm of what the series is taken of: its next term is 6e-9 of the first."""
_SQUARINGS = 32
"""Larger norms than this many make of the smallest are refused."""


@decomposes("aten::linalg_matrix_exp", "aten::matrix_exp")
def exponential(build: NodeBuilder, node: Node) -> Value | None:
    """A series of the matrix divided by a power of two, squared as often. (N. J. Higham, "The Scaling and Squaring
    Method for the Matrix Exponential Revisited".)"""
    x: Value = node["self"]
    if x.dtype != torch.float32 or 0 in x.sizes:
        return None
    sums = build("aten::sum.dim_IntList", build("aten::abs", x), [-2], True)
    norm = build("aten::amax", sums, [-1], True)
    doublings = build("aten::ceil", build("aten::log2", build("aten::div.Scalar", norm, _LARGEST)))
    # What is not finite has a result.
    is_large = build(
        "aten::logical_and", build("aten::gt.Scalar", doublings, _SQUARINGS), build("aten::isfinite", norm)
    )
    count = unless(build, is_large, build("aten::clamp", doublings, 0.0, float(_SQUARINGS)))
    result = _series(build, build("aten::mul.Tensor", x, build("aten::exp2", build("aten::neg", count))))
    for step in range(_SQUARINGS):
        squared = build("aten::matmul", result, result)
        result = build("aten::where.self", build("aten::gt.Scalar", count, float(step)), squared, result)
    return result


def _series(build: NodeBuilder, x: Value) -> Value:
    """The first nine terms, in steps of four powers."""
    powers = [Value.of_elements(torch.eye(x.sizes[-1])), x]
    for _ in range(3):
        powers.append(build("aten::matmul", powers[-1], x))

    def part(first: int, count: int) -> Value:
        total = powers[0] if first == 0 else build("aten::mul.Scalar", powers[0], 1 / math.factorial(first))
        for more in range(1, count):
            factor = 1 / math.factorial(first + more)
            total = build("aten::add.Tensor", total, powers[more], alpha=factor)
        return total

    return build("aten::add.Tensor", part(0, 4), build("aten::matmul", powers[4], part(4, 5)))
