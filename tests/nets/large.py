"""Nets with tensors that are larger than images of a phone's GPU, of real extent and few channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class M5(nn.Module):
    """Words in a second of sound, from its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.pool1 = nn.Conv1d(1, 16, 80, 4), nn.BatchNorm1d(16), nn.MaxPool1d(4)
        self.conv2, self.bn2, self.pool2 = nn.Conv1d(16, 24, 3), nn.BatchNorm1d(24), nn.MaxPool1d(4)
        self.head = nn.Linear(24, 35)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool1(F.relu(self.bn1(self.conv1(x))))
        y = self.pool2(F.relu(self.bn2(self.conv2(y))))
        y = F.avg_pool1d(y, y.shape[-1]).permute(0, 2, 1)
        return F.log_softmax(self.head(y), dim=2)


class Panorama(nn.Module):
    """A wide image, with a connection past two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(inplace=True))
        self.body = nn.Sequential(
            nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(12, 12, 3, padding=1)
        )
        self.down, self.head = nn.Conv2d(12, 8, 3, 4, 1), nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        return self.head(F.relu(self.down(self.body(y) + y))).mean(dim=[2, 3])


class WordHead(nn.Module):
    """Scores of every word of a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(48, 48), nn.LayerNorm(48)
        self.decoder = nn.Linear(48, 30_522)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.norm(F.gelu(self.dense(x), approximate="tanh")))


class VggHead(nn.Module):
    """Layers of thousands of inputs and outputs behind a flattened image."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 96, 3, padding=1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((7, 7))
        )
        self.classifier = nn.Sequential(
            nn.Linear(96 * 49, 2053), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(2053, 11)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


class PointMLP(nn.Module):
    """Each of thousands of points through the same layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(9, 64), nn.Linear(64, 13)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)))


class AtrousPyramid(nn.Module):
    """Dilations far beyond the image, beside grouped convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = nn.Sequential(nn.Conv2d(48, 48, 3, padding=1, groups=6), nn.ReLU())
        self.branches = nn.ModuleList(nn.Conv2d(48, 16, 3, padding=rate, dilation=rate) for rate in (6, 12, 24, 36))
        self.project = nn.Conv2d(64, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.groups(x)
        return self.project(torch.cat([F.relu(branch(y)) for branch in self.branches], dim=1))


class ContextHead(nn.Module):
    """Kernels over hundreds of channels, whose packed weights are wider than images."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.Conv2d(5, 701, 1)
        self.context = nn.Sequential(nn.Conv2d(701, 523, 3, padding=1, bias=False), nn.BatchNorm2d(523), nn.ReLU())
        self.up, self.project = nn.ConvTranspose2d(523, 37, 4, 2, 1), nn.Conv2d(37, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(F.relu(self.up(self.context(F.relu(self.widen(x))))))


LARGE = {
    "M5": (M5, lambda: [torch.randn(1, 1, 16_000)]),
    "Panorama": (Panorama, lambda: [torch.rand(1, 3, 13, 5003)]),
    "WordHead": (WordHead, lambda: [torch.randn(1, 7, 48)]),
    "VggHead": (VggHead, lambda: [torch.rand(1, 3, 17, 14)]),
    "PointMLP": (PointMLP, lambda: [torch.randn(1, 3001, 9)]),
    "ContextHead": (ContextHead, lambda: [torch.rand(1, 5, 17, 13)]),
    "AtrousPyramid": (AtrousPyramid, lambda: [torch.rand(1, 48, 28, 31)]),
}
