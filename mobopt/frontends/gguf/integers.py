"""Integers, scales and minima of GGUF's blocks, as files hold them.

Source: ``ggml/src/ggml-common.h`` and ``ggml-quants.c``. Blocks of 32 elements have a scale (Q4_0, Q5_0, Q8_0), a scale
and a minimum (Q4_1, Q5_1), or a scale of numbers from a table (IQ4_NL, MXFP4). Blocks of 256 have one scale of 16 bits,
by which small integers are multiplied, the scales of their groups of 16 or 32 elements (Q2_K to Q6_K, IQ4_XS), or one
scale for all (TQ1_0, TQ2_0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

FOUR_BITS, EIGHT_BITS = (-8, 7), (-128, 127)
"""Between which integers lie that are kept in so many bits."""
_FOUR_BIT_CURVE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the indices of IQ4_NL and IQ4_XS stand for."""
_E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""What the indices of MXFP4 stand for, twice."""
_E8M0_BIAS = 127


@dataclass(frozen=True, eq=False)
class Integers:
    """What blocks hold: an element is ``(integers + base) * scales - minima``.

    Attributes:
        integers: int8 (blocks, elements of a block).
        scales: float32 (blocks, groups of a block).
        minima: float32, likewise; None where there are none.
        base: what the integers were made smaller by.
        bounds: between which they lie.
    """

    integers: Tensor
    scales: Tensor
    minima: Tensor | None = None
    base: int = 0
    bounds: tuple[int, int] = FOUR_BITS


Reader = Callable[[Tensor], Integers]
READERS: dict[str, Reader] = {}
"""By ggml's name of a kind: what makes :class:`Integers` of bytes (blocks, bytes of a block)."""


def _reads(kind: str) -> Callable[[Reader], Reader]:
    def register(reader: Reader) -> Reader:
        READERS[kind] = reader
        return reader

    return register


def _fields(raw: Tensor, run: int, bits: int) -> Tensor:
    """Fields of bytes: of each ``run`` of bytes first the lowest bits of all, then the next ones."""
    runs = raw.reshape(len(raw), -1, run)
    return torch.stack([runs >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)], 2).flatten(1)


def _half(raw: Tensor, at: int) -> Tensor:
    """A float of 16 bits of each block (blocks, 1)."""
    return raw[:, at : at + 2].contiguous().view(torch.float16).float()


def _signed(raw: Tensor, base: int = 0) -> Tensor:
    """Bytes less ``base`` as int8."""
    return (raw.to(torch.int16) - base).to(torch.int8)


def _of_table(indices: Tensor, table: tuple[int, ...]) -> Tensor:
    return torch.tensor(table, dtype=torch.int8)[indices.long()]


@_reads("Q4_0")
def _q4_0(raw: Tensor) -> Integers:
    return Integers(_signed(_fields(raw[:, 2:], 16, 4), 8), _half(raw, 0))


@_reads("Q4_1")
def _q4_1(raw: Tensor) -> Integers:
    return Integers(_signed(_fields(raw[:, 4:], 16, 4), 8), _half(raw, 0), -_half(raw, 2), base=8)


def _five_bits(raw: Tensor) -> Tensor:
    """Four bytes of highest bits, then sixteen of the other four."""
    return _fields(raw[:, 4:], 16, 4) | _fields(raw[:, :4], 1, 1) << 4


@_reads("Q5_0")
def _q5_0(raw: Tensor) -> Integers:
    return Integers(_signed(_five_bits(raw[:, 2:]), 16), _half(raw, 0), bounds=EIGHT_BITS)


@_reads("Q5_1")
def _q5_1(raw: Tensor) -> Integers:
    return Integers(_signed(_five_bits(raw[:, 4:])), _half(raw, 0), -_half(raw, 2), bounds=EIGHT_BITS)


@_reads("Q8_0")
def _q8_0(raw: Tensor) -> Integers:
    return Integers(raw[:, 2:].contiguous().view(torch.int8), _half(raw, 0), bounds=EIGHT_BITS)


