"""Memory of arrays: one buffer each, kept by references."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from mobopt.errors import DeviceError, DeviceLostError
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.buffer_pool import Block, BufferPool
from mobopt.runtimes.vulkan.engine.buffers import Buffer, MemoryUse, Place, hosts_arena
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.memory_plan import align
from mobopt.runtimes.vulkan.engine.poison import fill_with_nan

_GRANULE = 256
"""Sizes are rounded up to its multiples, so that arrays of nearly the same size use each other's memory."""


class HostView:
    """The bytes of memory that the host sees, for numpy; whoever has them keeps the memory."""

    def __init__(self, memory: ArrayMemory) -> None:
        mapped = memory.buffer.mapped
        address = int(vk.ffi.cast("uintptr_t", vk.ffi.from_buffer(mapped)))
        self.memory = memory
        self.__array_interface__ = {"shape": (len(mapped),), "typestr": "|u1", "data": (address, False), "version": 3}


class ArrayMemory:
    """Bytes of a device. When nobody refers to it any more, the pool takes them back: a call that is in flight refers
    to what it reads and writes."""

    def __init__(self, device: Device, buffer: Buffer) -> None:
        self.device = device
        self.buffer = buffer

    @property
    def place(self) -> Place:
        """All of it."""
        return Place(self.buffer, 0, self.buffer.nbytes)

    @property
    def is_host_visible(self) -> bool:
        """Whether the host can read and write it without a copy."""
        return self.buffer.mapped is not None

    def host_view(self) -> HostView:
        """The bytes themselves, where the host sees them; the device's own end does not free them before the view's.

        Raises:
            DeviceError: the device was lost or closed.
        """
        self.check()
        view = HostView(self)
        self.device.lend()
        weakref.finalize(view, self.device.when_free, self.device.take_back).atexit = False
        return view

    def check(self) -> None:
        """See that the bytes are still there.

        Raises:
            DeviceLostError: the device was lost, and they with it.
            DeviceError: the device was closed.
        """
        name = self.device.info.name
        if self.device.is_lost:
            raise DeviceLostError(f"an array was on {name}, which was lost, and its elements with it; make it anew")
        if not self.device.is_open:
            raise DeviceError(f"an array was on {name}, which is closed; copy arrays to the CPU before that")


class ArrayPool:
    """The memory of all arrays of a device: ``device.shared(ArrayPool)``."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._use = MemoryUse.UPLOAD if hosts_arena(device) else MemoryUse.DEVICE
        self._buffers = device.shared(BufferPool)
        self._lent: dict[weakref.ref[ArrayMemory], Block] = {}

    def allocate(self, nbytes: int) -> ArrayMemory:
        """Memory for at least ``nbytes`` bytes, with anything in it.

        Raises:
            DeviceError: memory is exhausted.
        """
        return self.allocate_all([nbytes])[0]

    def allocate_all(self, sizes: Sequence[int]) -> list[ArrayMemory]:
        """As :meth:`allocate`, of many: a call of a decoder wants memory for the caches of all its layers."""
        device, take, use, lent, returned = self._device, self._buffers.take, self._use, self._lent, self._returned
        made = []
        with device.lock:
            for nbytes in sizes:
                block = take(max(align(nbytes, _GRANULE), _GRANULE), use)
                memory = ArrayMemory(device, block.buffer)
                lent[weakref.ref(memory, returned)] = block
                made.append(memory)
            if device.poisons:
                fill_with_nan(device, [memory.buffer for memory in made])
        return made

    @property
    def live_bytes(self) -> int:
        """Bytes of all arrays that someone refers to."""
        return sum(block.buffer.nbytes for block in tuple(self._lent.values()))

    def close(self) -> None:
        """Nothing: what arrays refer to goes with the pool of buffers."""

    def _returned(self, memory: weakref.ref[ArrayMemory]) -> None:
        """Nobody refers to it any more."""
        self._device.when_free(lambda: self._give_back(memory))  # no name of the module: at the end there are none

    def _give_back(self, memory: weakref.ref[ArrayMemory]) -> None:
        self._buffers.give_back(self._lent.pop(memory))
