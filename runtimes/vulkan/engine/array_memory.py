"""Memory of arrays: one buffer each, kept by references, and used again for the next array of its size."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial

from mobopt.errors import DeviceError, DeviceLostError
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.buffers import Buffer, MemoryUse, Place, allocate_buffer, hosts_arena
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.memory_plan import align
from mobopt.runtimes.vulkan.engine.poison import fill_with_nan
from mobopt.runtimes.vulkan.engine.resources import ResourceScope

_GRANULE = 256
"""Sizes are rounded up to its multiples, so that arrays of nearly the same size use each other's memory."""
_MAX_IDLE_BYTES = 256 << 20


@dataclass(eq=False)
class _Block:
    """A buffer, and what owns it."""

    scope: ResourceScope
    buffer: Buffer


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
        self._blocks: set[_Block] = set()
        self._lent: dict[weakref.ref[ArrayMemory], _Block] = {}
        self._idle: dict[int, list[_Block]] = {}
        self._idle_bytes = 0

    def allocate(self, nbytes: int) -> ArrayMemory:
        """Memory for at least ``nbytes`` bytes, with anything in it.

        Raises:
            DeviceError: memory is exhausted.
        """
        size = max(align(nbytes, _GRANULE), _GRANULE)
        with self._device.lock:
            block = self._take(size)
            if self._device.poisons:
                fill_with_nan(self._device, [block.buffer])
            memory = ArrayMemory(self._device, block.buffer)
            self._lent[weakref.ref(memory, self._returned)] = block
            return memory

    @property
    def live_bytes(self) -> int:
        """Bytes of all arrays that someone refers to."""
        return sum(block.buffer.nbytes for block in tuple(self._blocks)) - self._idle_bytes

    def close(self) -> None:
        """Free everything, also what arrays refer to: they are of no use without the device. Where the device has lent
        memory to others, nothing is."""
        for block in self._blocks:
            if not self._device.is_lending:
                block.scope.close()
        self._blocks.clear()
        self._idle.clear()
        self._idle_bytes = 0

    def _take(self, size: int) -> _Block:
        idle = self._idle.get(size)
        if idle:
            self._idle_bytes -= size
            return idle.pop()
        try:
            return self._allocate(size)
        except DeviceError:
            if not self._idle_bytes:
                raise
            self._free_idle()
            return self._allocate(size)

    def _allocate(self, size: int) -> _Block:
        scope = self._device.scope()
        try:
            block = _Block(scope, allocate_buffer(self._device, scope, size, self._use))
        except BaseException:
            scope.close()
            raise
        self._blocks.add(block)
        return block

    def _returned(self, memory: weakref.ref[ArrayMemory]) -> None:
        """Nobody refers to it any more."""
        self._device.when_free(partial(self._give_back, self._lent.pop(memory)))

    def _give_back(self, block: _Block) -> None:
        """Keep a block for the next array of its size; under the lock."""
        if block not in self._blocks or not self._device.is_open:
            return
        self._idle.setdefault(block.buffer.nbytes, []).append(block)
        self._idle_bytes += block.buffer.nbytes
        if self._idle_bytes > _MAX_IDLE_BYTES:
            self._free_idle()

    def _free_idle(self) -> None:
        idle, self._idle, self._idle_bytes = self._idle, {}, 0
        for blocks in idle.values():
            for block in blocks:
                self._blocks.discard(block)
                block.scope.close()