@_reads("IQ4_NL")
def _iq4_nl(raw: Tensor) -> Integers:
    return Integers(_of_table(_fields(raw[:, 2:], 16, 4), _FOUR_BIT_CURVE), _half(raw, 0), bounds=EIGHT_BITS)


@_reads("MXFP4")
def _mxfp4(raw: Tensor) -> Integers:
    exponents = raw[:, :1].to(torch.int32) - _E8M0_BIAS - 1
    halved = torch.ldexp(torch.ones(exponents.shape), exponents)
    return Integers(_of_table(_fields(raw[:, 1:], 16, 4), _E2M1_DOUBLED), halved, bounds=EIGHT_BITS)


@_reads("Q2_K")
def _q2_k(raw: Tensor) -> Integers:
    factors, minima = raw[:, :16] & 15, raw[:, :16] >> 4
    integers = _signed(_fields(raw[:, 16:80], 32, 2))
    return Integers(integers, _half(raw, 80) * factors, _half(raw, 82) * minima)


@_reads("Q3_K")
def _q3_k(raw: Tensor) -> Integers:
    integers = _fields(raw[:, 32:96], 32, 2) | _fields(raw[:, :32], 32, 1) << 2
    factors = _fields(raw[:, 96:104], 8, 4) | _fields(raw[:, 104:108], 4, 2) << 4
    return Integers(_signed(integers, 4), _half(raw, 108) * _signed(factors, 32))


def _scales_and_minima(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Eight factors of scales and eight of minima, of 6 bits each, from the first 16 bytes of Q4_K and Q5_K."""
    whole, above, below = raw[:, 4:12] & 63, raw[:, 4:12] >> 6 << 4, _fields(raw[:, 12:16], 4, 4)
    upper = below | above
    factors, minima = torch.cat([whole[:, :4], upper[:, :4]], 1), torch.cat([whole[:, 4:], upper[:, 4:]], 1)
    return _half(raw, 0) * factors, _half(raw, 2) * minima


@_reads("Q4_K")
def _q4_k(raw: Tensor) -> Integers:
    return Integers(_signed(_fields(raw[:, 16:], 32, 4), 8), *_scales_and_minima(raw), base=8)


@_reads("Q5_K")
def _q5_k(raw: Tensor) -> Integers:
    integers = _fields(raw[:, 48:], 32, 4) | _fields(raw[:, 16:48], 32, 1) << 4
    return Integers(_signed(integers), *_scales_and_minima(raw), bounds=EIGHT_BITS)


@_reads("Q6_K")
def _q6_k(raw: Tensor) -> Integers:
    integers = _fields(raw[:, :128], 64, 4) | _fields(raw[:, 128:192], 32, 2) << 4
    factors = raw[:, 192:208].contiguous().view(torch.int8)
    return Integers(_signed(integers, 32), _half(raw, 208) * factors, bounds=EIGHT_BITS)


@_reads("IQ4_XS")
def _iq4_xs(raw: Tensor) -> Integers:
    factors = _fields(raw[:, 4:8], 1, 4) | _fields(raw[:, 2:4], 1, 2) << 4
    integers = _of_table(_fields(raw[:, 8:], 16, 4), _FOUR_BIT_CURVE)
    return Integers(integers, _half(raw, 0) * _signed(factors, 32), bounds=EIGHT_BITS)


def _threes(raw: Tensor, run: int, digits: int) -> Tensor:
    """Digits 0, 1 and 2 of numbers to the base of three, which bytes hold as fractions of 256; in runs as fields."""
    runs = raw.reshape(len(raw), -1, run).to(torch.int32)
    return torch.stack([(runs * 3**place & 255) * 3 >> 8 for place in range(digits)], 2).flatten(1)


@_reads("TQ1_0")
def _tq1_0(raw: Tensor) -> Integers:
    parts = [_threes(raw[:, :32], 32, 5), _threes(raw[:, 32:48], 16, 5), _threes(raw[:, 48:52], 4, 4)]
    return Integers(_signed(torch.cat(parts, 1), 1), _half(raw, 52))


@_reads("TQ2_0")
def _tq2_0(raw: Tensor) -> Integers:
    return Integers(_signed(_fields(raw[:, :64], 32, 2), 1), _half(raw, 64))
