"""Discrete Fourier transforms of any length, as products with matrices.

Short lengths are one product with the matrix of the transform, whose blocks hold real and imaginary parts. A long one
that has factors is two shorter ones, over the rows and the columns of a rectangle, with a rotation between them (J. W.
Cooley and J. W. Tukey, "An algorithm for the machine calculation of complex Fourier series", 1965). A long prime is a
convolution with a chirp (L. I. Bluestein, "A linear filtering approach to the computation of discrete Fourier
transform", 1970), which transforms of a length with small factors compute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

from mobopt.ir import Value
from mobopt.runtimes.vulkan.decompositions.complex_numbers import Pair, Parts, each
from mobopt.runtimes.vulkan.decompositions.complex_products import beside, halves
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder

SMALL_MATRIX = 2**18 + 2**11
"""Elements of the matrix of a transform that is one product even if its length has factors: 256 complex numbers, or 512
real ones of which half the spectrum is wanted."""
_LARGEST_MATRIX = 2**22
"""Elements of a matrix that is made at all: a prime length of 1024 complex numbers."""
_CACHED = 16


@dataclass(frozen=True)
class Transform:
    """What is computed of each row.

    Attributes:
        length: how many numbers a row has.
        sign: of the exponent: -1 forward, 1 backward.
        scale: what every result is multiplied by.
        kept: how many of the results are wanted, from the first on.
        is_real: whether the imaginary parts of the results are not wanted.
    """

    length: int
    sign: int
    scale: float
    kept: int
    is_real: bool = False

    def matrix_elements(self, has_imaginary: bool) -> int:
        """The size of the matrix for rows of complex or real numbers."""
        return self.length * (1 + has_imaginary) * self.kept * (2 - self.is_real)


def transformed(build: NodeBuilder, rows: Pair, transform: Transform) -> Pair:
    """The transforms of rows, (rows, length) to (rows, kept)."""
    if _is_product(transform.length, transform.matrix_elements(rows.imaginary is not None)):
        table = matrix(transform, rows.imaginary is not None)
        made = build("aten::mm", beside(build, rows), Value.of_elements(table))
        return Pair(made, None) if transform.is_real else Pair(*halves(build, made))
    if _has_factors(transform.length):
        return _by_factors(build, rows, transform, _best_divisor(transform.length))
    return _by_chirp(build, rows, transform)


def _is_product(length: int, elements: int) -> bool:
    """Whether a transform is one product with a matrix of so many elements."""
    return elements <= (SMALL_MATRIX if _has_factors(length) else _LARGEST_MATRIX)


def _has_factors(length: int) -> bool:
    """Whether a transform is made of shorter ones, none of which goes by a chirp."""
    first = _best_divisor(length)
    return first > 1 and _is_short(length // first)


def _is_short(length: int) -> bool:
    """Whether a transform of complex numbers has a matrix, or factors that do."""
    while (2 * length) ** 2 > _LARGEST_MATRIX:
        divisor = _best_divisor(length)
        if divisor == 1:
            return False
        length //= divisor
    return True


def _best_divisor(length: int) -> int:
    """The largest divisor up to the square root."""
    return next(divisor for divisor in range(math.isqrt(length), 0, -1) if length % divisor == 0)


# Matrices.


@lru_cache(_CACHED)
def matrix(transform: Transform, has_imaginary: bool) -> torch.Tensor:
    """The matrix of a transform, for rows and results whose parts lie side by side."""
    places = torch.arange(transform.length)[:, None] * torch.arange(transform.kept)
    turns = rotations(places, transform.length, transform.sign) * transform.scale
    return blocks_of(turns, has_imaginary, transform.is_real)


def rotations(numerators: torch.Tensor, denominator: int, sign: int) -> torch.Tensor:
    """``exp(sign 2 pi i n / denominator)`` of integers, complex128."""
    angles = (numerators % denominator).double() * (sign * 2 * math.pi / denominator)
    return torch.polar(torch.ones_like(angles), angles)


def blocks_of(matrix: torch.Tensor, has_imaginary: bool, is_real: bool) -> torch.Tensor:
    """A complex matrix as one of real numbers, for rows and results whose parts lie side by side."""
    above = matrix.real if is_real else torch.cat([matrix.real, matrix.imag], 1)
    below = -matrix.imag if is_real else torch.cat([-matrix.imag, matrix.real], 1)
    return (torch.cat([above, below]) if has_imaginary else above).float()


# Real numbers from half a spectrum.


def real_from_half(build: NodeBuilder, rows: Pair, length: int, scale: float) -> Value:
    """The backward transforms, real numbers, of rows that hold the first half of a spectrum; (rows, half or more) to
    (rows, length). What real numbers can't have is left out: imaginary parts at zero and in the middle."""
    half = length // 2 + 1
    rows = each(lambda part: build("aten::slice.Tensor", part, -1, 0, half), rows)
    if _is_product(length, length * 2 * half):
        table = half_matrix(length, scale, rows.imaginary is not None)
        return build("aten::mm", beside(build, rows), Value.of_elements(table))
    transform = Transform(length, 1, scale, length, is_real=True)
    return transformed(build, _hermitian(build, rows, length), transform).real


