"""Functions of complex numbers by functions of real ones.

(M. Abramowitz and I. A. Stegun, "Handbook of Mathematical Functions", 1964, chapters 3.7 and 4.)
"""

from __future__ import annotations

from typing import Any

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.complex_arithmetic import angle_of, operand, quotient, size_of
from mobopt.runtimes.vulkan.decompositions.complex_numbers import Pair, Parts, joined, pair_of
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes_complex

_MOST_FACTORS = 16
"""Powers of more factors than this go by logarithms."""
_FLAT = 20.0
"""From here on the hyperbolic tangent is one, in the digits that float32 has."""


def _whole(build: NodeBuilder, pair: Pair) -> tuple[Value, Value]:
    """Both parts as tensors."""
    return pair.real, build("aten::zeros_like", pair.real) if pair.imaginary is None else pair.imaginary


@decomposes_complex("aten::exp")
def exponential(build: NodeBuilder, node: Node) -> Value:
    """``exp(a) * (cos(b) + i sin(b))``."""
    return joined(build, *_exponential(build, *_whole(build, pair_of(build, node.args[0]))))


def _exponential(build: NodeBuilder, a: Value, b: Value) -> tuple[Value, Value]:
    size = build("aten::exp", a)
    real, imaginary = (build("aten::mul.Tensor", size, build(f"aten::{name}", b)) for name in ("cos", "sin"))
    return real, imaginary


@decomposes_complex("aten::log", "aten::log2", "aten::log10")
def logarithm(build: NodeBuilder, node: Node) -> Value:
    """The logarithm of the absolute value, and the angle in the same measure."""
    pair = pair_of(build, node.args[0])
    size = build(node.qualified_op, size_of(build, pair))
    measure = float(getattr(torch, node.op.removeprefix("aten::"))(torch.e * torch.ones((), dtype=torch.float64)))
    angle = angle_of(build, pair)
    return joined(build, size, angle if measure == 1 else build("aten::mul.Scalar", angle, measure))


@decomposes_complex("aten::sqrt")
def square_root(build: NodeBuilder, node: Node) -> Value:
    """The root whose real part is not negative."""
    return joined(build, *_square_root(build, pair_of(build, node.args[0])))


def _square_root(build: NodeBuilder, pair: Pair) -> tuple[Value, Value]:
    a, b = _whole(build, pair)
    size = build("aten::add.Tensor", size_of(build, pair), build("aten::abs", a))
    large = build("aten::sqrt", build("aten::mul.Scalar", size, 0.5))
    small = build("aten::div.Tensor", build("aten::abs", b), build("aten::mul.Scalar", large, 2.0))
    small = build("aten::masked_fill.Scalar", small, build("aten::eq.Scalar", large, 0), 0.0)
    is_right = build("aten::ge.Scalar", a, 0)
    real, imaginary = (
        build("aten::where.self", is_right, one, other) for one, other in ((large, small), (small, large))
    )
    is_zero = build("aten::eq.Scalar", b, 0)
    signed = build("aten::where.self", is_zero, build("aten::reciprocal", b), b)  # minus zero has a sign, too
    is_below = build("aten::lt.Scalar", signed, 0)
    return real, build("aten::where.self", is_below, build("aten::neg", imaginary), imaginary)


@decomposes_complex("aten::rsqrt")
def reciprocal_root(build: NodeBuilder, node: Node) -> Value:
    """``1 / sqrt(z)``."""
    return build("aten::reciprocal", build("aten::sqrt", node.args[0]))


# Powers.


@decomposes_complex("aten::pow.Tensor_Scalar")
def power_of_number(build: NodeBuilder, node: Node) -> Value:
    """By multiplications where the exponent is a small integer, a root, or else by :func:`_power`."""
    base, exponent = node.args
    if exponent == 0.5:
        return build("aten::sqrt", base)
    count = int(exponent.real) if exponent == int(exponent.real) else 0
    if not 0 < abs(count) <= _MOST_FACTORS:
        return _power(build, base, exponent)
    parts, pair = Parts(build), pair_of(build, base)
    result: Pair | None = None
    for bit in bin(abs(count))[2:]:
        result = None if result is None else parts.product(result, result)
        if bit == "1":
            result = pair if result is None else parts.product(result, pair)
    assert result is not None
    if count < 0:
        result = quotient(build, operand(build, 1), result)
    return joined(build, result.real, result.imaginary)


@decomposes_complex("aten::pow.Tensor_Tensor", "aten::pow.Scalar")
def power(build: NodeBuilder, node: Node) -> Value:
    """See :func:`_power`."""
    return _power(build, *node.args)


