"""Constants that the executables of a device share, each uploaded once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from mobopt.runtimes.vulkan.engine.buffers import (
    CHUNK_BYTES,
    Buffer,
    BufferViews,
    MemoryUse,
    Place,
    allocate_buffer,
    lay_out,
    placement_alignment,
    storage_bytes,
)
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.recording import CommandPool, CopyRegion, submit_and_wait
from mobopt.runtimes.vulkan.engine.resources import ResourceScope
from mobopt.runtimes.vulkan.engine.tensor import Storage


@dataclass(eq=False)
class _Block:
    """Constants that were uploaded together and go together."""

    scope: ResourceScope
    places: dict[Storage, Place]
    users: int = 0


class ConstantPool:
    """Constants on a device, each uploaded once and kept while an executable uses its block."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._blocks: dict[Storage, _Block] = {}

    def acquire(self, storages_wanted: Iterable[Storage]) -> Mapping[Storage, Place]:
        """Where constants lie; those that aren't there yet are uploaded. Give them back with :meth:`release`."""
        wanted = list(dict.fromkeys(storages_wanted))
        held: set[_Block] = set()
        with self._device.lock:
            try:
                for storage in wanted:
                    self._hold(self._blocks.get(storage), held)
                for group in _groups([one for one in wanted if one not in self._blocks], self._chunk_bytes()):
                    block = self._upload(group)
                    self._blocks.update(dict.fromkeys(group, block))
                    self._hold(block, held)
            except BaseException:
                self._drop(held)
                raise
            return {storage: self._blocks[storage].places[storage] for storage in wanted}

    def release(self, storages_held: Iterable[Storage]) -> None:
        """Undo one :meth:`acquire`."""
        with self._device.lock:
            self._drop({self._blocks[storage] for storage in storages_held})

    def close(self) -> None:
        """Free what executables still hold; they are closed with the device."""
        for block in set(self._blocks.values()):
            block.scope.close()
        self._blocks.clear()

    def _hold(self, block: _Block | None, held: set[_Block]) -> None:
        """Count one more user of a block, unless ``held`` has it."""
        if block is not None and block not in held:
            block.users += 1
            held.add(block)

    def _drop(self, blocks: Iterable[_Block]) -> None:
        """Count one user fewer of each block, and free those that nobody uses."""
        for block in blocks:
            block.users -= 1
            if block.users == 0:
                block.scope.close()
                for storage in block.places:
                    del self._blocks[storage]

    def _chunk_bytes(self) -> int:
        return min(CHUNK_BYTES, self._device.info.limits.max_memory_allocation_size)

    def _upload(self, group: Sequence[Storage]) -> _Block:
        scope = self._device.scope()
        try:
            offsets, nbytes = lay_out(group, placement_alignment(self._device))
            unified = self._device.info.has_unified_memory
            buffer = allocate_buffer(self._device, scope, nbytes, MemoryUse.UPLOAD if unified else MemoryUse.DEVICE)
            buffer = replace(buffer, views=BufferViews(scope))
            places = {
                storage: Place(buffer, offset, storage_bytes(storage))
                for storage, offset in zip(group, offsets, strict=True)
            }
            if unified:
                _write_constants(buffer, places)
            else:
                _copy_to_device(self._device, buffer, places)
        except BaseException:
            scope.close()
            raise
        return _Block(scope, places)


def _write_constants(buffer: Buffer, places: Mapping[Storage, Place]) -> None:
    """Write constants to their offsets in a mapped buffer."""
    for storage, place in places.items():
        data = storage.data
        if data is None:
            raise ValueError(f"constant {storage.name!r} has no data")
        if data.numel():
            flat = torch.frombuffer(buffer.mapped, dtype=data.dtype, count=data.numel(), offset=place.offset)
            flat.copy_(data.detach().reshape(-1))


def _copy_to_device(device: Device, target: Buffer, places: Mapping[Storage, Place]) -> None:
    """Write constants through a staging buffer, and wait."""
    scope = device.scope()
    try:
        staging = allocate_buffer(device, scope, target.nbytes, MemoryUse.UPLOAD)
        _write_constants(staging, places)
        commands = CommandPool(device, scope).record_copy(staging, target, [CopyRegion(0, 0, target.nbytes)])
        submit_and_wait(device, scope, commands)
    finally:
        scope.close()


def _groups(constants: Sequence[Storage], chunk_bytes: int) -> list[list[Storage]]:
    """Constants cut into runs that one allocation can hold."""
    groups: list[list[Storage]] = []
    used = chunk_bytes
    for storage in constants:
        # An alignment of at most 256 is added to each.
        size = storage_bytes(storage) + 256
        if used + size > chunk_bytes:
            groups.append([])
            used = 0
        groups[-1].append(storage)
        used += size
    return groups
