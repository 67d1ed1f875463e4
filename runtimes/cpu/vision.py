"""torchvision's operators that detectors end in, so that their models and files run where torchvision isn't installed.

Source: "Mask R-CNN", He et al., 2017 (RoIAlign); ``torchvision/csrc/ops/cpu/nms_kernel.cpp`` and
``roi_align_kernel.cpp`` for the order of equal scores, and for samples at the border.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _nms(boxes: Tensor, scores: Tensor, most_overlap: float) -> Tensor:
    """Indices of boxes that are kept, best score first, of equal ones the first; int64 (K).

    Args:
        boxes: (N, 4) as left, top, right and bottom.
        scores: (N).
        most_overlap: intersection over union beyond which the worse box is dropped.

    Raises:
        ValueError: the sizes are others.
    """
    if boxes.dim() != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1]:
        raise ValueError(
            f"boxes are (N, 4) and scores (N), and these are {tuple(boxes.shape)} and {tuple(scores.shape)}"
        )
    order = torch.argsort(scores, descending=True, stable=True)
    low, high = boxes[order, :2], boxes[order, 2:]
    area = (high - low).prod(1)
    left, kept = torch.arange(len(order)), []
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        shared = (torch.minimum(high[best], high[left]) - torch.maximum(low[best], low[left])).clamp(min=0).prod(1)
        left = left[~(shared / (area[best] + area[left] - shared) > most_overlap)]  # not a number drops nothing
    return order[torch.stack(kept)] if kept else order


def _roi_align(x: Tensor, regions: Tensor, scale: float, rows: int, columns: int, ratio: int, aligned: bool) -> Tensor:
    """Means of samples in the cells of a grid on each region; (K, C, rows, columns).

    A sample between four elements is interpolated, which is one matrix for the rows and one for the columns.

    Args:
        x: (N, C, H, W).
        regions: (K, 5): the number of the image, then left, top, right and bottom.
        scale: from the coordinates of regions to those of x.
        rows: of the grid.
        columns: of the grid.
        ratio: samples of a cell along each side; 0 or less takes as many as the cell is long.
        aligned: whether coordinates speak of the middle of elements.

    Raises:
        ValueError: the sizes are others.
    """
    if x.dim() != 4 or regions.dim() != 2 or regions.shape[1] != 5:
        raise ValueError(
            f"the image is (N, C, H, W) and regions (K, 5), and these are {tuple(x.shape)} and {tuple(regions.shape)}"
        )
    edges = regions[:, 1:] * scale - (0.5 if aligned else 0.0)
    lengths = edges[:, 2:] - edges[:, :2]
    lengths = lengths if aligned else lengths.clamp(min=1.0)
    result = x.new_zeros(len(regions), x.shape[1], rows, columns)
    for number, image in enumerate(regions[:, 0].long().tolist()):
        down = _weights(edges[number, 1], lengths[number, 1], rows, ratio, x.shape[2])
        across = _weights(edges[number, 0], lengths[number, 0], columns, ratio, x.shape[3])
        near, wide = _used(down), _used(across)
        result[number] = down[:, near] @ x[image, :, near, wide] @ across[:, wide].t()
    return result


def _used(weights: Tensor) -> slice:
    """The elements from the first that counts to the last: a region may be a small part of the image. What is not
    a number counts everywhere."""
    places = (weights != 0).any(0).nonzero()
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def _weights(begin: Tensor, length: Tensor, cells: int, ratio: int, size: int) -> Tensor:
    """How much each of ``size`` elements counts in the mean of each cell along one side; (cells, size)."""
    cell = length / cells
    samples = ratio if ratio > 0 else int(cell.ceil())
    if samples <= 0:
        return begin.new_zeros(cells, size)
    steps = (torch.arange(samples, dtype=begin.dtype) + 0.5) * cell / samples
    places = begin + torch.arange(cells, dtype=begin.dtype)[:, None] * cell + steps
    inside = (places >= -1.0) & (places <= size)
    distance = (places.clamp(0, size - 1)[..., None] - torch.arange(size, dtype=begin.dtype)).abs()
    return ((1 - distance).clamp(min=0) * inside[..., None]).mean(1)


VISION_KERNELS: dict[str, Callable[..., Any]] = {"torchvision::nms": _nms, "torchvision::roi_align": _roi_align}
"""By qualified name."""