@lru_cache(_CACHED)
def half_matrix(length: int, scale: float, has_imaginary: bool) -> torch.Tensor:
    """The matrix of :func:`real_from_half`: what has a conjugate in the other half counts twice."""
    half = length // 2 + 1
    counts = torch.full((half,), 2.0, dtype=torch.float64)
    counts[0] = 1
    if length % 2 == 0:
        counts[-1] = 1
    turns = rotations(torch.arange(half)[:, None] * torch.arange(length), length, 1)
    return blocks_of(turns * (counts[:, None] * scale), has_imaginary, is_real=True)


def _hermitian(build: NodeBuilder, rows: Pair, length: int) -> Pair:
    """A whole spectrum whose second half is the conjugate of the first."""
    rest = length - length // 2 - 1
    mirrored = build("aten::flip", build("aten::narrow", rows.real, -1, 1, rest), [-1])
    real = build("aten::cat", [rows.real, mirrored], -1)
    if rows.imaginary is None:
        return Pair(real, None)
    inner = build("aten::narrow", rows.imaginary, -1, 1, rest)
    edge = build("aten::zeros_like", build("aten::narrow", rows.imaginary, -1, 0, 1))
    middle = [edge] if length % 2 == 0 else []
    turned = build("aten::neg", build("aten::flip", inner, [-1]))
    return Pair(real, build("aten::cat", [edge, inner, *middle, turned], -1))


# Two shorter transforms.


def _by_factors(build: NodeBuilder, rows: Pair, transform: Transform, first: int) -> Pair:
    """Row-major places ``second n1 + n2`` become ``k1 + first k2``: columns are transformed, rotated, then rows."""
    count, second, sign = rows.real.sizes[0], transform.length // first, transform.sign
    columns = _shaped(build, _turned(build, rows, [count, first, second]), [count * second, first])
    inner = transformed(build, columns, Transform(first, sign, 1.0, first))
    turned = _turned(build, inner, [count, second, first])
    rotated = Parts(build).product(turned, _constant(_twiddles(transform.length, sign, first)))
    wanted = -(-transform.kept // first)
    across = _shaped(build, rotated, [count * first, second])
    outer = transformed(build, across, Transform(second, sign, transform.scale, wanted, transform.is_real))
    flat = _shaped(build, _turned(build, outer, [count, first, wanted]), [count, wanted * first])
    if wanted * first == transform.kept:
        return flat
    return each(lambda part: build("aten::slice.Tensor", part, -1, 0, transform.kept), flat)


@lru_cache(_CACHED)
def _twiddles(length: int, sign: int, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    return _parts_of(rotations(torch.arange(first)[:, None] * torch.arange(length // first), length, sign))


def _parts_of(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return numbers.real.float().contiguous(), numbers.imag.float().contiguous()


def _constant(parts: tuple[torch.Tensor, torch.Tensor]) -> Pair:
    return Pair(*map(Value.of_elements, parts))


def _turned(build: NodeBuilder, pair: Pair, sizes: list[int]) -> Pair:
    """Rectangles of these sizes, (count, rows, columns), with rows and columns swapped."""
    rectangles = _shaped(build, pair, sizes)
    return each(lambda part: build("aten::transpose.int", part, 1, 2), rectangles)


def _shaped(build: NodeBuilder, pair: Pair, sizes: list[int]) -> Pair:
    return each(lambda part: build("aten::reshape", part, sizes), pair)


# A chirp.


def _by_chirp(build: NodeBuilder, rows: Pair, transform: Transform) -> Pair:
    """``n k = (n^2 + k^2 - (k - n)^2) / 2``: a convolution between two rotations."""
    length, parts = transform.length, Parts(build)
    padded = _convolution_length(length + transform.kept - 1)
    chirp = _chirp(length, max(length, transform.kept), transform.sign)
    before = parts.product(rows, _constant(_parts_of(chirp[:length])))
    wide = each(lambda part: build("aten::constant_pad_nd", part, [0, padded - length], 0.0), before)
    spectrum = transformed(build, wide, Transform(padded, -1, 1.0, padded))
    filtered = parts.product(spectrum, _constant(_filter(transform, padded)))
    returned = transformed(build, filtered, Transform(padded, 1, 1.0, transform.kept))
    after = chirp[: transform.kept] * transform.scale
    result = parts.product(returned, _constant(_parts_of(after)))
    return Pair(result.real, None) if transform.is_real else result


@lru_cache(_CACHED)
def _chirp(length: int, count: int, sign: int) -> torch.Tensor:
    """``exp(sign pi i n^2 / length)``."""
    return rotations(torch.arange(count) ** 2, 2 * length, sign)


@lru_cache(_CACHED)
def _filter(transform: Transform, padded: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The spectrum of the chirp that rows are convolved with, over the length of that transform."""
    count = max(transform.length, transform.kept)
    turned = _chirp(transform.length, count, -transform.sign)
    line = torch.zeros(padded, dtype=torch.complex128)
    line[: transform.kept] = turned[: transform.kept]
    line[padded - transform.length + 1 :] = turned[1 : transform.length].flip(0)
    return _parts_of(torch.fft.fft(line) / padded)


def _convolution_length(least: int) -> int:
    """The smallest product of two numbers near each other from ``least`` on of which both have matrices."""
    root = math.isqrt(least)
    products = [low * high for low in range(root, root + 5) for high in range(low, low + 5)]
    return min(length for length in products if length >= least and _is_short(length))
