"""Layers that compute what follows them."""

from __future__ import annotations

import torch

Folded = tuple[torch.Tensor, torch.Tensor]


def fold_batch_norm(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    *,
    eps: float,
    transposed: bool = False,
    groups: int = 1,
) -> Folded:
    """Weight and bias of a layer with the batch normalisation after it, computed in float64 and rounded once, to the
    dtype of the weight.

    With s = gamma / sqrt(variance + eps), batch_norm(conv(x, W, b)) is conv(x, s W, s (b - mean) + beta), with one s
    for each output channel.

    Args:
        weight: (out, in/groups, ...), or (in, out/groups, ...) if transposed.
        bias: (out,), like gamma, beta, mean and variance.
        gamma: the normalisation's weight.
        beta: the normalisation's bias.
        mean: running mean.
        variance: running variance.
        eps: added to the variance.
        transposed: whether the layer is a transposed convolution.
        groups: of the convolution.
    """
    scale = (variance.double() + eps).rsqrt()
    if gamma is not None:
        scale = scale * gamma.double()
    shift = -mean.double() * scale if bias is None else (bias.double() - mean.double()) * scale
    if beta is not None:
        shift = shift + beta.double()
    if transposed:
        parts = weight.double().reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        scaled = parts * scale.reshape(groups, 1, -1, *[1] * (weight.dim() - 2))
    else:
        scaled = weight.double() * scale.reshape(-1, *[1] * (weight.dim() - 1))
    return scaled.reshape(weight.shape).to(weight.dtype).contiguous(), shift.to(weight.dtype)
