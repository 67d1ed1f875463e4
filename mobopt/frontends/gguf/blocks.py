"""Elements of GGUF tensors: floats, or integers with a scale for each group, and a zero point if blocks have minima."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mobopt.errors import UnsupportedError
from mobopt.frontends.gguf.file import GgufTensor
from mobopt.frontends.gguf.integers import READERS, Integers

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, eq=False)
class Blocks:
    """A tensor of integers: an element is ``(integers - zero_points) * scales``.

    Attributes:
        integers: int8, of the tensor's sizes.
        scales: float32, one for each ``group`` of a row.
        zero_points: float32, of the same sizes; None where they are zero.
        bounds: between which the integers lie.
    """

    integers: torch.Tensor
    scales: torch.Tensor
    zero_points: torch.Tensor | None
    bounds: tuple[int, int]

    @property
    def group(self) -> int:
        """Elements of a row that share a scale."""
        return self.integers.shape[-1] // self.scales.shape[-1]

    def floats(self) -> torch.Tensor:
        """The elements, float32."""

        def spread(part: torch.Tensor) -> torch.Tensor:
            return part.repeat_interleave(self.group, -1)

        integers = self.integers if self.zero_points is None else self.integers - spread(self.zero_points)
        return integers * spread(self.scales)

    def rows(self, order: torch.Tensor) -> Blocks:
        """With its rows in another order."""
        zero_points = None if self.zero_points is None else self.zero_points[order]
        return Blocks(self.integers[order], self.scales[order], zero_points, self.bounds)


def elements_of(tensor: GgufTensor) -> torch.Tensor | Blocks:
    """A tensor in memory of its own: floats of their dtype, or integers.

    Raises:
        UnsupportedError: its kind isn't read.
    """
    if tensor.blocks is None:
        raise UnsupportedError(
            f"the tensor {tensor.name!r} is {tensor.kind}, which is not read; {', '.join([*_FLOATS, *READERS])} are: "
            "quantise the model again, to Q4_K_M or Q8_0"
        )
    raw = torch.from_numpy(tensor.blocks.copy())
    if tensor.kind in _FLOATS:
        return raw.view(_FLOATS[tensor.kind]).reshape(tensor.sizes)
    return _in_rows(READERS[tensor.kind](raw), tensor.sizes)


def _in_rows(found: Integers, sizes: tuple[int, ...]) -> Blocks:
    groups = (*sizes[:-1], sizes[-1] * found.scales.shape[1] // found.integers.shape[1])
    if found.minima is None:
        return Blocks(found.integers.reshape(sizes), found.scales.reshape(groups), None, found.bounds)
    # A group of zero scale is its minimum everywhere: one step below zero, of that length.
    is_flat = found.scales == 0
    scales = torch.where(is_flat, found.minima, found.scales)
    zero_points = torch.where(is_flat, 1.0, found.minima / found.scales - found.base)
    spread = is_flat.repeat_interleave(found.integers.shape[1] // is_flat.shape[1], 1)
    integers = found.integers.masked_fill(spread, 0)
    return Blocks(integers.reshape(sizes), scales.reshape(groups), zero_points.reshape(groups), found.bounds)
