"""What the host and a plan exchange: elements in mapped memory, or values that stay with the host."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import torch

from mobopt.errors import InputError
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.stream import HostTensor
from mobopt.runtimes.vulkan.engine.tensor import fits_words, integer_bounds


class Slot(Protocol):
    """A place that the host writes and reads."""

    def write(self, values: torch.Tensor) -> None:
        """Put a tensor there."""

    def room(self) -> torch.Tensor | None:
        """What :meth:`read` is given, made while the device still computes."""

    def read(self, room: torch.Tensor | None = None) -> torch.Tensor:
        """A new contiguous tensor with what is there: ``room``, if there is one."""


class DeviceSlot:
    """A tensor in memory that the device sees."""

    def __init__(self, view: torch.Tensor, dtype: torch.dtype) -> None:
        """``view`` are its elements as they lie in storage; ``dtype`` is what they stand for."""
        self._view = view
        self._sizes = view.shape
        self.room = partial(torch.empty_like, view, dtype=dtype, memory_format=torch.contiguous_format)
        self._has_words = view.dtype == torch.int32

    def write(self, values: torch.Tensor) -> None:
        """Copy a tensor there.

        Raises:
            InputError: its shape is another, or an integer doesn't fit in the 32 bits that it has there.
        """
        check_shape(values, self._sizes)
        if self._has_words and values.dtype == torch.int64 and not fits_words(values):
            low, high = integer_bounds(values)
            raise InputError(f"an int64 tensor holds {low} to {high}, where 32 bits were made for each")
        self._view.copy_(values.detach() if values.requires_grad else values)

    def read(self, room: torch.Tensor | None = None) -> torch.Tensor:
        """A new contiguous tensor with its elements: ``room``, if there is one."""
        return (self.room() if room is None else room).copy_(self._view)


class HostSlot:
    """A tensor that lives on the host only, for as long as a run takes."""

    def __init__(self, tensor: HostTensor) -> None:
        self._sizes = tensor.sizes
        self._values: torch.Tensor | None = None

    def write(self, values: torch.Tensor) -> None:
        """Keep a tensor.

        Raises:
            InputError: its shape is another.
        """
        check_shape(values, self._sizes)
        self._values = values.detach()

    def room(self) -> None:
        """None: what is kept need not be dense."""

    def read(self, room: torch.Tensor | None = None) -> torch.Tensor:
        """A copy of it, so that nobody changes what was given."""
        assert self._values is not None, "it is read before it is written"
        return self._values.clone(memory_format=torch.contiguous_format)

    def clear(self) -> None:
        """Let it go."""
        self._values = None


def check_shape(values: torch.Tensor | DeviceArray, sizes: tuple[int, ...]) -> None:
    """See that a tensor has the sizes that a plan takes.

    Raises:
        InputError: it has others.
    """
    if values.shape != sizes:
        raise InputError(f"a tensor of shape {tuple(values.shape)} was given where the plan takes {sizes}")
