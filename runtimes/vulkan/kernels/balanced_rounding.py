"""Weights rounded to halves so that the errors of a row cancel.

What rounding does to the weights of an output channel is the same for every pixel of every image. Where inputs have a
mean, as after ReLU, errors that are all rounded to the nearest add up to an offset that nothing averages out: in nets
of folded batch norms it was a large part of what half precision cost. Rounding a few weights of each row the other
way, those that lay closest to the middle between two halves, makes the errors of a row sum up to less than one step.
What M. Nagel et al. correct in biases ("Data-Free Quantization Through Weight Equalization and Bias Correction", 2019)
needs the means of inputs; this needs nothing but the weights.
"""

from __future__ import annotations

import torch

_CHUNK = 1 << 22
"""Elements that are rounded at a time."""


def balanced_halves(rows: torch.Tensor, half: torch.dtype) -> torch.Tensor:
    """Rows of floats as halves, each one of the two next to its float.

    Args:
        rows: (output channels, weights of each), float32.
        half: float16 or bfloat16.
    """
    nearest = rows.to(half)
    if rows.shape[1] < 2 or rows.numel() == 0:
        return nearest
    count = max(1, _CHUNK // rows.shape[1])
    starts = range(0, rows.shape[0], count)
    return torch.cat([_balanced(rows[start : start + count], nearest[start : start + count]) for start in starts])


def _balanced(rows: torch.Tensor, nearest: torch.Tensor) -> torch.Tensor:
    """As many of a row's best changes as make least of the expected square error of what the row computes, where inputs
    have a mean as large as their deviation: the square of the errors' sum, and the sum of their squares."""
    errors = nearest.float() - rows
    totals = errors.sum(1, keepdim=True)
    bits = nearest.view(torch.int16)
    has_grown = (nearest > 0) == (errors > 0)  # further from zero than the float
    others = torch.where(has_grown, bits - 1, bits + 1).view(nearest.dtype)
    steps = (others.float() - nearest.float()).abs()
    may_change = (errors.sign() == totals.sign()) & (errors != 0) & (nearest != 0) & others.isfinite()
    merits = torch.where(may_change, errors.abs() / steps, -1.0)
    # Errors of a row are a random walk of less than half a step each: few changes are enough.
    best, places = merits.topk(min(rows.shape[1], int(rows.shape[1] ** 0.5) + 2), 1)
    step, error = steps.gather(1, places), errors.gather(1, places).abs()
    moved = torch.where(best > 0, step, 0.0).cumsum(1)
    squares = torch.where(best > 0, step * (step - 2 * error), torch.inf).cumsum(1)
    losses = torch.cat([totals.square(), (totals.abs() - moved).square() + squares], 1)
    is_changed = torch.arange(places.shape[1]) < losses.argmin(1, keepdim=True)
    return nearest.scatter(1, places, torch.where(is_changed, others.gather(1, places), nearest.gather(1, places)))
