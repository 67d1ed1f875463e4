"""Arguments of which torch's kernels read beyond the end, or which its meta kernels take and the CPU's refuse."""

from __future__ import annotations

from typing import Any

import torch


def check_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: Any) -> None:
    """Check the operands of ``aten::scaled_dot_product_attention``: the CPU's kernel reads as many values as keys.

    Raises:
        RuntimeError: they are not equally many.
    """
    if min(key.dim(), value.dim()) > 1 and key.shape[-2] != value.shape[-2]:
        raise RuntimeError(f"there are {key.shape[-2]} keys and {value.shape[-2]} values; they should be equally many")


def check_extreme(x: torch.Tensor, *others: Any) -> None:
    """Check the operand of ``aten::max`` and ``aten::min``.

    Raises:
        RuntimeError: it has no elements.
    """
    if x.numel() == 0:
        raise RuntimeError("there is no extreme of no elements")


def check_extreme_along(x: torch.Tensor, dim: int, *others: Any) -> None:
    """Check the operand of ``aten::max.dim`` and ``aten::min.dim``.

    Raises:
        RuntimeError: the dimension has no elements.
    """
    if x.dim() and x.shape[dim] == 0:
        raise RuntimeError(f"there is no extreme along dimension {dim}, which has no elements")
