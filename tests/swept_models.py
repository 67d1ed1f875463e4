"""The models of ``docs/zoo.md`` by name, for sweeps: ``swept_models:zoo.resnet18``, ``swept_models:nets.YoloV5``.

``python tests/swept_models.py`` prints all names. ``zoo`` are those of ``model_zoo.py``, ``nets`` the small nets of
``nets/``, ``torchvision`` further ones of its classification, each with seeded weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

import torch
from model_zoo import ZOO, ZooModel, randomise
from nets import NETS, Net
from torch import Tensor, nn
from torchvision_operators import torchvision_with_operators

Made = tuple[nn.Module, Sequence[Tensor]]
_IMAGE = {"inception_v3": 299, "maxvit_t": 224}
_TORCHVISION = (
    "alexnet", "vgg11", "squeezenet1_0", "mobilenet_v3_small", "mnasnet0_5", "shufflenet_v2_x0_5", "regnet_x_400mf",
    "resnext50_32x4d", "inception_v3", "efficientnet_v2_s", "convnext_tiny", "swin_t", "swin_v2_t", "vit_b_32",
    "maxvit_t",
)  # fmt: skip


class Group:
    """Models by name, each a callable that gives the model and its example inputs."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Made]) -> None:
        self.names = tuple(names)
        self._make = make

    def __getattr__(self, name: str) -> Callable[[], Made]:
        if name not in self.names:
            raise AttributeError(f"there is no model {name!r} here")
        return lambda: self._make(name)


def _of_zoo(name: str) -> Made:
    return ZOO[name].build(), [ZooModel.example()]


def _of_nets(name: str) -> Made:
    """Traced or scripted, as the net can be: its tests do the same."""
    net: Net = NETS[name]
    module, inputs = net.module(), net.inputs()
    if "traced" in net.ways:
        return torch.jit.trace(module, tuple(inputs), check_trace=False, strict=False), inputs
    return torch.jit.script(module), inputs


def _of_torchvision(name: str) -> Made:
    torch.manual_seed(0)
    options = {"aux_logits": False, "init_weights": False} if name == "inception_v3" else {}
    model: nn.Module = getattr(torchvision_with_operators().models, name)(weights=None, **options)
    randomise(model)
    size = _IMAGE.get(name, 224)
    return model.eval(), [ZooModel.example(height=size, width=size)]


zoo = Group(ZOO, _of_zoo)
nets = Group(NETS, _of_nets)
torchvision = Group(_TORCHVISION, _of_torchvision)

if __name__ == "__main__":
    groups = {"zoo": zoo, "torchvision": torchvision, "nets": nets}
    sys.stdout.write("".join(f"swept_models:{kind}.{name}\n" for kind, group in groups.items() for name in group.names))
