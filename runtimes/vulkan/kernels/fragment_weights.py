"""Weights in the order in which invocations hold fragments of matrices; see ``shaders/glsl/matrix_fragments.glsl``."""

from __future__ import annotations

from dataclasses import replace

import torch

from mobopt.runtimes.vulkan.engine.tensor import Storage

_EIGHT = 8
"""Columns that invocations read side by side, and neighbours of the inner dimension that each of them does."""
_RUNS = 4
"""Such neighbours in a step: each column is read by so many invocations."""
_EIGHTS_BEHIND = 32
"""Of zeros behind the last step: a workgroup reads so many, whether or not there are as many columns."""


def fragment_weights(storage: Storage, lines: int, *, split: bool = False) -> Storage:
    """The storage of a matrix of so many lines of the inner dimension, padded with zeros to whole steps and eights of
    columns: by steps, then by eights of columns, then by columns, then by the neighbours of each.

    ``split`` says that it is one of :func:`split_weights`; the high halves of eight columns are before the low ones.
    """
    assert storage.data is not None
    halves = storage.data.view(torch.float16) if split else storage.data
    parts = halves.reshape(lines, -1, 2 if split else 1, 4).unbind(2)
    ordered = torch.stack([_ordered(part.reshape(lines, -1)) for part in parts], 2)
    behind = ordered.new_zeros(_EIGHTS_BEHIND, *ordered.shape[2:])
    data = torch.cat([ordered.flatten(), behind.flatten()]).view(storage.data.dtype)
    return replace(storage, data=data, nbytes=data.nbytes)


def _ordered(matrix: torch.Tensor) -> torch.Tensor:
    """By steps and eights of columns."""
    (lines, columns), step = matrix.shape, _RUNS * _EIGHT
    padded = matrix.new_zeros(-(-lines // step) * step, -(-columns // _EIGHT) * _EIGHT)
    padded[:lines, :columns] = matrix
    by_step = padded.reshape(-1, _RUNS, _EIGHT, padded.shape[1] // _EIGHT, _EIGHT)
    return by_step.permute(0, 3, 4, 1, 2).reshape(by_step.shape[0], by_step.shape[3], -1)
