"""Quantised tensors as files hold them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from mobopt.ops.quantized import spread

QUINT8 = 13
DTYPES = {12: torch.qint8, QUINT8: torch.quint8, 14: torch.qint32}
"""Dtypes of quantised tensors by number; source: ``c10/core/ScalarType.h``."""


@dataclass(frozen=True, eq=False)
class AffineTensor:
    """A quantised tensor: ``(integers - zero_points) * scales``.

    Attributes:
        integers: int8, uint8 or int32.
        scales: float64, as files have them, of one element, or one for each index of a dimension.
        zero_points: as many, float32.
        axis: that dimension; None for one scale.
    """

    integers: torch.Tensor
    scales: torch.Tensor
    zero_points: torch.Tensor
    axis: int | None

    @property
    def block_size(self) -> list[int]:
        """Elements that share a scale, for each dimension."""
        return [1 if dim == self.axis else size for dim, size in enumerate(self.integers.shape)]

    def in_blocks(self, parameter: torch.Tensor) -> torch.Tensor:
        """Scales or zero points with a dimension for each of the integers'."""
        return parameter.reshape([-1 if dim == self.axis else 1 for dim in range(self.integers.dim())])

    def unsqueezed(self, dim: int) -> AffineTensor:
        """With a dimension of size 1, behind that of the scales."""
        return replace(self, integers=self.integers.unsqueeze(dim))

    def transposed(self) -> AffineTensor:
        """Of a matrix."""
        return replace(self, integers=self.integers.t(), axis=None if self.axis is None else 1 - self.axis)

    def floats(self) -> torch.Tensor:
        """What it stands for."""
        sizes, blocks = self.integers.shape, self.block_size
        steps, points = (spread(self.in_blocks(item), sizes, blocks) for item in (self.scales, self.zero_points))
        return (self.integers.float() - points) * steps.float()
