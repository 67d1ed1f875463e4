"""Sizes of the tensors of an LSTM, which torch does not look at: oneDNN reads beyond those that are too small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_GATES = 4


def check_lstm(
    x: torch.Tensor,
    state: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> None:
    """Check the arguments of ``aten::lstm.input``.

    Raises:
        RuntimeError: a size does not fit the others; in the form of torch's own errors, for whoever called the kernel.
    """
    if x.dim() != 3:
        raise RuntimeError(f"lstm: expected input with 3 dimensions, got {x.dim()}")
    _check(x, x.shape[0 if batch_first else 1], state, weights, has_biases, layers, bidirectional)


def check_packed_lstm(
    x: torch.Tensor,
    batch_sizes: torch.Tensor,
    state: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> None:
    """Check the arguments of ``aten::lstm.data``.

    Raises:
        RuntimeError: as for :func:`check_lstm`.
    """
    if x.dim() != 2 or batch_sizes.dim() != 1 or not batch_sizes.numel():
        raise RuntimeError("lstm: expected packed data with 2 dimensions, and the batch size of each step")
    if int(batch_sizes.sum()) != x.shape[0] or bool((batch_sizes < 1).any()):
        raise RuntimeError(f"lstm: batch sizes do not add up to the {x.shape[0]} rows of the data")
    _check(x, int(batch_sizes[0]), state, weights, has_biases, layers, bidirectional)


def _check(
    x: torch.Tensor,
    batch: int,
    state: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    bidirectional: bool,
) -> None:
    if len(state) != 2 or any(item.dim() != 3 for item in state) or layers < 1:
        raise RuntimeError("lstm: expected two states with 3 dimensions, and one layer or more")
    directions = 2 if bidirectional else 1
    cells, hidden = state[1].shape[2], state[0].shape[2]
    for item, width in zip(state, (hidden, cells), strict=True):
        _expect("a state", item, (layers * directions, batch, width))
    has_projection = hidden != cells
    shapes: list[tuple[Any, ...]] = []
    for layer in range(layers):
        width = x.shape[-1] if layer == 0 else directions * hidden
        one = [(_GATES * cells, width), (_GATES * cells, hidden), *[(_GATES * cells,)] * (2 if has_biases else 0)]
        shapes += (one + ([(hidden, cells)] if has_projection else [])) * directions
    if len(weights) != len(shapes):
        raise RuntimeError(f"lstm: expected {len(shapes)} weights and biases, got {len(weights)}")
    for number, (item, shape) in enumerate(zip(weights, shapes, strict=True)):
        _expect(f"weight {number}", item, shape)


def _expect(what: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise RuntimeError(f"lstm: expected {what} of size {list(shape)}, got {list(tensor.shape)}")
