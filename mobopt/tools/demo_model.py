"""MobileNetV2 for the demonstration, so that it needs neither torchvision nor a download.

Source: "MobileNetV2: Inverted Residuals and Linear Bottlenecks", Sandler et al., 2018, table 2.
"""

from __future__ import annotations

import torch
from torch import nn

# Expansion, channels, repeats, first stride: the rows of the paper's table 2.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
_FIRST, _LAST, _CLASSES = 32, 1280, 1000


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    ]


class InvertedResidual(nn.Module):
    """Expand, filter depthwise, project; added to its input where the shapes allow it."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers = _convolution(inputs, hidden, 1) if expansion != 1 else []
        layers += _convolution(hidden, hidden, 3, stride, groups=hidden)
        layers += _convolution(hidden, outputs, 1)[:2]
        self.layers = nn.Sequential(*layers)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""
        y: torch.Tensor = self.layers(x)
        return x + y if self.is_residual else y


class MobileNetV2(nn.Module):
    """Image (N, 3, H, W) to class scores (N, 1000)."""

    def __init__(self) -> None:
        super().__init__()
        layers = _convolution(3, _FIRST, 3, 2)
        channels = _FIRST
        for expansion, outputs, repeats, stride in _STAGES:
            for number in range(repeats):
                layers.append(InvertedResidual(channels, outputs, stride if number == 0 else 1, expansion))
                channels = outputs
        layers += _convolution(channels, _LAST, 1)
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(_LAST, _CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of a batch of images."""
        scores: torch.Tensor = self.classifier(self.features(x).mean((2, 3)))
        return scores


def demo_model(seed: int = 0) -> MobileNetV2:
    """A MobileNetV2 in evaluation mode with seeded weights; its statistics are those of a batch of random images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MobileNetV2()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.uniform_(module.bias, -0.5, 0.5)
                module.momentum = 1.0  # one batch decides
        with torch.no_grad():
            model.train()(torch.randn(4, 3, 96, 96))
    return model.eval()
