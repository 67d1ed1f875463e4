"""The models that mobopt is measured by: torchvision's definitions and two U-Nets, with seeded weights.

Batch-norm statistics and affine parameters are random, and scaled so that activations neither vanish nor explode: a
conversion that loses one of them is seen in the output.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import nn


@cache
def _torchvision() -> Any:
    """torchvision's models; where its compiled operators don't load, those that its import needs are declared."""
    try:
        return importlib.import_module("torchvision").models
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)
        return importlib.import_module("torchvision").models


_KEPT: list[torch.library.Library] = []


class _DoubleConv(nn.Sequential):
    """Two convolutions with batch norm and relu."""

    def __init__(self, inputs: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers += [
                nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
        super().__init__(*layers)


class UNet(nn.Module):
    """A U-Net of four levels, for any size of input: skip connections are padded to fit."""

    def __init__(self, bilinear: bool, width: int = 24, classes: int = 2) -> None:
        super().__init__()
        widths = [width, width * 2, width * 4, width * 8]
        self.stem = _DoubleConv(3, width)
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(_DoubleConv(a, b) for a, b in pairwise(widths))
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(self._upsampling(bilinear, deep, shallow) for deep, shallow in pairs)
        self.merge = nn.ModuleList(_DoubleConv(shallow * 2, shallow) for _, shallow in pairs)
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _upsampling(bilinear: bool, deep: int, shallow: int) -> nn.Module:
        if bilinear:
            resize = nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True)
            return nn.Sequential(resize, nn.Conv2d(deep, shallow, 1))
        return nn.ConvTranspose2d(deep, shallow, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = [self.stem(x)]
        for down in self.down:
            levels.append(down(self.pool(levels[-1])))
        y = levels.pop()
        for up, merge in zip(self.up, self.merge):  # noqa: B905 (TorchScript knows no strict)
            skip = levels.pop()
            y = up(y)
            rows, columns = skip.size(2) - y.size(2), skip.size(3) - y.size(3)
            left, top = columns // 2, rows // 2
            y = nn.functional.pad(y, [left, columns - left, top, rows - top])
            y = merge(torch.cat([skip, y], dim=1))
        return self.head(y)


@dataclass(frozen=True)
class ZooModel:
    """One model and how it is fed."""

    name: str
    make: Callable[[], nn.Module]

    def build(self, seed: int = 0) -> nn.Module:
        """The model in evaluation mode, with weights that depend on the seed only."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = self.make()
            randomise(model)
        return model.eval()

    @staticmethod
    def example(batch: int = 1, height: int = 224, width: int = 224, seed: int = 0) -> torch.Tensor:
        """An input."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(batch, 3, height, width, generator=generator)


def randomise(model: nn.Module) -> None:
    """Weights that keep the scale of activations, and batch-norm statistics that are not trivial."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            weight = module.weight.data
            nn.init.normal_(weight, std=(1.6 / max(weight[0].numel(), 1)) ** 0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias.data, std=0.1)
        elif isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0.0, 0.2)
            module.running_var.uniform_(0.6, 1.4)
            module.weight.data.uniform_(0.6, 1.2)
            module.bias.data.normal_(0.0, 0.2)


def _vision(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(_torchvision(), name)(weights=None, **options)


def _deeplab() -> nn.Module:
    models = _torchvision().segmentation
    return models.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, aux_loss=False)


ZOO: dict[str, ZooModel] = {
    model.name: model
    for model in (
        ZooModel("mobilenet_v2", _vision("mobilenet_v2")),
        ZooModel("mobilenet_v3_large", _vision("mobilenet_v3_large")),
        ZooModel("resnet18", _vision("resnet18")),
        ZooModel("resnet50", _vision("resnet50")),
        ZooModel("squeezenet1_1", _vision("squeezenet1_1")),
        ZooModel("shufflenet_v2_x1_0", _vision("shufflenet_v2_x1_0")),
        ZooModel("efficientnet_b0", _vision("efficientnet_b0")),
        ZooModel("densenet121", _vision("densenet121")),
        ZooModel("mnasnet1_0", _vision("mnasnet1_0")),
        ZooModel("regnet_y_400mf", _vision("regnet_y_400mf")),
        ZooModel("googlenet", _vision("googlenet", aux_logits=False, init_weights=False, transform_input=True)),
        ZooModel("unet_transposed", lambda: UNet(bilinear=False)),
        ZooModel("unet_bilinear", lambda: UNet(bilinear=True)),
        ZooModel("deeplabv3_mobilenet", _deeplab),
    )
}
"""By name."""


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors in a result, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    items = result.values() if isinstance(result, dict) else result if isinstance(result, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors_of(item)]


def worst_error(found: Any, expected: Any) -> float:
    """The largest difference between two results, in units of the scale of the tensor that it is in."""
    pairs = list(zip(tensors_of(found), tensors_of(expected), strict=True))
    assert pairs, "there is no tensor to compare"
    worst = 0.0
    for ours, theirs in pairs:
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, f"{ours.shape} {theirs.shape}"
        scale = float(theirs.abs().max())
        assert scale > 0.0, "the expected result is all zeros, which proves nothing"
        worst = max(worst, float((ours - theirs).abs().max()) / scale)
    return worst
