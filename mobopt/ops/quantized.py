"""Weights of few bits: how they lie in memory, and the one operator that makes floats of them.

``mobopt::dequantize(values, scales, zero_points, block_size, bits, columns)`` gives
``(values - zero_points) * scales``, in the dtype of the scales. A scale holds for a block of ``block_size`` elements,
one number for each dimension, so scales have ``ceil(size / block)`` elements there: blocks of ``[1, 64]`` are groups of
64 along a row, blocks of one row's size are output channels. Integers of 8 bits are int8 or uint8 tensors; those of 4
bits lie two in a byte of a uint8 tensor along the last dimension, which has ``columns`` of them, the first in the low
bits, as 0 to 15. Without zero points these count from 8, and others from 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mobopt.errors import InputError
from mobopt.ir import Value

DEQUANTIZE = "mobopt::dequantize"
BITS = (4, 8)
MIDDLE = 8
"""What integers of 4 bits count from where there are no zero points."""
_LEAST = 1024
"""Elements of a weight that is kept as integers; smaller ones are computed ahead of time."""


def unpacked(values: torch.Tensor, columns: int) -> torch.Tensor:
    """Integers of 4 bits (..., columns / 2 rounded up) as one in a byte (..., columns)."""
    halves = torch.stack([values & 15, values >> 4], -1)
    return halves.reshape(*values.shape[:-1], 2 * values.shape[-1])[..., :columns]


def packed(integers: torch.Tensor) -> torch.Tensor:
    """Integers from 0 to 15 (..., columns), two in a byte; see :func:`unpacked`."""
    even = torch.nn.functional.pad(integers.to(torch.uint8), (0, integers.shape[-1] % 2))
    return even[..., ::2] | even[..., 1::2] << 4


def block_counts(sizes: Sequence[int], block_size: Sequence[int]) -> tuple[int, ...]:
    """Sizes of the scales of a tensor."""
    return tuple(-(-size // block) for size, block in zip(sizes, block_size, strict=True))


def spread(blocks: torch.Tensor, sizes: Sequence[int], block_size: Sequence[int]) -> torch.Tensor:
    """What is given for blocks, for elements; dimensions of one block stay of size 1."""
    for dim, (size, block) in enumerate(zip(sizes, block_size, strict=True)):
        if block > 1 and blocks.shape[dim] > 1:
            blocks = blocks.repeat_interleave(block, dim).narrow(dim, 0, size)
    return blocks


def dequantized(
    values: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    block_size: Sequence[int],
    bits: int,
    columns: int,
) -> torch.Tensor:
    """The floats; see the module.

    Raises:
        InputError: the arguments do not fit each other.
    """
    sizes = sizes_of(tuple(values.shape), values.dtype, bits, columns)
    if sizes is None or len(sizes) != len(block_size) or min(block_size, default=1) < 1:
        raise InputError(
            f"{DEQUANTIZE} takes integers of {' or '.join(map(str, BITS))} bits and a block size for each dimension; "
            f"these are {values.dtype} of {tuple(values.shape)}, {bits} bits, {columns} columns, blocks of {block_size}"
        )
    counts = block_counts(sizes, block_size)
    for given in (scales, zero_points):
        if given is not None and tuple(given.shape) != counts:
            raise InputError(f"{DEQUANTIZE} needs {counts} scales and zero points, and has {tuple(given.shape)}")
    floats = (unpacked(values, columns) if bits == 4 else values).to(scales.dtype)
    if zero_points is None and bits == 4:
        floats -= MIDDLE
    elif zero_points is not None:
        _with_blocks(floats, zero_points, block_size, torch.Tensor.sub_)
    _with_blocks(floats, scales, block_size, torch.Tensor.mul_)
    return floats


def _with_blocks(
    floats: torch.Tensor,
    blocks: torch.Tensor,
    block_size: Sequence[int],
    change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    """Change floats by what is given for their blocks."""
    if not floats.is_contiguous() or any(size % block for size, block in zip(floats.shape, block_size, strict=True)):
        change(floats, spread(blocks, floats.shape, block_size))
        return
    apart = [size for count, block in zip(blocks.shape, block_size, strict=True) for size in (count, block)]
    change(floats.view(apart), blocks.reshape([size for count in blocks.shape for size in (count, 1)]))


def sizes_of(sizes: tuple[int, ...], dtype: torch.dtype, bits: int, columns: int) -> tuple[int, ...] | None:
    """Sizes of the floats that integers stand for; None if they do not stand for any."""
    if bits not in BITS or dtype not in ((torch.uint8,) if bits == 4 else (torch.int8, torch.uint8)) or not sizes:
        return None
    held = -(-columns // 2) if bits == 4 else columns
    return (*sizes[:-1], columns) if sizes[-1] == held else None


@dataclass(frozen=True, eq=False)
class Quantized:
    """A constant of few bits: the arguments of :data:`DEQUANTIZE`."""

    values: torch.Tensor
    scales: torch.Tensor
    zero_points: torch.Tensor | None
    block_size: tuple[int, ...]
    bits: int
    columns: int

    @staticmethod
    def of(value: Value | None) -> Quantized | None:
        """What a tensor of a straight line is made of, if it is made of such a constant."""
        node = None if value is None else value.producer
        if node is None or node.qualified_op != DEQUANTIZE or any(item.elements is None for item in node.inputs):
            return None
        values, scales, zero_points, block_size, bits, columns = node.args
        zeros = None if zero_points is None else zero_points.constant
        return Quantized(values.constant, scales.constant, zeros, tuple(block_size), bits, columns)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the floats."""
        return (*self.values.shape[:-1], self.columns)

    @property
    def sources(self) -> tuple[torch.Tensor, ...]:
        """All its tensors."""
        return tuple(item for item in (self.values, self.scales, self.zero_points) if item is not None)

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return sum(item.nbytes for item in self.sources)

    @property
    def arguments(self) -> tuple[object, ...]:
        """The arguments of the operator, in order."""
        return self.values, self.scales, self.zero_points, list(self.block_size), self.bits, self.columns

    def floats(self) -> torch.Tensor:
        """What it stands for."""
        return dequantized(self.values, self.scales, self.zero_points, self.block_size, self.bits, self.columns)

    def integers(self) -> torch.Tensor:
        """The integers as int8, one in a byte, less the middle of what unsigned ones can be."""
        if self.bits == 4:
            return (unpacked(self.values, self.columns).to(torch.int16) - MIDDLE).to(torch.int8)
        return self.values if self.values.dtype == torch.int8 else (self.values.to(torch.int16) - 128).to(torch.int8)

    def centers(self) -> torch.Tensor | None:
        """What :meth:`integers` count from, for each scale; None if it is 0 everywhere."""
        middle = MIDDLE if self.bits == 4 else 0 if self.values.dtype == torch.int8 else 128
        if self.zero_points is None:
            return None if self.bits == 4 or middle == 0 else torch.full_like(self.scales, -middle)
        centers = self.zero_points - middle
        return centers if centers.any() else None

    def transposed(self) -> Quantized:
        """A matrix with its rows and columns exchanged."""
        integers = unpacked(self.values, self.columns) if self.bits == 4 else self.values
        turned = integers.t().contiguous()
        return Quantized(
            packed(turned) if self.bits == 4 else turned,
            self.scales.t().contiguous(),
            None if self.zero_points is None else self.zero_points.t().contiguous(),
            self.block_size[::-1],
            self.bits,
            turned.shape[-1],
        )

    def unsqueezed(self, dim: int) -> Quantized:
        """With a dimension of size 1 before one that is not the last."""
        return replace(
            self,
            values=self.values.unsqueeze(dim),
            scales=self.scales.unsqueeze(dim),
            zero_points=None if self.zero_points is None else self.zero_points.unsqueeze(dim),
            block_size=(*self.block_size[:dim], 1, *self.block_size[dim:]),
        )


