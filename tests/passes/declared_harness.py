"""What the tests of declared sizes share: bounds of a net's inputs, and inputs of other sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mobopt.runtimes.bounds import Range

Row = list["Range | None"]
KINDS = ("batch", "extent")


def resized(tensor: Tensor, sizes: Sequence[int]) -> Tensor:
    """A tensor of other sizes: its elements again and again, or cut off."""
    for dim, size in enumerate(sizes):
        copies = -(-size // max(tensor.size(dim), 1))
        tensor = torch.cat([tensor] * copies, dim).narrow(dim, 0, size)
    return tensor.contiguous()


def bounds_for(kind: str, inputs: Sequence[Tensor]) -> list[Row]:
    """Ranges of the batch, or of height and width (of three dimensions, of the middle one), around those of inputs."""
    rows: list[Row] = []
    for tensor in inputs:
        row: Row = [None] * tensor.dim()
        if kind == "batch":
            if tensor.dim() and tensor.size(0) == inputs[0].size(0):
                row[0] = (1, tensor.size(0) + 2)
        else:
            for dim in {3: (1,), 4: (2, 3)}.get(tensor.dim(), ()):
                row[dim] = (max(tensor.size(dim) - 8, 1), tensor.size(dim) + 8)
        rows.append(row)
    return rows


def within(rows: Sequence[Row], inputs: Sequence[Tensor], choose: Callable[[Range], int]) -> list[Tensor]:
    """Inputs of the sizes that ``choose`` takes from the ranges."""
    return [
        resized(
            tensor, [size if found is None else choose(found) for size, found in zip(tensor.shape, row, strict=True)]
        )
        for tensor, row in zip(inputs, rows, strict=True)
    ]
