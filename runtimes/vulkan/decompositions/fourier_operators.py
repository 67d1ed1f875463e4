"""The three operators that all of ``torch.fft`` is made of: complex to complex, real to complex, complex to real."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.complex_numbers import Pair, each, joined, pair_of
from mobopt.runtimes.vulkan.decompositions.fourier import Transform, real_from_half, transformed
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes_complex

_ORTHONORMAL, _BY_LENGTH = 1, 2
"""How torch numbers what results are divided by: the root of the length, and the length."""


@decomposes_complex("aten::fft_fftn", "aten::fft_ifftn")
def over_dimensions(build: NodeBuilder, node: Node) -> Value | None:
    """The same over ascending dimensions: meta kernels of torch 2.11 fail on others."""
    x, lengths, dims, norm = node.args
    if lengths is not None or dims is None:
        return None
    ascending = sorted(dim % len(x.sizes) for dim in dims)
    return None if ascending == list(dims) else build(node.qualified_op, x, None, ascending, norm)


@decomposes_complex("aten::_fft_c2c")
def complex_to_complex(build: NodeBuilder, node: Node) -> Value | None:
    """Over several dimensions, one after the other."""
    x, dims, normalization, forward = node.args
    if x.numel == 0:
        return None
    made = _along_all(build, pair_of(build, x), dims, -1 if forward else 1, normalization)
    return joined(build, made.real, made.imaginary)


@decomposes_complex("aten::_fft_r2c")
def real_to_complex(build: NodeBuilder, node: Node) -> Value | None:
    """Over the last of the dimensions, of which half the spectrum tells all, then over the others."""
    x, dims, normalization, onesided = node.args
    if x.dtype != torch.float32 or x.numel == 0:
        return None
    length = x.sizes[dims[-1]]
    kept = length // 2 + 1 if onesided else length
    made = _along(build, Pair(x, None), dims[-1], Transform(length, -1, _scale(length, normalization), kept))
    made = _along_all(build, made, dims[:-1], -1, normalization)
    return joined(build, made.real, made.imaginary)


@decomposes_complex("aten::_fft_c2r")
def complex_to_real(build: NodeBuilder, node: Node) -> Value | None:
    """Over all dimensions but the last, then over that, of whose spectrum a half is given."""
    x, dims, normalization, length = node.args
    if x.dtype != torch.complex64 or x.numel == 0:
        return None
    pair = _along_all(build, pair_of(build, x), dims[:-1], 1, normalization)
    scale = _scale(length, normalization)
    return along(build, pair, dims[-1], lambda rows: Pair(real_from_half(build, rows, length, scale), None)).real


def _along_all(build: NodeBuilder, pair: Pair, dims: Sequence[int], sign: int, normalization: int) -> Pair:
    for dim in dims:
        length = pair.real.sizes[dim]
        pair = _along(build, pair, dim, Transform(length, sign, _scale(length, normalization), length))
    return pair


def _along(build: NodeBuilder, pair: Pair, dim: int, transform: Transform) -> Pair:
    return along(build, pair, dim, lambda rows: transformed(build, rows, transform))


def _scale(length: int, normalization: int) -> float:
    if normalization == _ORTHONORMAL:
        return 1 / math.sqrt(length)
    return 1 / length if normalization == _BY_LENGTH else 1.0


def along(build: NodeBuilder, pair: Pair, dim: int, function: Callable[[Pair], Pair]) -> Pair:
    """What a function of rows, (rows, length) to (rows, other length), makes along a dimension."""
    sizes = list(pair.real.sizes)
    dim %= len(sizes)
    last = len(sizes) - 1
    lead = [*sizes[:dim], *sizes[dim + 1 :]]

    def rows(part: Value) -> Value:
        moved = part if dim == last else build("aten::movedim.int", part, dim, last)
        return build("aten::reshape", moved, [math.prod(lead), sizes[dim]])

    def back(part: Value) -> Value:
        shaped = build("aten::reshape", part, [*lead, part.sizes[-1]])
        return shaped if dim == last else build("aten::movedim.int", shaped, last, dim)

    return each(back, function(each(rows, pair)))
