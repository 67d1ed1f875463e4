"""Weights in the order in which invocations hold fragments of matrices; see ``shaders/glsl/matrix_fragments.glsl``."""

from __future__ import annotations

from dataclasses import replace

import torch

from mobopt.runtimes.vulkan.engine.tensor import Storage


def fragment_weights(storage: Storage, lines: int, columns: int) -> Storage:
    """The storage of a matrix of ``lines`` of the inner dimension by ``columns``, as eight columns of 32 lines after another."""
    matrix = storage.data.reshape(lines, columns)
    data = torch.zeros(-(-lines // 32) * 32, -(-columns // 8) * 8, dtype=matrix.dtype)
    data[:lines, :columns] = matrix
    # [step, run, place, eight, line] to [step, eight, line, run, place]
    ordered = data.reshape(-1, 4, 8, data.shape[1] // 8, 8).permute(0, 3, 4, 1, 2).reshape(-1).contiguous()
    return replace(storage, data=ordered, nbytes=ordered.numel() * ordered.element_size())
