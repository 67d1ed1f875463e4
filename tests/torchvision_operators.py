"""torchvision's operators where its compiled ones don't load: schemas, and kernels for the CPU written with torch.

What torchvision installs from a wheel for another torch has Python code only. Nets of detection need these operators to
be scripted and to be run.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy
import torch

_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_ROI_ALIGN = (
    "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, "
    "bool aligned) -> Tensor"
)
_SCHEMAS = {
    "nms": _NMS,
    "qnms": _NMS,
    "roi_align": _ROI_ALIGN,
    "box_iou_rotated": "(Tensor boxes1, Tensor boxes2) -> Tensor",
}
_KEPT: list[torch.library.Library] = []


def _has_ops() -> bool:
    return True


def torchvision_with_operators() -> Any:
    """torchvision, able to run and to script its nets of detection.

    The kernels are of the process and stay until it ends.
    """
    if not _KEPT and not _is_complete():
        library = torch.library.Library("torchvision", "FRAGMENT")
        _KEPT.append(library)
        for name in ("nms", "qnms"):  # torchvision's import asks for them
            _define(library, name)
        torchvision = importlib.import_module("torchvision")
        if not torchvision.extension._has_ops():
            for name in _SCHEMAS:
                _define(library, name)
            library.impl("nms", _nms, "CPU")
            library.impl("roi_align", _roi_align, "CPU")
            torchvision.extension._has_ops = _has_ops
    return importlib.import_module("torchvision")


def _is_complete() -> bool:
    """Whether torchvision brings its operators, which must not be declared before it does."""
    try:
        return bool(importlib.import_module("torchvision").extension._has_ops())
    except RuntimeError:  # its import asks for an operator that it doesn't bring
        return False


def _define(library: torch.library.Library, name: str) -> None:
    if not hasattr(torch.ops.torchvision, name):
        library.define(name + _SCHEMAS[name])


def _nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Greedy suppression, best score first, as torchvision's kernel for the CPU computes it."""
    order = torch.argsort(scores, descending=True, stable=True)
    low, high = boxes[order, :2], boxes[order, 2:]
    area = (high - low).prod(1)
    inside = (torch.minimum(high[:, None], high) - torch.maximum(low[:, None], low)).clamp(min=0).prod(2)
    overlaps = (inside / (area[:, None] + area - inside) > iou_threshold).numpy()
    alive = numpy.ones(len(order), dtype=bool)
    for number in range(len(order)):
        if alive[number]:
            alive[number + 1 :] &= ~overlaps[number, number + 1 :]
    return order[torch.from_numpy(alive)]


def _roi_align(
    x: torch.Tensor, rois: torch.Tensor, scale: float, rows: int, columns: int, ratio: int, aligned: bool
) -> torch.Tensor:
    """torchvision's own definition in Python."""
    module = importlib.import_module("torchvision.ops.roi_align")
    result: torch.Tensor = module._roi_align.__wrapped__(x, rois, scale, rows, columns, ratio, aligned)
    return result
