"""Weights in the order in which invocations hold fragments of matrices; see ``shaders/glsl/matrix_fragments.glsl``."""

from __future__ import annotations

from dataclasses import replace

from mobopt.runtimes.vulkan.engine.tensor import Storage

_EIGHT = 8
"""Columns that invocations read side by side, and neighbours of the inner dimension that each of them does."""
_RUNS = 4
"""Such neighbours in a step: each column is read by so many invocations."""


def fragment_weights(storage: Storage, lines: int) -> Storage:
    """The storage of a matrix of so many lines of the inner dimension, padded with zeros to whole steps and eights of
    columns: by steps, then by eights of columns, then by columns, then by the neighbours of each."""
    assert storage.data is not None
    matrix = storage.data.reshape(lines, -1)
    columns, step = matrix.shape[1], _RUNS * _EIGHT
    padded = matrix.new_zeros(-(-lines // step) * step, -(-columns // _EIGHT) * _EIGHT)
    padded[:lines, :columns] = matrix
    by_step = padded.reshape(-1, _RUNS, _EIGHT, padded.shape[1] // _EIGHT, _EIGHT)
    data = by_step.permute(0, 3, 4, 1, 2).reshape(-1)
    return replace(storage, data=data, nbytes=data.nbytes)
