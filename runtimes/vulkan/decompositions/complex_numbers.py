"""Complex tensors as pairs of real ones.

Kernels know real numbers alone. In a graph that is being decomposed, a complex tensor is what ``aten::complex`` makes
of its real and imaginary parts; what reads it reads the parts, and where nothing reads the tensor itself any more,
that node goes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from mobopt.ir import Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, UndecomposedError

_REAL = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Pair:
    """The parts of a complex tensor, float32; ``imaginary`` is None where it is zero everywhere."""

    real: Value
    imaginary: Value | None


def pair_of(build: NodeBuilder, value: Value) -> Pair:
    """The parts of a tensor, each of its sizes.

    Raises:
        UndecomposedError: it has more digits than float32, and is no number that was made a tensor.
    """
    if not value.dtype.is_complex:
        return Pair(real_of(build, value), None)
    is_number = value.rank == 0 and value.elements is not None
    if value.dtype != torch.complex64 and not is_number:
        raise UndecomposedError(f"{value.dtype} has no form on the device")
    if value.elements is not None:
        return _constant_pair(value)
    made = value.producer
    if made is None or made.qualified_op != "aten::complex":
        shown = build("aten::view_as_real", value)
        return Pair(*(build("aten::select.int", shown, -1, index) for index in (0, 1)))
    real, imaginary = (_broadcast(build, part, value) for part in made.args)
    return Pair(real, None if is_zero(made.args[1]) else imaginary)


def real_of(build: NodeBuilder, value: Value) -> Value:
    """A real tensor as float32.

    Raises:
        UndecomposedError: it has more digits, and is no number that was made a tensor.
    """
    if value.dtype == torch.float32:
        return value
    if value.dtype == torch.float64:
        if value.rank or value.elements is None:
            raise UndecomposedError(f"{value.dtype} has no form on the device")
        return Value.of_elements(value.elements.float())
    return build("aten::to.dtype", value, torch.float32)


def _constant_pair(value: Value) -> Pair:
    elements = value.constant.detach().resolve_conj()
    return Pair(*(Value.of_elements(part.float().clone()) for part in (elements.real, elements.imag)))


def _broadcast(build: NodeBuilder, part: Value, whole: Value) -> Value:
    return part if part.sizes == whole.sizes else build("aten::expand", part, list(whole.sizes))


def is_zero(value: Value) -> bool:
    """Whether a part is the number zero, as :func:`joined` has it for one that is None."""
    return value.rank == 0 and value.elements is not None and float(value.elements) == 0


def joined(build: NodeBuilder, real: Value, imaginary: Value | None) -> Value:
    """The complex tensor with these parts, which are broadcast."""
    return build("aten::complex", real, Value.of_elements(torch.zeros(())) if imaginary is None else imaginary)


def each(function: Callable[[Value], Value], pair: Pair) -> Pair:
    """A function of both parts."""
    return Pair(function(pair.real), None if pair.imaginary is None else function(pair.imaginary))


class Parts:
    """Arithmetic on real tensors of which None stands for zero."""

    def __init__(self, build: NodeBuilder) -> None:
        """``build`` makes the nodes."""
        self.build = build

    def add(self, a: Value | None, b: Value | None) -> Value | None:
        """``a + b``."""
        if a is None or b is None:
            return b if a is None else a
        return self.build("aten::add.Tensor", a, b)

    def sub(self, a: Value | None, b: Value | None) -> Value | None:
        """``a - b``."""
        if a is None or b is None:
            return self.neg(b) if a is None else a
        return self.build("aten::sub.Tensor", a, b)

    def mul(self, a: Value | None, b: Value | None) -> Value | None:
        """``a * b``."""
        return None if a is None or b is None else self.build("aten::mul.Tensor", a, b)

    def neg(self, a: Value | None) -> Value | None:
        """``-a``."""
        return None if a is None else self.build("aten::neg", a)

    def scaled(self, a: Value | None, factor: float) -> Value | None:
        """``a`` times a number."""
        return a if a is None or factor == 1 else self.build("aten::mul.Scalar", a, factor)

    def product(self, a: Pair, b: Pair) -> Pair:
        """``a * b`` of complex numbers."""
        real = self.sub(self.mul(a.real, b.real), self.mul(a.imaginary, b.imaginary))
        assert real is not None, "two real parts are there"
        return Pair(real, self.add(self.mul(a.real, b.imaginary), self.mul(a.imaginary, b.real)))
