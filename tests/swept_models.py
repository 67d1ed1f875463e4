"""The models of ``docs/zoo.md`` by name, for sweeps: ``swept_models:zoo.resnet18``, ``swept_models:nets.YoloV5``.

``python tests/swept_models.py`` prints all names. ``zoo`` are those of ``model_zoo.py``, ``nets`` the small nets of
``nets/``, ``timm``, ``torchvision`` and ``transformers`` those of ``wild/``, each with seeded weights. Nets of a
package that is not installed are left out, and named on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

import torch
from model_zoo import ZOO, ZooModel
from nets import NETS, Net
from torch import Tensor, nn
from wild import NETS as WILD

Made = tuple[nn.Module, Sequence[Tensor]]


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


def _group(package: str) -> Group:
    names = [net.name for net in WILD.values() if net.package == package]
    return Group(names, lambda name: WILD[f"{package}.{name}"].build())


zoo = Group(ZOO, _of_zoo)
nets = Group(NETS, _of_nets)
timm, torchvision, transformers = map(_group, ("timm", "torchvision", "transformers"))

if __name__ == "__main__":
    for kind, group in {"zoo": zoo, "nets": nets}.items():
        sys.stdout.write("".join(f"swept_models:{kind}.{name}\n" for name in group.names))
    for key, net in WILD.items():
        if net.is_here:
            sys.stdout.write(f"swept_models:{key}\n")
        else:
            sys.stderr.write(f"not swept, as its package is not installed: {key}\n")
