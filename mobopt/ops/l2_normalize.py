"""Vectors of length one: ``mobopt::l2_normalize(self, dim, eps, weight)`` is ``self / max(||self||, eps) * weight``.

The norm is the Euclidean one of dimension ``dim``. Without a weight nothing is multiplied.

Source: ``torch.nn.functional.normalize``, which has no weight.
"""

from __future__ import annotations

import torch

L2_NORMALIZE = "mobopt::l2_normalize"


def l2_normalized(x: torch.Tensor, dim: int, eps: float, weight: torch.Tensor | None = None) -> torch.Tensor:
    """A tensor of floats of any sizes, normalised; a weight is broadcast to these."""
    result: torch.Tensor = x / torch.linalg.vector_norm(x, dim=dim, keepdim=True).clamp_min(eps)
    return result if weight is None else result * weight
