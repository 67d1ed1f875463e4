"""Products of complex matrices, as one product of real ones that hold both parts in blocks:
``[Ar Ai] [[Br Bi], [-Bi Br]] = [Cr Ci]``."""

from __future__ import annotations

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.complex_numbers import Pair, Parts, joined, pair_of
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes_complex


@decomposes_complex("aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::matmul")
def product(build: NodeBuilder, node: Node) -> Value:
    """``a @ b``."""
    return _product(build, *node.args)


@decomposes_complex("aten::vdot")
def conjugate_dot(build: NodeBuilder, node: Node) -> Value:
    """The conjugate of a vector, times another."""
    return _product(build, build("aten::_conj", node.args[0]), node.args[1])


@decomposes_complex("aten::linear")
def linear(build: NodeBuilder, node: Node) -> Value:
    """``x @ weight.T + bias``."""
    x, weight, bias = node.args
    made = _product(build, x, build("aten::transpose.int", weight, 0, 1) if weight.rank > 1 else weight)
    return made if bias is None else build("aten::add.Tensor", made, bias)


@decomposes_complex("aten::addmm", "aten::baddbmm", "aten::addmv")
def added_product(build: NodeBuilder, node: Node) -> Value:
    """``beta * input + alpha * (a @ b)``."""
    addend, a, b = node.args[:3]
    made = _product(build, a, b)
    made = made if node["alpha"] == 1 else build("aten::mul.Scalar", made, node["alpha"])
    if node["beta"] == 0:
        return made
    return build("aten::add.Tensor", made, addend, alpha=node["beta"])


def _product(build: NodeBuilder, a: Value, b: Value) -> Value:
    """As ``torch.matmul``."""
    left, right = pair_of(build, a), pair_of(build, b)
    if right.imaginary is None:
        imaginary = None if left.imaginary is None else build("aten::matmul", left.imaginary, right.real)
        return joined(build, build("aten::matmul", left.real, right.real), imaginary)
    if a.rank == 1 and left.imaginary is not None:
        made = _product(build, build("aten::unsqueeze", a, 0), b)
        return build("aten::squeeze.dim", made, -1 if b.rank == 1 else -2)
    if b.rank == 1:
        return build("aten::squeeze.dim", _product(build, a, build("aten::unsqueeze", b, -1)), -1)
    made = build("aten::matmul", beside(build, left), blocks(build, right, left.imaginary is None))
    return joined(build, *halves(build, made))


def beside(build: NodeBuilder, pair: Pair) -> Value:
    """The parts of rows, side by side."""
    if pair.imaginary is None:
        return pair.real
    whole = _halved(pair.real, 0)
    if whole is not None and _halved(pair.imaginary, 1) is whole:
        return whole
    return build("aten::cat", [pair.real, pair.imaginary], -1)


def _halved(part: Value, index: int) -> Value | None:
    """The value that :func:`halves` made a part of, as its first or second half."""
    node = part.producer
    if node is None or node.qualified_op != "aten::narrow":
        return None
    whole, dim, start, length = node.args
    is_half = dim == -1 and 2 * length == whole.sizes[-1] and start == index * length
    return whole if is_half else None


def halves(build: NodeBuilder, whole: Value) -> tuple[Value, Value]:
    """The parts of rows that :func:`beside` puts side by side."""
    length = whole.sizes[-1] // 2
    real, imaginary = (build("aten::narrow", whole, -1, start, length) for start in (0, length))
    return real, imaginary


def blocks(build: NodeBuilder, pair: Pair, is_real: bool) -> Value:
    """The parts of the right operand of a product, for rows whose parts lie side by side, or that are real."""
    assert pair.imaginary is not None
    above = build("aten::cat", [pair.real, pair.imaginary], -1)
    if is_real:
        return above
    turned = Parts(build).neg(pair.imaginary)
    return build("aten::cat", [above, build("aten::cat", [turned, pair.real], -1)], -2)
