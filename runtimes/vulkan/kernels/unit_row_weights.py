"""Weights of 4 bits in the order in which ``shaders/glsl/product_row_units.comp`` reads them."""

from __future__ import annotations

from dataclasses import replace

import torch

from mobopt.runtimes.vulkan.engine.tensor import Storage

_TILE = 16
"""Columns that a subgroup multiplies at a time, of which each invocation has two."""
_BLOCK = 64
"""Lines of the inner dimension, of which an invocation has 16 bytes: of two columns, eight neighbours of 32, twice."""
_MIDDLE = 8
"""What integers count from."""


def unit_row_weights(storage: Storage, lines: int, columns: int) -> Storage:
    """The storage of a matrix of ``lines`` of the inner dimension, in blocks of 4 x 4 as ``quantized.glsl`` has them,
    by tiles of 16 columns, then by blocks of 64 lines, then by invocations of a subgroup; integers are 0 to 15. Padded
    to whole tiles and blocks.
    """
    assert storage.data is not None
    matrix = _integers(storage.data.view(torch.uint8), lines)[:, :columns]
    padded = matrix.new_zeros(-(-lines // _BLOCK) * _BLOCK, -(-columns // _TILE) * _TILE)
    padded[:lines, :columns] = matrix
    # Blocks, eights, invocations, pairs, neighbours; tiles, upper or lower columns, invocations. A word has eight
    # neighbours of a column, the first ones of all pairs in its lower half.
    parts = padded.reshape(-1, 2, 4, 4, 2, padded.shape[1] // _TILE, 2, _TILE // 2)
    ordered = parts.permute(5, 0, 7, 2, 1, 6, 4, 3).reshape(-1)
    data = (ordered[::2] | ordered[1::2] << 4).view(storage.data.dtype)
    return replace(storage, data=data, nbytes=data.nbytes)


def unit_row_scales(storage: Storage, columns: int, has_offsets: bool) -> Storage:
    """The storage of the scales of such a matrix, a line for each group of the inner dimension, by tiles, then by
    groups, then by invocations that have the same columns, the scales of both; with offsets, those follow, over what
    integers count from.
    """
    assert storage.data is not None
    kinds = 2 if has_offsets else 1
    given = storage.data.view(torch.float32).reshape(-1, columns // 4, kinds, 4).transpose(1, 2).flatten(2)
    if has_offsets:
        given = given / given.new_tensor([1.0, -_MIDDLE])[:, None]
    padded = torch.nn.functional.pad(given, (0, -columns % _TILE))
    parts = padded.reshape(*given.shape[:2], -1, 2, _TILE // 2)  # groups, kinds, tiles, upper or lower, invocations
    data = parts.permute(2, 0, 4, 1, 3).contiguous().flatten()
    return replace(storage, data=data, nbytes=data.nbytes)


def _integers(data: torch.Tensor, lines: int) -> torch.Tensor:
    """The matrix, of integers from 0 to 15."""
    blocks = torch.stack([data & 15, data >> 4], -1).reshape(lines // 4, -1, 4, 4)
    return blocks.transpose(1, 2).reshape(lines, -1) ^ _MIDDLE
