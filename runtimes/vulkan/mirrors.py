"""Results on the CPU whose elements stay on a device across a bus too, for programs that take them next."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device

LEAST_BYTES = 1 << 20
"""Below it, copying a tensor to the device again takes less time than finding it there: 40 us on the host."""
MOST_ARRAYS = 64
"""Arrays that are kept for results; the one kept longest goes first."""
MOST_BYTES = 256 << 20
"""How much memory of the device these may take together."""


@dataclass(frozen=True, eq=False)
class _Mirror:
    """An array with the elements of a result.

    Attributes:
        array: on the device.
        watch: shares the result's memory until somebody may write there, who gets a copy then. Torch sees to that
            before all writing, also by ``.data``, numpy or DLPack, which no version counts.
    """

    array: DeviceArray
    watch: torch.Tensor

    def has_elements_of(self, tensor: torch.Tensor) -> bool:
        """Whether nobody has written to the memory of a tensor of the result."""
        address, is_shared = torch._C._data_address, torch._C._is_cow_tensor  # type: ignore[attr-defined]
        return bool(is_shared(tensor) and address(tensor) == address(self.watch))


class Mirrors:
    """What a device holds of results on the CPU: ``device.shared(Mirrors)``.

    An array is kept only of a result that a program has taken before: the program that gives it hears of that, and
    keeps it from its next call on. It goes when the result's memory does, or when somebody writes there. A result of
    which one is kept can't be made larger in place and then written to: to that, torch says of shared memory
    "ctx != nullptr INTERNAL ASSERT FAILED".
    """

    def __init__(self, device: Device) -> None:
        """Know no result of any device yet."""
        self.found = 0
        """How many tensors needed no copy to the device."""
        self._results: MutableMapping[Any, Callable[[], None]] = WeakIdKeyDictionary()
        self._mirrors: MutableMapping[Any, _Mirror] = WeakIdKeyDictionary()

    def add(self, result: torch.Tensor, array: DeviceArray | None, want: Callable[[], None]) -> None:
        """Remember a result that nobody else has yet.

        Args:
            result: all of its memory.
            array: with its elements; None if it isn't kept.
            want: is called when a program takes the result, and it isn't kept.
        """
        storage = result.untyped_storage()
        if array is None:
            if result.nbytes >= LEAST_BYTES:
                self._results[storage] = want
            return
        self._mirrors[storage] = _Mirror(array, torch._lazy_clone(result))  # type: ignore[attr-defined]
        kept = list(self._mirrors.items())
        nbytes = sum(mirror.array.nbytes for _, mirror in kept)
        for number, (oldest, mirror) in enumerate(kept):
            if nbytes <= MOST_BYTES and len(kept) - number <= MOST_ARRAYS:
                break
            self._mirrors.pop(oldest, None)
            nbytes -= mirror.array.nbytes

    def array(self, tensor: torch.Tensor) -> DeviceArray | None:
        """The elements of a tensor, if they are on the device: those of a result, or a contiguous view of one."""
        if tensor.nbytes < LEAST_BYTES:
            return None
        storage = tensor.untyped_storage()
        mirror = self._mirrors.get(storage)
        if mirror is None:
            want = self._results.get(storage)
            if want is not None:
                want()
            return None
        if not mirror.has_elements_of(tensor):
            self._mirrors.pop(storage, None)
            return None
        if tensor.dtype != mirror.array.dtype or tensor.is_neg() or not tensor.is_contiguous():
            return None
        self.found += 1
        return mirror.array.as_strided(tensor.shape, tensor.stride(), int(tensor.storage_offset()))

    def close(self) -> None:
        """Let all arrays go."""
        self._results, self._mirrors = WeakIdKeyDictionary(), WeakIdKeyDictionary()
