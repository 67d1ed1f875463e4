"""Elements of GGUF tensors: floats, and blocks of 32 integers with a scale of 16 bits.

Source: ``ggml/src/ggml-common.h`` and ``ggml-quants.c``. Q8_0: a scale d, 32 integers q of 8 bits; an element is q d.
Q4_0: a scale d, 16 bytes, whose low bits are the elements 0 to 15 and whose high bits are 16 to 31; an element is
(q - 8) d.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mobopt.errors import UnsupportedError
from mobopt.frontends.gguf.file import GgufTensor

GROUP = 32
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BOUNDS = {"Q4_0": (-8, 7), "Q8_0": (-128, 127)}


@dataclass(frozen=True, eq=False)
class Blocks:
    """A tensor of integers.

    Attributes:
        integers: int8, of the tensor's sizes.
        scales: float32, one for each 32 integers of a row.
        bounds: between which the integers lie.
    """

    integers: torch.Tensor
    scales: torch.Tensor
    bounds: tuple[int, int]

    def floats(self) -> torch.Tensor:
        """The elements, float32."""
        return self.integers * self.scales.repeat_interleave(GROUP, -1)

    def rows(self, order: torch.Tensor) -> Blocks:
        """With its rows in another order."""
        return Blocks(self.integers[order], self.scales[order], self.bounds)


def elements_of(tensor: GgufTensor) -> torch.Tensor | Blocks:
    """A tensor in memory of its own: floats of their dtype, or integers.

    Raises:
        UnsupportedError: its kind isn't read.
    """
    if tensor.blocks is None:
        raise UnsupportedError(
            f"the tensor {tensor.name!r} is {tensor.kind}; F32, F16, BF16, Q8_0 and Q4_0 are read: quantise the model "
            "again, to Q8_0 or Q4_0"
        )
    raw = torch.from_numpy(tensor.blocks.copy())
    if tensor.kind in _FLOATS:
        return raw.view(_FLOATS[tensor.kind]).reshape(tensor.sizes)
    scales = raw[:, :2].contiguous().view(torch.float16).float()
    if tensor.kind == "Q8_0":
        integers = raw[:, 2:].view(torch.int8)
    else:
        integers = torch.cat([raw[:, 2:] & 15, raw[:, 2:] >> 4], 1).to(torch.int8) - 8
    counts = (*tensor.sizes[:-1], tensor.sizes[-1] // GROUP)
    return Blocks(integers.reshape(tensor.sizes), scales.reshape(counts), _BOUNDS[tensor.kind])
