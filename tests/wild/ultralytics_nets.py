"""Ultralytics' YOLO detectors in their smallest sizes, as they are exported: raw boxes, no suppression."""

from __future__ import annotations

import importlib
from functools import partial

from wild.net import Made, Net, picture

_CLASSES = {
    "DetectionModel": (
        "yolov3-tiny", "yolov5n", "yolov6n", "yolov8n", "yolov8n-ghost", "yolov9t", "yolov10n", "yolo11n", "yolo12n",
        "yolo26n",
    ),
    "SegmentationModel": ("yolov8n-seg", "yolo11n-seg", "yolo26n-seg"),
    "PoseModel": ("yolov8n-pose", "yolo11n-pose"),
    "OBBModel": ("yolov8n-obb",),
    "ClassificationModel": ("yolov8n-cls",),
    "RTDETRDetectionModel": ("rtdetr-l",),
}  # fmt: skip
_SIZE = 64


def _make(kind: str, name: str) -> Made:
    tasks = importlib.import_module("ultralytics.nn.tasks")
    model = getattr(tasks, kind)(f"{name}.yaml", verbose=False)
    for part in model.modules():
        if hasattr(part, "export"):
            part.export, part.format = True, "torchscript"
    return model, [picture(_SIZE).sigmoid()]


NETS = tuple(Net("ultralytics", name, partial(_make, kind, name)) for kind, names in _CLASSES.items() for name in names)
