"""One element of a block of a GGUF kind at a time, in plain integers, by ggml's description of how blocks lie."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import torch

Element = Callable[[bytes, int], float]
_CURVE = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
_E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def half(block: bytes, at: int) -> float:
    found: float = struct.unpack_from("<e", block, at)[0]
    return found


def nibble_of_32(block: bytes, at: int, i: int) -> int:
    """Of 16 bytes: the first half of the elements in low bits, the second in high bits."""
    return block[at + i % 16] >> 4 * (i // 16) & 15


def high_bit_of_32(block: bytes, at: int, i: int) -> int:
    return int.from_bytes(block[at : at + 4], "little") >> i & 1


def nibble_of_64(block: bytes, at: int, i: int) -> int:
    """Of each 32 bytes: 32 elements in low bits, the next 32 in high bits."""
    return block[at + 32 * (i // 64) + i % 32] >> 4 * (i % 64 // 32) & 15


def crumb(block: bytes, at: int, i: int) -> int:
    """Two bits: of each 32 bytes, four times 32 elements."""
    return block[at + 32 * (i // 128) + i % 32] >> 2 * (i % 128 // 32) & 3


def six_bits(block: bytes, j: int) -> tuple[int, int]:
    """A scale and a minimum of Q4_K and Q5_K, from the twelve bytes after the two halves."""
    q = block[4:16]
    if j < 4:
        return q[j] & 63, q[j + 4] & 63
    return q[j + 4] & 15 | q[j - 4] >> 6 << 4, q[j + 4] >> 4 | q[j] >> 6 << 4


def q4_k(block: bytes, i: int) -> float:
    scale, least = six_bits(block, i // 32)
    return half(block, 0) * scale * nibble_of_64(block, 16, i) - half(block, 2) * least


def q5_k(block: bytes, i: int) -> float:
    scale, least = six_bits(block, i // 32)
    q = nibble_of_64(block, 48, i) + 16 * (block[16 + i % 32] >> i // 32 & 1)
    return half(block, 0) * scale * q - half(block, 2) * least


def q6_k(block: bytes, i: int) -> float:
    part, row, column = i // 128, i % 128 // 32, i % 32
    low = block[64 * part + 32 * (row % 2) + column] >> 4 * (row // 2) & 15
    high = block[128 + 32 * part + column] >> 2 * row & 3
    (scale,) = struct.unpack_from("<b", block, 192 + i // 16)
    return half(block, 208) * scale * ((low | high << 4) - 32)


def q2_k(block: bytes, i: int) -> float:
    both = block[i // 16]
    return half(block, 80) * (both & 15) * crumb(block, 16, i) - half(block, 82) * (both >> 4)


def q3_k(block: bytes, i: int) -> float:
    j, packed = i // 16, block[96:108]
    low = packed[j] & 15 if j < 8 else packed[j - 8] >> 4
    scale = (low | (packed[8 + j % 4] >> 2 * (j // 4) & 3) << 4) - 32
    q = crumb(block, 32, i) - (0 if block[i % 32] >> i // 32 & 1 else 4)
    return half(block, 108) * scale * q


def iq4_xs(block: bytes, i: int) -> float:
    j = i // 32
    low = block[4 + j // 2] >> 4 * (j % 2) & 15
    high = int.from_bytes(block[2:4], "little") >> 2 * j & 3
    return half(block, 0) * ((low | high << 4) - 32) * _CURVE[nibble_of_32(block, 8 + 16 * j, i % 32)]


def mxfp4(block: bytes, i: int) -> float:
    q = nibble_of_32(block, 1, i)
    return (-1.0 if q > 7 else 1.0) * _E2M1[q & 7] * 2.0 ** (block[0] - 127)


def tq1_0(block: bytes, i: int) -> float:
    """The byte's number is 256 / 243 of its five digits; the first digit is the highest."""
    at, run, i = (0, 32, i) if i < 160 else (32, 16, i - 160) if i < 240 else (48, 4, i - 240)
    byte = block[at + i % run]
    for _ in range(i // run):
        byte = byte * 3 % 256
    return half(block, 52) * (byte * 3 // 256 - 1)


ELEMENTS: dict[str, tuple[int, int, int, Element]] = {
    "Q4_0": (2, 32, 18, lambda b, i: half(b, 0) * (nibble_of_32(b, 2, i) - 8)),
    "Q4_1": (3, 32, 20, lambda b, i: half(b, 0) * nibble_of_32(b, 4, i) + half(b, 2)),
    "Q5_0": (6, 32, 22, lambda b, i: half(b, 0) * (nibble_of_32(b, 6, i) + 16 * high_bit_of_32(b, 2, i) - 16)),
    "Q5_1": (7, 32, 24, lambda b, i: half(b, 0) * (nibble_of_32(b, 8, i) + 16 * high_bit_of_32(b, 4, i)) + half(b, 2)),
    "Q8_0": (8, 32, 34, lambda b, i: half(b, 0) * float(struct.unpack_from("<b", b, 2 + i)[0])),
    "Q2_K": (10, 256, 84, q2_k),
    "Q3_K": (11, 256, 110, q3_k),
    "Q4_K": (12, 256, 144, q4_k),
    "Q5_K": (13, 256, 176, q5_k),
    "Q6_K": (14, 256, 210, q6_k),
    "IQ4_NL": (20, 32, 18, lambda b, i: half(b, 0) * _CURVE[nibble_of_32(b, 2, i)]),
    "IQ4_XS": (23, 256, 136, iq4_xs),
    "TQ1_0": (34, 256, 54, tq1_0),
    "TQ2_0": (35, 256, 66, lambda b, i: half(b, 64) * (crumb(b, 0, i) - 1)),
    "MXFP4": (39, 32, 17, mxfp4),
}
"""By kind: ggml's number, elements of a block, its bytes, and an element."""
_HALVES = {
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "TQ1_0": (52,), "TQ2_0": (64,), "MXFP4": (),
}  # fmt: skip


def blocks_of(kind: str, elements: int) -> tuple[bytes, torch.Tensor]:
    """Random blocks whose scales are moderate, some of them zero, and what they stand for, float64."""
    _, size, count, element = ELEMENTS[kind]
    source, raw, values = random.Random(elements), b"", []
    for number in range(elements // size):
        block = bytearray(source.randbytes(count))
        for at in _HALVES.get(kind, (0,)):
            block[at : at + 2] = struct.pack("<e", 0.0 if number % 5 == 3 and not at else source.gauss(0, 0.02))
        if kind == "MXFP4":
            block[0] = source.randrange(118, 127)
        raw += block
        values += [element(bytes(block), i) for i in range(size)]
    return raw, torch.tensor(values, dtype=torch.float64)