def _power(build: NodeBuilder, base: Any, exponent: Any) -> Value:
    """``exp(exponent * log(base))``; of zero it is zero, or one where the exponent is zero."""
    parts = Parts(build)
    one, two = operand(build, base), operand(build, exponent)
    size = size_of(build, one)
    logarithms = Pair(build("aten::log", size), angle_of(build, one))
    real, imaginary = _exponential(build, *_whole(build, parts.product(two, logarithms)))
    is_zero = build("aten::logical_and", build("aten::eq.Scalar", size, 0), build("aten::gt.Scalar", two.real, 0))
    is_one = build("aten::eq.Scalar", size_of(build, two), 0)
    real, imaginary = (
        build("aten::masked_fill.Scalar", build("aten::masked_fill.Scalar", part, is_zero, 0.0), is_one, value)
        for part, value in ((real, 1.0), (imaginary, 0.0))
    )
    return joined(build, real, imaginary)


# Trigonometric and hyperbolic functions.


@decomposes_complex("aten::sin", "aten::cos", "aten::sinh", "aten::cosh")
def wave(build: NodeBuilder, node: Node) -> Value:
    """By the addition theorems."""
    a, b = _whole(build, pair_of(build, node.args[0]))
    name = node.op.removeprefix("aten::")
    is_hyperbolic = name.endswith("h")
    other = name.replace("sin", "cos") if "sin" in name else name.replace("cos", "sin")
    turned = ("cos", "sin") if is_hyperbolic else ("cosh", "sinh")
    real, imaginary = (
        build("aten::mul.Tensor", build(f"aten::{one}", a), build(f"aten::{two}", b))
        for one, two in zip((name, other), turned, strict=True)
    )
    return joined(build, real, build("aten::neg", imaginary) if name == "cos" else imaginary)


@decomposes_complex("aten::tanh")
def hyperbolic_tangent(build: NodeBuilder, node: Node) -> Value:
    """See :func:`_tangent`."""
    return joined(build, *_tangent(build, *_whole(build, pair_of(build, node.args[0]))))


@decomposes_complex("aten::tan")
def tangent(build: NodeBuilder, node: Node) -> Value:
    """``-i tanh(i z)``."""
    a, b = _whole(build, pair_of(build, node.args[0]))
    real, imaginary = _tangent(build, build("aten::neg", b), a)
    return joined(build, imaginary, build("aten::neg", real))


def _tangent(build: NodeBuilder, a: Value, b: Value) -> tuple[Value, Value]:
    """``(sinh(2a) + i sin(2b)) / (cosh(2a) + cos(2b))``, whose real part is a sign where ``a`` is large."""
    near = build("aten::clamp", a, -_FLAT, _FLAT)
    twice_a, twice_b = (build("aten::mul.Scalar", part, 2.0) for part in (near, b))
    below = build("aten::add.Tensor", build("aten::cosh", twice_a), build("aten::cos", twice_b))
    real, imaginary = (
        build("aten::div.Tensor", part, below) for part in (build("aten::sinh", twice_a), build("aten::sin", twice_b))
    )
    return real, imaginary


@decomposes_complex("aten::sigmoid")
def sigmoid(build: NodeBuilder, node: Node) -> Value:
    """``1 / (1 + exp(-z))``."""
    power = build("aten::exp", build("aten::neg", node.args[0]))
    return build("aten::reciprocal", build("aten::add.Scalar", power, 1))


# Products and deviations of many.


@decomposes_complex("aten::prod.dim_int", "aten::prod")
def multiplied(build: NodeBuilder, node: Node) -> Value | None:
    """Halves multiplied with each other until one number is left."""
    x, along = node.args[0], node.qualified_op == "aten::prod.dim_int"
    if node["dtype"] is not None or x.dtype != torch.complex64 or x.numel == 0:
        return None
    x = x if along and x.rank else build("aten::reshape", x, [-1])
    dim = node["dim"] % x.rank if along else 0
    while x.sizes[dim] > 1:
        half, rest = divmod(x.sizes[dim], 2)
        low, high = (build("aten::narrow", x, dim, start, half) for start in (0, half))
        made = build("aten::mul.Tensor", low, high)
        x = build("aten::cat", [made, build("aten::narrow", x, dim, 2 * half, 1)], dim) if rest else made
    return build("aten::reshape", x, list(node.output.sizes))


@decomposes_complex("aten::var.correction")
def variance(build: NodeBuilder, node: Node) -> Value:
    """That of the real parts and that of the imaginary ones."""
    parts = _whole(build, pair_of(build, node.args[0]))
    first, second = (build(node.qualified_op, part, *node.args[1:]) for part in parts)
    return build("aten::add.Tensor", first, second)


@decomposes_complex("aten::linalg_vector_norm")
def vector_norm(build: NodeBuilder, node: Node) -> Value | None:
    """Of the absolute values."""
    if node["dtype"] is not None:
        return None
    return build("aten::linalg_vector_norm", build("aten::abs", node.args[0]), *node.args[1:])
