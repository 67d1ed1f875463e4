"""What the state of a model holds, kept in arrays on the device between calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from mobopt.errors import DeviceLostError
from mobopt.runtimes.memories import memory_of
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_gate import DeviceGate
from mobopt.runtimes.vulkan.engine.lane import TensorOrArray
from mobopt.runtimes.vulkan.engine.tensor import HELD_DTYPES

_VERSIONS = itertools.count(1)
_DTYPES = frozenset(HELD_DTYPES) - {torch.int64}
"""Of int64 the host must see the elements to tell whether they fit."""


@dataclass(eq=False)
class _Kept:
    """An array with what a memory holds, and a tensor that lies in that memory."""

    tensor: torch.Tensor
    array: DeviceArray
    is_new: bool
    """Whether the tensor is out of date."""
    is_shared: bool = False
    """Whether somebody else may have an array in its memory."""


class StateArrays:
    """Arrays by the memory whose place they take. A call makes others, which are put in their place when the whole call
    is done; or it writes to those that nobody else has, and undoes that if it fails.

    Attributes:
        version: another one, of all such objects, whenever an array takes the place of another, or may be shared with
            somebody. A decoder's caches are the same arrays from call to call, so that they needn't be looked for.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._kept: dict[int, _Kept] = {}
        self._by_tensor: dict[int, _Kept] = {}
        """The same by the tensor itself, which is found faster than its memory."""
        self.version = next(_VERSIONS)
        self._found: tuple[Sequence[torch.Tensor], Sequence[bool], list[TensorOrArray]] | None = None
        """What :meth:`inputs` gave since the version is this."""
        self._renewed_by: object = None
        """Who has written to all of its arrays since one came home, or was replaced."""
        device.register(self)

    def inputs(self, wholes: Sequence[torch.Tensor], stays: Sequence[bool]) -> list[TensorOrArray]:
        """What memories hold: arrays of those that stay on the device, and the tensors themselves of others.

        Args:
            wholes: all of each memory, contiguous. The same sequence is known again.
            stays: which of them do.
        """
        found = self._found
        if found is None or found[0] is not wholes or found[1] != stays:
            values = [self.array(whole) if stay else whole for whole, stay in zip(wholes, stays, strict=True)]
            found = self._found = wholes, stays, values
        return found[2]

    def array(self, whole: torch.Tensor) -> DeviceArray:
        """What a memory holds, copied to the device if it is not there yet.

        Args:
            whole: all of the memory, contiguous.
        """
        kept = self._find(whole)
        if kept is None:
            kept = self._keep(_Kept(whole, DeviceArray.from_tensor(self.device, whole), is_new=False))
        array = kept.array
        is_alike = array.dtype == whole.dtype and array.shape == whole.shape
        if is_alike and array.is_contiguous and not array.storage_offset():
            return array
        return DeviceArray(array.memory, whole.dtype, whole.shape)

    def own(self, whole: torch.Tensor) -> DeviceArray:
        """As :meth:`array`, of a memory that is there: one that nobody else has, so that a call may write to it."""
        kept = self._find(whole)
        if kept is not None and kept.is_shared:
            kept.array, kept.is_shared = kept.array.clone(), False
            self._change()
        return self.array(whole)

    def put(self, tensor: torch.Tensor, array: DeviceArray, is_shared: bool = False) -> None:
        """Have an array take the place of a tensor's memory, whose elements lie as the tensor's do.

        Args:
            tensor: of the state.
            array: what it holds from now on.
            is_shared: whether somebody else may have the array.
        """
        kept = self._by_tensor.get(id(tensor))
        if kept is None:
            self._keep(_Kept(tensor, array, True, is_shared))
            return
        if kept.array is not array or kept.is_shared != is_shared:
            self._change()
        kept.array, kept.is_new, kept.is_shared = array, True, is_shared

    def renew(self, writer: object, tensors: Iterable[torch.Tensor]) -> None:
        """Say that a call has written to arrays that nobody else has, those of these memories.

        Args:
            writer: what writes to them, and always to the same ones.
            tensors: of the state.
        """
        if self._renewed_by is writer:
            return
        for kept in map(self._find, tensors):
            assert kept is not None, "it was given in its array"
            kept.is_new = True
        self._renewed_by = writer

    def give(self, arrays: Iterable[DeviceArray]) -> None:
        """Arrays that a caller gets, maybe in memories of the state."""
        given = {id(array.memory) for array in arrays}
        for kept in self._kept.values():
            if not kept.is_shared and id(kept.array.memory) in given:
                kept.is_shared = True
                self._change()

    def discard(self, tensor: torch.Tensor) -> None:
        """A tensor is up to date, and what counts."""
        self._drop(memory_of(tensor))

    def keep_only(self, wholes: Iterable[torch.Tensor]) -> None:
        """Let go of memories that are no longer part of the state."""
        numbers = {memory_of(tensor) for tensor in wholes}
        for number in self._kept.keys() - numbers:
            self._drop(number)

    def bring_home(self) -> None:
        """Bring all tensors up to date."""
        for kept in list(self._kept.values()):
            self._bring_home(kept)

    def bring_home_of(self, tensor: torch.Tensor) -> None:
        """Bring the memory of a tensor up to date, which is what counts from now on."""
        kept = self._drop(memory_of(tensor))
        if kept is not None:
            self._bring_home(kept)

    def forget(self) -> None:
        """Let all arrays go."""
        self._kept.clear()
        self._by_tensor.clear()
        self._change()

    def lose(self) -> bool:
        """Let all arrays go, whose device was lost; whether something is lost with them."""
        is_lost = any(kept.is_new for kept in self._kept.values())
        self.forget()
        return is_lost

    def close(self) -> None:
        """The device is about to be closed."""
        if not self.device.is_lost and not DeviceGate.process_is_ending:
            self.bring_home()
            self.forget()

    def bring_home_after_fork(self) -> None:
        """Read what the host sees, in the process that was forked; the driver is none of its business."""
        for kept in list(self._kept.values()):
            if kept.array.memory.is_host_visible:
                self._bring_home(kept)
        self.forget()

    def _find(self, whole: torch.Tensor) -> _Kept | None:
        return self._by_tensor.get(id(whole)) or self._kept.get(memory_of(whole))

    def _keep(self, kept: _Kept) -> _Kept:
        number = memory_of(kept.tensor)
        self._drop(number)
        self._kept[number] = self._by_tensor[id(kept.tensor)] = kept
        self._change()
        return kept

    def _drop(self, number: int) -> _Kept | None:
        kept = self._kept.pop(number, None)
        if kept is not None:
            del self._by_tensor[id(kept.tensor)]
            self._change()
        return kept

    def _change(self) -> None:
        self.version, self._found, self._renewed_by = next(_VERSIONS), None, None

    def _bring_home(self, kept: _Kept) -> None:
        if not kept.is_new:
            return
        if self.device.is_lost:
            raise DeviceLostError(
                f"{self.device.info.name} was lost, and with it what the model's state had become there; the next call "
                "says so again, and the one after goes on with what was last read on the CPU"
            )
        storage = kept.tensor.detach().untyped_storage()
        count = storage.nbytes() // kept.tensor.element_size()
        flat = torch.empty(0, dtype=kept.tensor.dtype).set_(storage, 0, (count,))  # type: ignore[call-overload]
        flat.copy_(DeviceArray(kept.array.memory, kept.tensor.dtype, (count,)).read())
        kept.is_new = False
        self._renewed_by = None


def is_kept_on_device(whole: torch.Tensor) -> bool:
    """Whether the device has elements for a memory of a state."""
    return whole.dtype in _DTYPES and whole.numel() > 0 and whole.layout == torch.strided and not whole.is_quantized