def is_weight(tensor: Any) -> bool:
    """Whether a constant of integers is worth keeping as it is."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.dtype in (torch.int8, torch.uint8)
        and tensor.dim() > 1
        and tensor.numel() >= _LEAST
    )


def weight_of(
    integers: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    block_size: list[int],
    has_four_bits: bool = False,
) -> Quantized:
    """A weight from integers one in a byte, int8 or uint8, with float32 scales for blocks.

    Args:
        integers: of any rank.
        scales: one for each block.
        zero_points: likewise; None for 0.
        block_size: elements that share a scale, for each dimension.
        has_four_bits: whether the integers have 4 bits at most.
    """
    columns = integers.shape[-1]
    zeros = None if zero_points is None or not zero_points.any() else zero_points.float()
    if not has_four_bits:
        return Quantized(integers, scales, zeros, tuple(block_size), 8, columns)
    middle = MIDDLE if integers.dtype == torch.int8 else 0
    zeros = torch.zeros_like(scales) if zeros is None else zeros
    shifted = None if bool((zeros + middle == MIDDLE).all()) else zeros + middle
    return Quantized(packed(integers + middle), scales, shifted, tuple(block_size), 4, columns)


def quantized(weight: torch.Tensor, bits: int, block_size: Sequence[int]) -> Quantized:
    """A float tensor rounded to integers of ``bits`` bits, symmetrical about zero.

    With 8 bits the largest magnitude of a block becomes 127; with 4 bits the element that has it becomes -8, so that
    all sixteen numbers are used.

    Args:
        weight: finite floats.
        bits: 4 or 8.
        block_size: elements that share a scale, for each dimension.
    """
    source = weight.detach().to(torch.float32)
    sizes = tuple(source.shape)
    low, high = _bounds(source, block_size)
    scales = _signed_scale(low, high) if bits == 4 else torch.maximum(-low, high) / 127
    steps = spread(torch.where(scales == 0, torch.ones_like(scales), scales), sizes, block_size)
    rounded = (source / steps).round_()
    if bits == 8:
        values = rounded.clamp_(-127, 127).to(torch.int8)
    else:
        values = packed(rounded.clamp_(-MIDDLE, MIDDLE - 1).add_(MIDDLE))
    return Quantized(values, scales, None, tuple(block_size), bits, sizes[-1])


def _signed_scale(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """The step that makes -8 of the element of the largest magnitude."""
    return torch.where(-low >= high, low, high) / -MIDDLE


def _bounds(source: torch.Tensor, block_size: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the greatest element of each block, and zero."""
    low = high = source
    for dim, block in enumerate(block_size):
        if block == 1:
            continue
        size = source.shape[dim]
        missing = -size % block
        shape = [*low.shape[:dim], (size + missing) // block, block, *low.shape[dim + 1 :]]
        low = _padded(low, dim, missing).reshape(shape).amin(dim + 1)
        high = _padded(high, dim, missing).reshape(shape).amax(dim + 1)
    return low.clamp(max=0), high.clamp(min=0)


def _padded(source: torch.Tensor, dim: int, missing: int) -> torch.Tensor:
    after = [0, missing] if missing else []
    return torch.nn.functional.pad(source, [*[0, 0] * (source.dim() - dim - 1), *after]) if after else source


def relative_error(weight: torch.Tensor, stored: Quantized) -> float:
    """Root of the mean square of what rounding changed, over that of the weight."""
    norm = weight.norm().item()
    return math.nan if not math.isfinite(norm) else (stored.floats() - weight).norm().item() / norm if norm else 0.0
