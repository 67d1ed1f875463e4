"""Weights in the order in which invocations hold fragments of matrices; see ``shaders/glsl/matrix_fragments.glsl``."""

from __future__ import annotations

from dataclasses import replace

import torch

from mobopt.runtimes.vulkan.engine.tensor import Storage

_EIGHT = 8
"""Columns that invocations read side by side, and neighbours of the inner dimension that each of them does."""
_RUNS = 4
"""Such neighbours in a step: each column is read by so many invocations."""


def fragment_weights(storage: Storage, lines: int, *, split: bool) -> Storage:
    """The storage of a matrix of so many lines of the inner dimension, padded with zeros to whole steps and eights of
    columns: by steps, then by eights of columns, then by columns, then by the neighbours of each.

    ``split`` says that it is one of :func:`split_weights`; the high halves of eight columns are before the low ones.
    """
    assert storage.data is not None
    if split:
        pairs = storage.data.view(torch.float16).reshape(lines, -1, 2, 4)  # four high halves, then four low ones
        parts = [_ordered(pairs[:, :, part].reshape(lines, -1)) for part in range(2)]
        data = torch.stack(parts, 2).reshape(-1).view(torch.float32)
    else:
        data = _ordered(storage.data.reshape(lines, -1)).reshape(-1)
    return replace(storage, data=data, nbytes=data.nbytes)


def _ordered(matrix: torch.Tensor) -> torch.Tensor:
    """By (steps, eights of columns, 8 x 4 x 8)."""
    lines, columns = matrix.shape
    step = _RUNS * _EIGHT
    padded = matrix.new_zeros(-(-lines // step) * step, -(-columns // _EIGHT) * _EIGHT)
    padded[:lines, :columns] = matrix
    by_step = padded.reshape(-1, _RUNS, _EIGHT, padded.shape[1] // _EIGHT, _EIGHT)
    return by_step.permute(0, 3, 4, 1, 2).reshape(by_step.shape[0], by_step.shape[3], -1)
