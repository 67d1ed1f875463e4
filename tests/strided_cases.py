"""Functions that take elements by their places in memory, of tensors that don't lie row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, conv1d, conv2d, conv_transpose2d, pad

CHANNELS_LAST = torch.channels_last
FILTERS = torch.rand(5, 3, 3, 3, generator=torch.Generator().manual_seed(5)) + 0.1


def _last(x: Tensor) -> Tensor:
    return x.to(memory_format=CHANNELS_LAST)


def _chunks(x: Tensor) -> Tensor:
    """Longformer's: halves of neighbours overlap; heads come before tokens as a view of the layer's result."""
    heads = (x * 2).view(8, 1, 3, 5).transpose(0, 1).transpose(1, 2).reshape(3, 8, 5).view(3, 2, 4, 5)
    sizes, strides = list(heads.shape), list(heads.stride())
    sizes[1], strides[1] = sizes[1] * 2 - 1, strides[1] // 2
    return heads.as_strided(sizes, strides)


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "of a transposed tensor": (lambda x: (x * 2).t().as_strided((2, 3, 4), (12, 2, 1)), (5, 7)),
    "from its own offset": (lambda x: (x * 2).t()[1:].as_strided((2, 2), (1, 3)), (5, 7)),
    "from another offset": (lambda x: (x * 2).t()[1:].as_strided((2, 2), (1, 3), 5), (5, 7)),
    "copied": (lambda x: torch.as_strided_copy((x * 2).t(), (3, 3), (2, 1), 4), (5, 7)),
    "channels last": (lambda x: (_last(x) * 2).as_strided((2, 7), (9, 1)), (1, 3, 6, 5)),
    "a view of channels last": (
        lambda x: (_last(x) * 2)[:, 1].as_strided((2, 7), (9, 2)),
        (1, 3, 6, 5),
    ),
    "chunks": (_chunks, (8, 1, 15)),
    "convolved": (lambda x: conv2d(_last(x), FILTERS).as_strided((2, 7), (9, 1)), (1, 3, 6, 5)),
    "transposed convolution": (
        lambda x: conv_transpose2d(_last(x), FILTERS[:3]).as_strided((2, 7), (9, 1)),
        (1, 3, 6, 5),
    ),
    "convolved in one dimension": (
        lambda x: conv1d(x.transpose(1, 2), FILTERS[:, :, 0]).as_strided((2, 7), (9, 1)),
        (2, 11, 3),
    ),
    "normalised": (
        lambda x: batch_norm(x.transpose(2, 3), FILTERS[0, 0, 0], FILTERS[0, 0, 1]).as_strided((2, 7), (9, 1)),
        (1, 3, 6, 5),
    ),
    "softmax": (lambda x: _last(x * 2).softmax(1).as_strided((2, 7), (9, 1)), (1, 3, 6, 5)),
    "running sums": (lambda x: _last(x * 2).cumsum(1).as_strided((2, 7), (9, 1)), (1, 3, 6, 5)),
    "mirrored": (lambda x: pad(_last(x * 2), (1, 1, 2, 1), "reflect").as_strided((2, 7), (9, 1)), (1, 3, 6, 5)),
    "turned over": (lambda x: _last(x * 2).roll(1, 2).flip(3).as_strided((2, 7), (9, 1)), (1, 3, 6, 5)),
    "of one channel": (
        lambda x: torch.cat([_last(x * 2), _last(x * 3)], 1).as_strided((2, 7), (9, 1)),
        (2, 1, 6, 5),
    ),
    "zeros like it": (lambda x: (torch.zeros_like((x * 2).t()) + (x * 2).t()).as_strided((3, 5), (7, 1)), (5, 7)),
}
