"""Memory of a device that is used again: a buffer that nobody needs any more serves the next who asks for its size."""

from __future__ import annotations

from dataclasses import dataclass, field

from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine.buffers import Buffer, MemoryUse, allocate_buffer
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.resources import ResourceScope

_MAX_IDLE_BYTES = 256 << 20
_LEAST_ROOMY_BYTES = 64 << 10
"""Of what varies in size; so small plans can use each other's memory."""


@dataclass(frozen=True, eq=False)
class Block:
    """A buffer, and what owns it."""

    buffer: Buffer
    use: MemoryUse
    scope: ResourceScope = field(repr=False)


class BufferPool:
    """Buffers of arrays and of plans: ``device.shared(BufferPool)``. What is in a buffer that was taken is anything."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._taken: set[Block] = set()
        self._idle: dict[tuple[MemoryUse, int], list[Block]] = {}
        self._idle_bytes = 0

    def take(self, nbytes: int, use: MemoryUse, is_roomy: bool = False) -> Block:
        """A buffer for ``nbytes`` bytes, until :meth:`give_back`.

        Args:
            nbytes: how many are needed.
            use: who touches it.
            is_roomy: whether it may be larger, for what varies in size: one that is idle may be twice as large.

        Raises:
            DeviceError: memory is exhausted, also after what is idle was freed.
        """
        with self._device.lock:
            if is_roomy:
                nbytes = self._fitting(max(nbytes, _LEAST_ROOMY_BYTES), use)
            block = self._take_idle(nbytes, use)
            if block is None:
                block = self._allocate_or_free(nbytes, use)
            self._taken.add(block)
            return block

    def give_back(self, block: Block) -> None:
        """Keep a block, with which the device is done, for the next who needs one."""
        with self._device.lock:
            if block not in self._taken or not self._device.is_open:
                return
            self._taken.discard(block)
            self._idle.setdefault((block.use, block.buffer.nbytes), []).append(block)
            self._idle_bytes += block.buffer.nbytes
            if self._idle_bytes > _MAX_IDLE_BYTES:
                self.free_idle()

    def free_idle(self) -> None:
        """Free what nobody has taken."""
        with self._device.lock:
            idle, self._idle, self._idle_bytes = self._idle, {}, 0
            for blocks in idle.values():
                for block in blocks:
                    block.scope.close()

    def close(self) -> None:
        """Free everything, also what arrays refer to: they are of no use without the device. Where the device has lent
        memory to others, only what is idle is freed."""
        self.free_idle()
        if not self._device.is_lending:
            for block in self._taken:
                block.scope.close()
        self._taken.clear()

    def _fitting(self, nbytes: int, use: MemoryUse) -> int:
        """The smallest idle buffer's bytes that hold so many, unless it has more than twice as many."""
        sizes = (size for (idle_use, size), blocks in self._idle.items() if idle_use is use and blocks)
        return min((size for size in sizes if nbytes <= size <= 2 * nbytes), default=nbytes)

    def _take_idle(self, nbytes: int, use: MemoryUse) -> Block | None:
        blocks = self._idle.get((use, nbytes))
        if not blocks:
            return None
        self._idle_bytes -= nbytes
        return blocks.pop()

    def _allocate_or_free(self, nbytes: int, use: MemoryUse) -> Block:
        try:
            return self._allocate(nbytes, use)
        except DeviceError:
            self._device.catch_up()
            if not self._idle_bytes:
                raise
            self.free_idle()
            return self._allocate(nbytes, use)

    def _allocate(self, nbytes: int, use: MemoryUse) -> Block:
        scope = self._device.scope()
        try:
            return Block(allocate_buffer(self._device, scope, nbytes, use), use, scope)
        except BaseException:
            scope.close()
            raise
