"""``mobopt.optimize``: an nn.Module whose ``forward`` runs on a Vulkan device."""

from __future__ import annotations

from typing import Any

import torch

from mobopt.errors import ArgumentTypeError, InputError
from mobopt.integrations.device_forward import DeviceForward


class OptimizedModule(torch.nn.Module):
    """A module for inference with the parameters, buffers and parts of another one, its ``state_dict`` among them.

    Other inputs than the example's get programs of their own. What the device can't compute as PyTorch does runs as
    eager, with a reason in the log (``mobopt.integrations``) and in :attr:`reasons`.
    """

    def __init__(self, module: torch.nn.Module, device: int | str | None, dynamic_shapes: Any) -> None:
        """Wrap a module; it must stay in evaluation mode."""
        super().__init__()
        self._parameters, self._buffers, self._modules = module._parameters, module._buffers, module._modules
        self.__dict__["_original"] = module
        self.__dict__["_forward"] = DeviceForward(module, device, dynamic_shapes, differentiates=False)
        self.training = False

    @property
    def reasons(self) -> frozenset[str]:
        """Why calls were eager; empty if all ran on the device."""
        forward: DeviceForward = self.__dict__["_forward"]
        return forward.reasons

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the original returns, without gradients."""
        with torch.no_grad():
            return self.__dict__["_forward"](*args, **kwargs)

    def train(self, mode: bool = True) -> OptimizedModule:
        """Set the mode of the original too; in training mode, calls are eager."""
        self.__dict__["_original"].train(mode)
        self.training = mode
        return self


def optimize(
    model: torch.nn.Module, *example: Any, device: int | str | None = None, dynamic_shapes: Any = None, **keywords: Any
) -> OptimizedModule:
    """Make a module compute on a Vulkan device.

    Args:
        model: the module, in evaluation mode. Its parameters are shared, not copied; a changed one counts in the next
            call, unless it was changed by ``.data``.
        example: arguments of ``forward``, for which a program is made now; the others are made by the first call.
        device: a number, a part of a name, or None for the best.
        dynamic_shapes: sizes that may change, as ``torch.export.export`` takes them.
        keywords: keyword arguments of ``forward``.

    Returns:
        A module with the parameters, buffers and parts of the model, for inference.

    Raises:
        ArgumentTypeError: the model is no nn.Module, or a ScriptModule.
        InputError: it is in training mode, or there is no example.
        DeviceError: there is no such device.
    """
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise ArgumentTypeError(f"Got {type(model)}, but an nn.Module is expected; optimize_for_mobile takes scripts")
    if any(part.training for part in model.modules()):
        raise InputError("the module is in training mode, and only inference runs on the device; call eval() first")
    if not example and not keywords:
        raise InputError("there is no example: give arguments of forward after the model")
    optimized = OptimizedModule(model, device, dynamic_shapes)
    optimized(*example, **keywords)
    return optimized
