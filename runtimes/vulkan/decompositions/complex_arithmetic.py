"""Arithmetic of complex numbers, their parts, and what is asked of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.cpu.kernels import scalar_type
from mobopt.runtimes.vulkan.decompositions.complex_numbers import Pair, Parts, joined, pair_of
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes, decomposes_complex


def operand(build: NodeBuilder, value: Any) -> Pair:
    """The parts of a tensor or of a number."""
    if isinstance(value, Value):
        return pair_of(build, value)
    number = complex(value)
    real, imaginary = (Value.of_elements(torch.tensor(part)) for part in (number.real, number.imag))
    return Pair(real, imaginary if number.imag else None)


def _join(build: NodeBuilder, pair: Pair) -> Value:
    return joined(build, pair.real, pair.imaginary)


# Parts.


@decomposes_complex("aten::complex")
def complex_(build: NodeBuilder, node: Node) -> Value | None:
    """Of constants, or of halves: what the device joins has a lowering."""
    return None


@decomposes_complex("aten::polar")
def polar(build: NodeBuilder, node: Node) -> Value:
    """``abs * (cos(angle) + i sin(angle))``."""
    size, angle = node.args
    parts = Parts(build)
    real, imaginary = (parts.mul(size, build(f"aten::{name}", angle)) for name in ("cos", "sin"))
    assert real is not None
    return joined(build, real, imaginary)


@decomposes_complex("aten::real")
def real(build: NodeBuilder, node: Node) -> Value:
    """The real part."""
    return pair_of(build, node.args[0]).real


@decomposes_complex("aten::imag")
def imag(build: NodeBuilder, node: Node) -> Value:
    """The imaginary part."""
    pair = pair_of(build, node.args[0])
    return build("aten::zeros_like", pair.real) if pair.imaginary is None else pair.imaginary


@decomposes_complex("aten::view_as_real", "aten::view_as_real_copy")
def view_as_real(build: NodeBuilder, node: Node) -> Value:
    """Both parts, side by side in memory."""
    pair = pair_of(build, node.args[0])
    imaginary = build("aten::zeros_like", pair.real) if pair.imaginary is None else pair.imaginary
    return build("aten::stack", [pair.real, imaginary], -1)


@decomposes_complex("aten::view_as_complex", "aten::view_as_complex_copy")
def view_as_complex(build: NodeBuilder, node: Node) -> Value:
    """What lies side by side."""
    return joined(build, *(build("aten::select.int", node.args[0], -1, index) for index in (0, 1)))


@decomposes_complex("aten::conj", "aten::_conj", "aten::_conj_copy", "aten::conj_physical", "aten::_conj_physical")
def conjugate(build: NodeBuilder, node: Node) -> Value:
    """The other sign of the imaginary part, at once: there are no tensors here whose sign is yet to be changed."""
    pair = pair_of(build, node.args[0])
    return joined(build, pair.real, Parts(build).neg(pair.imaginary))


@decomposes_complex("aten::mH", "aten::adjoint", "aten::matrix_H")
def adjoint(build: NodeBuilder, node: Node) -> Value:
    """The transposed conjugate."""
    return build("aten::_conj", build("aten::transpose.int", node.args[0], -2, -1))


# Arithmetic.


@decomposes_complex("aten::add.Tensor", "aten::add.Scalar", "aten::sub.Tensor", "aten::sub.Scalar")
def add(build: NodeBuilder, node: Node) -> Value | None:
    """``a + alpha * b``."""
    a, b, alpha = node.args
    return _added(build, a, b, -alpha if node.op == "aten::sub" else alpha)


@decomposes_complex("aten::rsub.Tensor", "aten::rsub.Scalar")
def reverse_subtract(build: NodeBuilder, node: Node) -> Value | None:
    """``b - alpha * a``."""
    a, b, alpha = node.args
    return _added(build, b, a, -alpha)


def _added(build: NodeBuilder, a: Any, b: Any, alpha: Any) -> Value:
    parts = Parts(build)
    one, two = operand(build, a), operand(build, b)
    if isinstance(alpha, complex) and alpha.imag:
        two, alpha = parts.product(two, operand(build, alpha)), 1
    factor = alpha.real
    if factor == -1:
        sums = [parts.sub(*pair) for pair in ((one.real, two.real), (one.imaginary, two.imaginary))]
    else:
        scaled = parts.scaled(two.real, factor), parts.scaled(two.imaginary, factor)
        sums = [parts.add(*pair) for pair in ((one.real, scaled[0]), (one.imaginary, scaled[1]))]
    assert sums[0] is not None
    return joined(build, sums[0], sums[1])


@decomposes_complex("aten::mul.Tensor", "aten::mul.Scalar")
def multiply(build: NodeBuilder, node: Node) -> Value:
    """Two products for each part; one with a real number, to whose imaginary part belongs a zero that has a sign."""
    a, b = (operand(build, value) for value in node.args)
    parts = Parts(build)
    product = parts.product(a, b)
    if (a.imaginary is None) == (b.imaginary is None):
        return _join(build, product)
    other = b if a.imaginary is None else a
    zero = build("aten::mul.Scalar", other.real, 0.0)
    return joined(build, product.real, parts.add(product.imaginary, zero))


@decomposes_complex("aten::square")
def square(build: NodeBuilder, node: Node) -> Value:
    """``z * z``."""
    return build("aten::mul.Tensor", node.args[0], node.args[0])


@decomposes_complex("aten::div.Tensor", "aten::div.Scalar", "aten::true_divide.Tensor")
def divide(build: NodeBuilder, node: Node) -> Value:
    """``a / b``; see :func:`quotient`."""
    a, b = (operand(build, value) for value in node.args)
    return _join(build, quotient(build, a, b))


@decomposes_complex("aten::reciprocal")
def reciprocal(build: NodeBuilder, node: Node) -> Value:
    """``1 / z``."""
    return _join(build, quotient(build, operand(build, 1), operand(build, node.args[0])))


def quotient(build: NodeBuilder, a: Pair, b: Pair) -> Pair:
    """``a / b``, of a divisor over its larger part, so that no square is out of range."""
    parts = Parts(build)
    if b.imaginary is None:
        imaginary = None if a.imaginary is None else build("aten::div.Tensor", a.imaginary, b.real)
        return Pair(build("aten::div.Tensor", a.real, b.real), imaginary)
    largest = build("aten::maximum", build("aten::abs", b.real), build("aten::abs", b.imaginary))
    real, imaginary = (build("aten::div.Tensor", part, largest) for part in (b.real, b.imaginary))
    above = parts.product(a, Pair(real, build("aten::neg", imaginary)))
    below = parts.add(parts.mul(real, real), parts.mul(imaginary, imaginary))
    assert above.imaginary is not None
    results = (
        build("aten::div.Tensor", build("aten::div.Tensor", part, below), largest)
        for part in (above.real, above.imaginary)
    )
    return Pair(*results)


# Absolute values and angles.


@decomposes_complex("aten::abs", "aten::absolute")
def absolute(build: NodeBuilder, node: Node) -> Value:
    """``sqrt(a^2 + b^2)``, without squares that are out of range."""
    return size_of(build, pair_of(build, node.args[0]))


def size_of(build: NodeBuilder, pair: Pair) -> Value:
    """The absolute value."""
    if pair.imaginary is None:
        return build("aten::abs", pair.real)
    return build("aten::hypot", pair.real, pair.imaginary)


@decomposes_complex("aten::angle")
def angle(build: NodeBuilder, node: Node) -> Value:
    """From -pi to pi."""
    return angle_of(build, pair_of(build, node.args[0]))


@decomposes("aten::angle")
def angle_of_real(build: NodeBuilder, node: Node) -> Value | None:
    """Pi of negative numbers, zero of others."""
    x = node.args[0]
    if not x.dtype.is_floating_point:
        x = build("aten::to.dtype", x, node.output.dtype)
    angles = build("aten::mul.Scalar", build("aten::to.dtype", build("aten::lt.Scalar", x, 0), x.dtype), math.pi)
    return build("aten::where.self", build("aten::isnan", x), x, angles)


def angle_of(build: NodeBuilder, pair: Pair) -> Value:
    """The angle; of a real number that is negative it is pi."""
    imaginary = build("aten::zeros_like", pair.real) if pair.imaginary is None else pair.imaginary
    return build("aten::atan2", imaginary, pair.real)


@decomposes_complex("aten::sgn")
def sign(build: NodeBuilder, node: Node) -> Value:
    """``z / |z|``; zero of zero."""
    pair = pair_of(build, node.args[0])
    size = size_of(build, pair)
    divided = quotient(build, pair, Pair(size, None))
    is_zero = build("aten::eq.Scalar", size, 0)
    chosen = [
        None if part is None else build("aten::masked_fill.Scalar", part, is_zero, 0.0)
        for part in (divided.real, divided.imaginary)
    ]
    assert chosen[0] is not None
    return joined(build, chosen[0], chosen[1])


# What is asked of numbers.


@decomposes_complex("aten::eq.Tensor", "aten::eq.Scalar", "aten::ne.Tensor", "aten::ne.Scalar")
def equal(build: NodeBuilder, node: Node) -> Value:
    """Whether both parts are equal, or one is not."""
    a, b = (operand(build, value) for value in node.args)
    compared = f"{node.op}.Tensor"
    found = [build(compared, a.real, b.real)]
    if a.imaginary is not None or b.imaginary is not None:
        zero = Value.of_elements(torch.zeros(()))
        found.append(build(compared, *(zero if pair.imaginary is None else pair.imaginary for pair in (a, b))))
    return _combined(build, found, "aten::logical_and" if node.op == "aten::eq" else "aten::logical_or")


@decomposes_complex("aten::isnan", "aten::isinf", "aten::isfinite", "aten::logical_not", "aten::any")
def asked_of_parts(build: NodeBuilder, node: Node) -> Value | None:
    """Whether it holds of a part; of both for finite numbers, and for those that are not true."""
    pair = pair_of(build, node.args[0])
    found = [build(node.qualified_op, part) for part in (pair.real, pair.imaginary) if part is not None]
    of_both = node.op in ("aten::isfinite", "aten::logical_not")
    return _combined(build, found, "aten::logical_and" if of_both else "aten::logical_or")


@decomposes_complex("aten::isreal")
def is_real(build: NodeBuilder, node: Node) -> Value:
    """Whether the imaginary part is zero."""
    return build("aten::eq.Scalar", build("aten::imag", node.args[0]), 0)


def _combined(build: NodeBuilder, found: Sequence[Value], operator: str) -> Value:
    return found[0] if len(found) == 1 else build(operator, *found)


# Dtypes.


@decomposes_complex("aten::to.dtype", "aten::_to_copy", "aten::type_as", "aten::to.other", "aten::to.dtype_layout")
def convert(build: NodeBuilder, node: Node) -> Value | None:
    """A real number as a complex one, or the real part."""
    kind = node.output.dtype
    pair = pair_of(build, node.args[0])
    if kind == torch.complex64:
        return _join(build, pair)
    return None if kind.is_complex else build("aten::to.dtype", pair.real, kind)


@decomposes_complex("aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::empty_like")
@decomposes_complex("aten::new_zeros", "aten::new_ones", "aten::new_full", "aten::new_empty")
@decomposes_complex("aten::zeros", "aten::ones", "aten::full", "aten::empty.memory_format")
def created(build: NodeBuilder, node: Node) -> Value | None:
    """One number everywhere."""
    output, name = node.output, node.op.removeprefix("aten::").removeprefix("new_").removesuffix("_like")
    number = complex(node["fill_value"] if name == "full" else name == "ones")
    if not output.dtype.is_complex:  # a complex tensor's sizes alone
        return build("aten::full", list(output.sizes), number.real, dtype=output.dtype)
    if output.dtype != torch.complex64:
        return None
    real, imaginary = (
        build("aten::full", list(output.sizes), part, dtype=torch.float32) for part in (number.real, number.imag)
    )
    return joined(build, real, imaginary if number.imag else None)


@decomposes_complex("aten::sum", "aten::sum.dim_IntList", "aten::mean", "aten::mean.dim", "aten::cumsum")
def summed(build: NodeBuilder, node: Node) -> Value | None:
    """Sums of the parts."""
    if scalar_type(node["dtype"]) not in (None, torch.complex64):
        return None
    pair = pair_of(build, node.args[0])
    sums = [
        None if part is None else build(node.qualified_op, part, *node.args[1:-1], dtype=torch.float32)
        for part in (pair.real, pair.imaginary)
    ]
    assert sums[0] is not None
    return joined(build, sums[0], sums[1])
