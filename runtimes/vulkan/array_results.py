"""What a call returns in arrays, where the state of the model is on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mobopt.runtimes.call import Alias, Leaf, TensorRef, Trace
from mobopt.runtimes.nests import map_leaves
from mobopt.runtimes.results import Results
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.lowerings.checks import DEVICE_DTYPES


class ArrayResults(Results):
    """Results in arrays. One that is an argument, or a view of one, shares its memory; one that is a part of the state
    is a copy of what the state is now."""

    def __init__(
        self,
        trace: Trace,
        computed: Mapping[TensorRef, Any],
        inputs: Sequence[torch.Tensor | DeviceArray],
        device: Device,
    ) -> None:
        """See :class:`Results`; arrays are made on ``device``."""
        super().__init__(trace, computed, inputs)
        self._device = device
        self._on_host: dict[int, tuple[Any, torch.Tensor]] = {}

    def deliver(self) -> tuple[Any, dict[str, Any]]:
        """The result in arrays, but for what the device has no elements for; the state in tensors."""
        result, updates = super().deliver()
        return map_leaves(result, torch.Tensor, lambda tensor: as_array(self._device, tensor)), updates

    def _copy(self, value: torch.Tensor | DeviceArray) -> torch.Tensor | DeviceArray:
        return value.clone()

    def _laid_out(self, value: torch.Tensor | DeviceArray, strides: tuple[int, ...]) -> torch.Tensor | DeviceArray:
        if isinstance(value, DeviceArray):
            return value.clone(strides)
        copy: torch.Tensor = super()._laid_out(value, strides)
        return copy

    def _kept(self, value: torch.Tensor | DeviceArray) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._on_host:
            copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value.tensor())
            self._on_host[id(value)] = value, copy
        return self._on_host[id(value)][1]

    def _kept_tensor(self, leaf: Leaf) -> torch.Tensor:
        """What is one memory stays one."""
        if isinstance(leaf, Alias):
            return leaf.of(self._kept(self._memory(leaf)))
        return super()._kept_tensor(leaf)


def as_array(device: Device, tensor: torch.Tensor) -> DeviceArray | torch.Tensor:
    """A tensor of the CPU on the device; itself if the device has no elements for it."""
    if tensor.dtype not in DEVICE_DTYPES or tensor.layout != torch.strided or tensor.is_quantized:
        return tensor
    if tensor.dtype == torch.int64 and tensor.numel():
        low, high = (int(bound) for bound in torch.aminmax(tensor))
        if low < -(2**31) or high >= 2**31:
            return tensor
    return DeviceArray.from_tensor(device, tensor)
