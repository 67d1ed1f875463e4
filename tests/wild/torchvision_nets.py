"""torchvision's networks: published widths and depths, small images and few frames."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision_operators import torchvision_with_operators

from wild.net import Made, Net, picture

_IMAGE_SIZES = {
    "alexnet": 64, "vgg11": 32, "squeezenet1_0": 64, "mobilenet_v3_small": 64, "mnasnet0_5": 64,
    "shufflenet_v2_x0_5": 64, "regnet_x_400mf": 64, "resnext50_32x4d": 64, "wide_resnet50_2": 64, "inception_v3": 96,
    "efficientnet_v2_s": 64, "convnext_tiny": 64, "swin_t": 64, "swin_v2_t": 64, "vit_b_32": 64, "maxvit_t": 64,
}  # fmt: skip
_OPTIONS: dict[str, dict[str, Any]] = {
    "inception_v3": {"aux_logits": False, "init_weights": False},
    "vit_b_32": {"image_size": 64},
    "maxvit_t": {
        "input_size": (64, 64),
        "stem_channels": 64,
        "block_channels": [64, 128, 256, 512],
        "block_layers": [2, 2, 5, 2],
        "head_dim": 32,
        "stochastic_depth_prob": 0.2,
        "partition_size": 2,
    },
}
_CLASSES = {"maxvit_t": "MaxVit"}
"""Those whose image size only the class takes."""


def _classifier(name: str) -> Made:
    make = getattr(torchvision_with_operators().models, _CLASSES.get(name, name))
    return make(**_OPTIONS.get(name, {})), [picture(_IMAGE_SIZES[name])]


def _segmentation(name: str) -> Made:
    make = getattr(torchvision_with_operators().models.segmentation, name)
    return make(weights=None, weights_backbone=None, aux_loss=False, num_classes=5), [picture(65)]


class _Heads(nn.Module):
    """What a detector computes before boxes are decoded."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return self.head(list(self.backbone(x).values()))


def _heads(name: str) -> Made:
    make = getattr(torchvision_with_operators().models.detection, name)
    return _Heads(make(weights=None, weights_backbone=None, num_classes=5)), [picture(128)]


def _video(name: str, frames: int, size: int) -> Made:
    make = getattr(torchvision_with_operators().models.video, name)
    return make(weights=None, num_classes=10), [torch.randn(1, 3, frames, size, size)]


def _s3d() -> Made:
    module, inputs = _video("s3d", 16, 64)
    module.avgpool = nn.AvgPool3d((2, 2, 2), stride=1)  # the published one takes 224x224 only
    return module, inputs


def _mvit() -> Made:
    """The first four blocks of mvit_v1_b, which takes images of 224x224 only."""
    mvit = torchvision_with_operators().models.video.mvit
    none, kernel, halved = [], [3, 3, 3], [1, 2, 2]
    blocks = [
        mvit.MSBlockConfig(1, 96, 192, none, kernel, none, [1, 8, 8]),
        mvit.MSBlockConfig(2, 192, 192, kernel, kernel, halved, [1, 4, 4]),
        mvit.MSBlockConfig(2, 192, 384, none, kernel, none, [1, 4, 4]),
        mvit.MSBlockConfig(4, 384, 384, kernel, kernel, halved, halved),
    ]
    module = mvit.MViT(
        (64, 64), 4, blocks, residual_pool=False, residual_with_cls_embed=True, rel_pos_embed=False,
        proj_after_attn=False, num_classes=10,
    )  # fmt: skip
    return module, [torch.randn(1, 3, 4, 64, 64)]


class _LastFlow(nn.Module):
    """RAFT with fewer rounds than the usual twelve, and the last one's flow only."""

    def __init__(self, raft: nn.Module) -> None:
        super().__init__()
        self.raft = raft

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.raft(first, second, num_flow_updates=2)[-1]


def _raft() -> Made:
    raft = torchvision_with_operators().models.optical_flow.raft_small(weights=None)
    return _LastFlow(raft), [picture(128), picture(128)]


_OTHERS: dict[str, Callable[[], Made]] = {
    "deeplabv3_resnet50": partial(_segmentation, "deeplabv3_resnet50"),
    "fcn_resnet50": partial(_segmentation, "fcn_resnet50"),
    "lraspp_mobilenet_v3_large": partial(_segmentation, "lraspp_mobilenet_v3_large"),
    "ssdlite320_mobilenet_v3_large": partial(_heads, "ssdlite320_mobilenet_v3_large"),
    "retinanet_resnet50_fpn": partial(_heads, "retinanet_resnet50_fpn"),
    "r3d_18": partial(_video, "r3d_18", 4, 32),
    "mc3_18": partial(_video, "mc3_18", 4, 32),
    "r2plus1d_18": partial(_video, "r2plus1d_18", 4, 32),
    "s3d": _s3d,
    "mvit": _mvit,
    "swin3d_t": partial(_video, "swin3d_t", 4, 64),
    "raft_small": _raft,
}
NETS = (
    *(Net("torchvision", name, partial(_classifier, name)) for name in _IMAGE_SIZES),
    *(Net("torchvision", name, make) for name, make in _OTHERS.items()),
)
