"""How quantised models round, in torch's own operators."""

from __future__ import annotations

import torch
from torch import Tensor


def stepped(x: Tensor, scale: float) -> Tensor:
    """The nearest multiples of a scale, of -100 to 120 times it."""
    return torch.clamp(torch.round(x * (1 / scale)), -100, 120) * scale
