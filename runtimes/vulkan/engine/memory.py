"""Where each storage of a plan lies: in the arena, among the constants, or where the host sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine.buffer_pool import Block, BufferPool
from mobopt.runtimes.vulkan.engine.buffers import (
    CHUNK_BYTES,
    Buffer,
    MemoryUse,
    Place,
    hosts_arena,
    lay_out,
    placement_alignment,
    storage_bytes,
)
from mobopt.runtimes.vulkan.engine.constants import ConstantPool
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.memory_plan import Life, largest_live_set, plan_arena
from mobopt.runtimes.vulkan.engine.staging import StagedStream
from mobopt.runtimes.vulkan.engine.stream import Dispatch, HostTensor, storages
from mobopt.runtimes.vulkan.engine.tensor import Storage, StorageKind


@dataclass(frozen=True)
class MemoryReport:
    """How many bytes a plan takes on the device, and how few it could."""

    constant_bytes: int
    arena_bytes: int
    io_bytes: int
    """Inputs, outputs and what host calls exchange, where they don't share the arena."""
    peak_bytes: int
    """All of the above."""
    lower_bound_bytes: int
    """Constants and the largest set of tensors alive at once: no plan of the same operations needs fewer."""


class MemoryLayout:
    """Memory for every storage of a staged stream."""

    def __init__(self, device: Device, staged: StagedStream) -> None:
        """Take it from the device's pools, until :meth:`release`.

        Raises:
            DeviceError: memory is exhausted, or a storage is larger than one allocation may be.
        """
        self._device = device
        self._pool = device.shared(ConstantPool)
        self._buffers = device.shared(BufferPool)
        self._blocks: list[Block] = []
        self._constants: tuple[Storage, ...] = ()
        self.places: dict[Storage, Place] = {}
        try:
            self.report = self._place(staged)
        except BaseException:
            self.release()
            raise

    def _place(self, staged: StagedStream) -> MemoryReport:
        device = self._device
        lives = _lives(staged)
        if device.poisons:  # nothing may find what another storage has left in its place
            end = len(staged.operations)
            lives = {storage: Life(life.nbytes, 0, end) for storage, life in lives.items()}
        limits = device.info.limits
        for storage in lives:
            if storage_bytes(storage) > limits.max_memory_allocation_size:
                raise DeviceError(
                    f"{storage.name or 'a tensor'} takes {storage.nbytes} bytes, and {device.info.name} allocates "
                    f"at most {limits.max_memory_allocation_size} at once; use a smaller input or batch"
                )
        constants = [storage for storage in lives if storage.kind is StorageKind.CONSTANT]
        by_use: dict[MemoryUse, list[Storage]] = {use: [] for use in MemoryUse}
        for storage in lives:
            if storage.kind not in (StorageKind.CONSTANT, StorageKind.COUNTERS):
                by_use[_use(storage, staged)].append(storage)
        if hosts_arena(device):
            shared = [storage for group in by_use.values() for storage in group]
            arena_bytes, io_bytes = self._place_arena(shared, lives, MemoryUse.UPLOAD), 0
        else:
            arena_bytes = self._place_arena(by_use[MemoryUse.DEVICE], lives, MemoryUse.DEVICE)
            io_bytes = sum(self._place_io(by_use[use], use) for use in (MemoryUse.UPLOAD, MemoryUse.DOWNLOAD))
        counters = [storage for storage in lives if storage.kind is StorageKind.COUNTERS]
        arena_bytes += self._place_io(counters, MemoryUse.DEVICE)
        self.places.update(self._pool.acquire(constants))
        self._constants = tuple(constants)
        constant_bytes = sum(storage_bytes(storage) for storage in constants)
        live = largest_live_set([life for storage, life in lives.items() if storage.kind is not StorageKind.CONSTANT])
        return MemoryReport(
            constant_bytes, arena_bytes, io_bytes, constant_bytes + arena_bytes + io_bytes, constant_bytes + live
        )

    @property
    def temporary(self) -> Sequence[Buffer]:
        """Buffers that hold nothing between calls."""
        lasting = (StorageKind.CONSTANT, StorageKind.COUNTERS)
        return list({place.buffer: None for storage, place in self.places.items() if storage.kind not in lasting})

    @property
    def counters(self) -> Sequence[Buffer]:
        """Buffers that must be zero before the first call."""
        places = self.places.items()
        return list({place.buffer: None for storage, place in places if storage.kind is StorageKind.COUNTERS})

    def release(self) -> None:
        """Let everything go; nothing on the device uses it any more."""
        self._pool.release(self._constants)
        self._constants = ()
        for block in self._blocks:
            self._buffers.give_back(block)
        self._blocks.clear()

    def _buffer(self, nbytes: int, use: MemoryUse) -> Buffer:
        """One until :meth:`release`. Plans of other sizes take what those that were given up leave."""
        self._blocks.append(self._buffers.take(nbytes, use, is_roomy=True))
        return self._blocks[-1].buffer

    def _place_arena(self, group: Sequence[Storage], lives: Mapping[Storage, Life], use: MemoryUse) -> int:
        limits = self._device.info.limits
        alignment = placement_alignment(self._device)
        largest = max((storage_bytes(storage) for storage in group), default=0)
        allowed = min(max(CHUNK_BYTES, largest + alignment), limits.max_memory_allocation_size)
        chunk = allowed // alignment * alignment
        plan = plan_arena([lives[storage] for storage in group], alignment, chunk)
        starts = range(0, plan.nbytes, chunk)
        chunks = [self._buffer(min(chunk, plan.nbytes - start), use) for start in starts]
        for storage, offset in zip(group, plan.offsets, strict=True):
            self.places[storage] = Place(chunks[offset // chunk], offset % chunk, storage_bytes(storage))
        return plan.nbytes

    def _place_io(self, group: Sequence[Storage], use: MemoryUse) -> int:
        if not group:
            return 0
        offsets, nbytes = lay_out(group, placement_alignment(self._device))
        buffer = self._buffer(nbytes, use)
        for storage, offset in zip(group, offsets, strict=True):
            self.places[storage] = Place(buffer, offset, storage_bytes(storage))
        return nbytes


def _use(storage: Storage, staged: StagedStream) -> MemoryUse:
    if storage in staged.device_storages or storage.kind is StorageKind.TEMPORARY:
        return MemoryUse.DEVICE
    return MemoryUse.UPLOAD if storage.kind is StorageKind.INPUT else MemoryUse.DOWNLOAD


def _lives(staged: StagedStream) -> dict[Storage, Life]:
    """The life of every storage that has memory of the plan: inputs from the start, outputs to the end."""
    spans: dict[Storage, tuple[int, int]] = {}
    end = len(staged.operations)
    for tensor in staged.inputs:
        if isinstance(tensor, HostTensor):
            continue
        spans[tensor.storage] = (0, 0)
    for step, operation in enumerate(staged.operations):
        if isinstance(operation, Dispatch):
            touched = [binding.storage for binding in operation.bindings]
        else:
            touched = [storage for storage, _, _ in storages(operation)]
        for storage in touched:
            known = spans.get(storage)
            spans[storage] = (step if known is None else known[0], step)
    for dispatch in staged.undo:
        for binding in dispatch.bindings:
            spans[binding.storage] = (spans.get(binding.storage, (end, end))[0], end)
    if staged.flag is not None:
        spans[staged.flag.storage] = (0, end)
    for tensor in staged.outputs:
        if isinstance(tensor, HostTensor):
            continue
        first, _ = spans.get(tensor.storage, (end, end))
        spans[tensor.storage] = (first, end)
    arrays = set(staged.array_storages)
    return {
        storage: Life(storage_bytes(storage), first, last)
        for storage, (first, last) in spans.items()
        if storage not in arrays
    }
