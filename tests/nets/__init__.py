"""Small nets with the structure of those that people ship, by the names of their architectures.

They stand for models that nobody tried here: what an author writes between the layers (slices, decoded boxes, masks,
states, padding on one side, weights that are computed) is as in the published code; widths are small, and often odd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .detection import DETECTION
from .idioms import IDIOMS
from .images import IMAGES
from .large import LARGE
from .sequences import SEQUENCES
from .sounds import SOUNDS

WAYS = ("traced", "scripted")
_ONLY_SCRIPTED = ("SegNet", "Outputs")
_ONLY_TRACED = ("Norms", *LARGE)


@dataclass(frozen=True)
class Net:
    """How to make a net, and what to call it with."""

    name: str
    build: Callable[[], nn.Module]
    example: Callable[[], Sequence[Tensor]]

    @property
    def ways(self) -> tuple[str, ...]:
        """How it becomes TorchScript; PyTorch can't trace or script every net."""
        return ("scripted",) if self.name in _ONLY_SCRIPTED else ("traced",) if self.name in _ONLY_TRACED else WAYS

    def module(self) -> nn.Module:
        """The net with seeded weights and batch-norm statistics, for inference."""
        torch.manual_seed(11)
        module = self.build().eval()
        for layer in module.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats:
                assert layer.running_mean is not None and layer.running_var is not None
                layer.running_mean.normal_(0, 0.2)
                layer.running_var.uniform_(0.5, 1.5)
        return module

    def inputs(self) -> list[Tensor]:
        """Seeded arguments of ``forward``."""
        torch.manual_seed(12)
        return list(self.example())


NETS = {
    name: Net(name, build, example)
    for group in (IMAGES, DETECTION, SEQUENCES, SOUNDS, IDIOMS, LARGE)
    for name, (build, example) in group.items()
}
