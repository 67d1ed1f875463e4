"""What a published network is here: a builder, and weights that show an error wherever it is made."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torchvision_operators import torchvision_with_operators

Made = tuple[nn.Module, Sequence[Tensor]]
_CALIBRATION_BATCH = 16
"""Statistics of fewer small images are so far from those of others that activations explode layer by layer."""
_OFFSET = 0.5
"""In deviations. A layer whose ReLU cuts off one half enlarges rounding 1.2 times, and fifty of them 10,000 times."""


@dataclass(frozen=True)
class Net:
    """A network by name.

    Attributes:
        package: of Python, which has its definition.
        name: as the package calls it.
        make: gives the module and its example inputs, of batch 1.
        seed: of weights and inputs.
    """

    package: str
    name: str
    make: Callable[[], Made]
    seed: int = 0

    @property
    def is_here(self) -> bool:
        """Whether its package is installed."""
        return find_spec(self.package) is not None

    def build(self) -> Made:
        """The module in evaluation mode and its inputs, the same each time."""
        torchvision_with_operators()  # before timm and transformers import it
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(self.seed)
            module, inputs = self.make()
            wake(module)
            calibrate(module, inputs)
        return module.eval(), inputs


def picture(rows: int, columns: int = 0) -> Tensor:
    """A random image of three channels."""
    return torch.randn(1, 3, rows, columns or rows)


def batch_of(inputs: Sequence[Tensor], count: int) -> list[Tensor]:
    """Inputs of that many items in place of one: floats differ a little from item to item."""
    torch.manual_seed(count)
    items = [x.repeat(count, *[1] * (x.dim() - 1)) if x.dim() and len(x) == 1 else x for x in inputs]
    return [x * (1 + 0.1 * torch.randn_like(x)) if count > 1 and x.is_floating_point() else x for x in items]


def wake(module: nn.Module) -> None:
    """Vary parameters that begin all equal: a branch that is scaled by zero hides whatever it computes wrongly."""
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.is_floating_point() or not parameter.numel():
                continue
            first = parameter.flatten()[0]
            if not bool((parameter == first).all()):
                continue
            if float(first.abs()) < 0.01:
                parameter.normal_(0.0, 0.1)
            else:
                parameter.mul_(torch.empty_like(parameter).uniform_(0.6, 1.2))


def calibrate(module: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Give batch norms the statistics of random images, and positive offsets, so that nothing vanishes or explodes.

    The mean of what they see is kept (``momentum`` None), as drawn from a batch like the inputs.
    """
    norms = list(_batch_norms(module))
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for norm in norms:
            if norm.bias is not None:
                norm.bias.add_(_OFFSET)
        module(*(torch.randn(_CALIBRATION_BATCH, *x.shape[1:]) if x.is_floating_point() else x for x in inputs))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def _batch_norms(module: nn.Module) -> Iterator[Any]:
    module.eval()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats:
            yield part
