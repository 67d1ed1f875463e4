"""Which memory the tensors of a model's state lie in: several may be views of one; whether it was written to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mobopt.errors import UnsupportedError
from mobopt.ir.nests import leaves_of


def version_of(tensor: torch.Tensor) -> int | None:
    """How often somebody has written to a tensor; None of one that was made in inference mode, where torch doesn't
    count."""
    return None if tensor.is_inference() else tensor._version


@dataclass(frozen=True)
class MemoryPlace:
    """Where a tensor lies."""

    memory: int
    """Number of the memory."""
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None
    """Sizes, strides and offset in it, in elements; None if the tensor is the whole of it."""


class StateMemories:
    """The memories of a state, each once.

    Attributes:
        tensors: one for each memory, with all of its elements: the only tensor of the state that lies there, if it has
            them in order, else one row. To write to it is to write to the state.
        places: of all tensors of the state, in order.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        """Find them.

        Raises:
            UnsupportedError: tensors of different dtypes share memory.
        """
        groups: dict[int, dict[int, torch.Tensor]] = {}
        tensors = list(leaves_of(list(state.values()), torch.Tensor))
        for tensor in tensors:
            groups.setdefault(memory_of(tensor), {})[id(tensor)] = tensor
        self._numbers = {storage: number for number, storage in enumerate(groups)}
        self.tensors = [_whole(list(group.values())) for group in groups.values()]
        self.places = tuple(map(self.place, tensors))

    def place(self, tensor: torch.Tensor) -> MemoryPlace | None:
        """Where a tensor lies; None if that is no memory of the state."""
        number = self._numbers.get(memory_of(tensor))
        if number is None:
            return None
        whole, view = self.tensors[number], _geometry(tensor)
        return MemoryPlace(number, None if view == _geometry(whole) and whole.dtype == tensor.dtype else view)


def _whole(group: list[torch.Tensor]) -> torch.Tensor:
    first = group[0]
    if any(tensor.dtype != first.dtype for tensor in group):
        raise UnsupportedError("the model's state has tensors of several dtypes in one memory, which mobopt can't run")
    storage = first.detach().untyped_storage() if first.layout == torch.strided else None
    count = first.numel() if storage is None else storage.nbytes() // first.element_size()
    is_alone = len({_geometry(tensor) for tensor in group}) == 1
    if storage is None or (is_alone and first.is_contiguous() and first.numel() == count):
        return first
    return torch.empty(0, dtype=first.dtype).set_(storage, 0, (count,))  # type: ignore[call-overload, no-any-return]


def _geometry(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def memory_of(tensor: torch.Tensor) -> int:
    """What tells a memory from others; an empty tensor has one of its own."""
    if tensor.layout != torch.strided:
        return -id(tensor)
    return tensor.untyped_storage().data_ptr() or -id(tensor)
