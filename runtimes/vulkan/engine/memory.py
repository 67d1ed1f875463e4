"""Memory of a device: buffers, the constants that executables share, and where each storage of a plan lies."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.memory_plan import Life, align, largest_live_set, plan_arena
from mobopt.runtimes.vulkan.engine.resources import ResourceScope
from mobopt.runtimes.vulkan.engine.staging import StagedStream
from mobopt.runtimes.vulkan.engine.stream import HostTensor, storages
from mobopt.runtimes.vulkan.engine.tensor import ELEMENT_BYTES, DeviceTensor, Storage, StorageKind

_LOGGER = logging.getLogger("mobopt.vulkan")
_CHUNK_BYTES = 1 << 30
_CACHE_LINE = 128
_DEVICE_LOCAL, _HOST_VISIBLE, _HOST_COHERENT, _HOST_CACHED = 1, 2, 4, 8


class MemoryUse(Enum):
    """Who touches a buffer, and so which kind of memory it wants."""

    DEVICE = "device"  # the device alone
    UPLOAD = "upload"  # written by the host, read by the device
    DOWNLOAD = "download"  # written by the device, read by the host


# By use: flags that memory must have, flags worth having, flags better left to others.
_WANTED = {
    MemoryUse.DEVICE: (0, _DEVICE_LOCAL, _HOST_VISIBLE),
    MemoryUse.UPLOAD: (_HOST_VISIBLE | _HOST_COHERENT, _DEVICE_LOCAL, _HOST_CACHED),
    MemoryUse.DOWNLOAD: (_HOST_VISIBLE | _HOST_COHERENT, _HOST_CACHED, _DEVICE_LOCAL),
}


@dataclass(frozen=True, eq=False)
class Buffer:
    """A buffer with memory of its own; ``mapped`` is its bytes if the host sees them."""

    handle: vk.Handle
    nbytes: int
    mapped: Any = field(default=None, repr=False)


@dataclass(frozen=True)
class Place:
    """Where a storage lies."""

    buffer: Buffer
    offset: int
    nbytes: int
    """At least one vec4, whole vec4s."""


def placement_alignment(device: Device) -> int:
    """Bytes that the place of every storage is a multiple of: what bindings need, and whole cache lines."""
    return max(device.info.limits.binding_alignment, _CACHE_LINE)


def storage_bytes(storage: Storage) -> int:
    """Bytes that are set aside for a storage: whole vec4s, at least one."""
    return max(align(storage.nbytes, 16), 16)


def memory_types(device: Device, use: MemoryUse) -> list[int]:
    """Numbers of the memory types that serve a use, the best first."""
    properties = vk.ffi.new("VkPhysicalDeviceMemoryProperties*")
    vk.lib.vkGetPhysicalDeviceMemoryProperties(device.physical, properties)
    required, wanted, unwanted = _WANTED[use]
    flags = [properties.memoryTypes[index].propertyFlags for index in range(properties.memoryTypeCount)]
    able = [index for index, has in enumerate(flags) if has & required == required]
    return sorted(able, key=lambda index: (flags[index] & wanted == 0, flags[index] & unwanted != 0, index))


def has_fast_upload_memory(device: Device) -> bool:
    """Whether the host can write memory that is local to the device."""
    properties = vk.ffi.new("VkPhysicalDeviceMemoryProperties*")
    vk.lib.vkGetPhysicalDeviceMemoryProperties(device.physical, properties)
    best = memory_types(device, MemoryUse.UPLOAD)[0]
    return bool(properties.memoryTypes[best].propertyFlags & _DEVICE_LOCAL)


def hosts_arena(device: Device) -> bool:
    """Whether one kind of memory is the best for the host and the device alike, so that inputs and outputs may share
    the arena."""
    uploads, downloads = (memory_types(device, use)[0] for use in (MemoryUse.UPLOAD, MemoryUse.DOWNLOAD))
    return device.info.has_unified_memory and uploads == downloads


def allocate_buffer(device: Device, scope: ResourceScope, nbytes: int, use: MemoryUse) -> Buffer:
    """A buffer for storage, texels and copies, with memory; mapped unless it is the device's alone.

    Raises:
        DeviceError: memory is exhausted.
    """
    usage = (
        vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
        | vk.VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT
        | vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
        | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
    )
    action = f"allocate {nbytes / 2**20:.1f} MiB of {use.value} memory"
    handle = scope.create("Buffer", vk.struct("VkBufferCreateInfo", size=nbytes, usage=usage), action)
    requirements = vk.ffi.new("VkMemoryRequirements*")
    vk.lib.vkGetBufferMemoryRequirements(device.handle, handle, requirements)
    types = [index for index in memory_types(device, use) if requirements.memoryTypeBits & (1 << index)]
    memory = _allocate(device, scope, requirements.size, types, action)
    vk.check(vk.lib.vkBindBufferMemory(device.handle, handle, memory, 0), action)
    return Buffer(handle, nbytes, None if use is MemoryUse.DEVICE else _map(device, memory, nbytes))


def _allocate(device: Device, scope: ResourceScope, nbytes: int, types: Sequence[int], action: str) -> vk.Handle:
    """Memory of the first type that has room."""
    memory = vk.ffi.new("VkDeviceMemory*")
    result = vk.VK_ERROR_OUT_OF_DEVICE_MEMORY
    for index in types:
        info = vk.struct("VkMemoryAllocateInfo", allocationSize=nbytes, memoryTypeIndex=index)
        result = vk.lib.vkAllocateMemory(device.handle, info, vk.ffi.NULL, memory)
        if result == vk.VK_SUCCESS:
            scope.adopt("Memory", memory[0])
            return memory[0]
    vk.check(result, action)
    raise AssertionError("a failed allocation has an error code")


def _map(device: Device, memory: vk.Handle, nbytes: int) -> Any:
    pointer = vk.ffi.new("void**")
    vk.check(vk.lib.vkMapMemory(device.handle, memory, 0, nbytes, 0, pointer), "map device memory")
    return vk.ffi.buffer(pointer[0], nbytes)


def host_view(place: Place, tensor: DeviceTensor) -> torch.Tensor:
    """A tensor's elements in mapped memory, float32 or int32, as a torch tensor that shares them."""
    dtype = torch.float32 if tensor.is_floating else torch.int32
    count = place.nbytes // ELEMENT_BYTES
    flat = torch.frombuffer(place.buffer.mapped, dtype=dtype, count=count, offset=place.offset)
    return flat.as_strided(tensor.sizes, tensor.strides, tensor.offset)


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
        return min(_CHUNK_BYTES, self._device.info.limits.max_memory_allocation_size)

    def _upload(self, group: Sequence[Storage]) -> _Block:
        scope = self._device.scope()
        try:
            offsets, nbytes = _lay_out(group, placement_alignment(self._device))
            unified = self._device.info.has_unified_memory
            buffer = allocate_buffer(self._device, scope, nbytes, MemoryUse.UPLOAD if unified else MemoryUse.DEVICE)
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
    from mobopt.runtimes.vulkan.engine.recording import CommandPool, submit_and_wait

    scope = device.scope()
    try:
        staging = allocate_buffer(device, scope, target.nbytes, MemoryUse.UPLOAD)
        _write_constants(staging, places)
        commands = CommandPool(device, scope).upload_commands(staging, target)
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


def _lay_out(group: Sequence[Storage], alignment: int) -> tuple[list[int], int]:
    """Offsets of storages one after the other, and the bytes they take."""
    offsets: list[int] = []
    end = 0
    for storage in group:
        offsets.append(align(end, alignment))
        end = offsets[-1] + storage_bytes(storage)
    return offsets, end


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

    def __init__(self, device: Device, scope: ResourceScope, staged: StagedStream) -> None:
        """Allocate it in ``scope``, but for the constants, which are held until :meth:`release_constants`.

        Raises:
            DeviceError: memory is exhausted, or a storage is larger than one allocation may be.
        """
        self._device = device
        lives = _lives(staged)
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
            if storage.kind is not StorageKind.CONSTANT:
                by_use[_use(storage, staged)].append(storage)
        self.places: dict[Storage, Place] = {}
        if hosts_arena(device):
            shared = [storage for group in by_use.values() for storage in group]
            arena_bytes, io_bytes = self._place_arena(scope, shared, lives, MemoryUse.UPLOAD), 0
        else:
            arena_bytes = self._place_arena(scope, by_use[MemoryUse.DEVICE], lives, MemoryUse.DEVICE)
            io_bytes = sum(self._place_io(scope, by_use[use], use) for use in (MemoryUse.UPLOAD, MemoryUse.DOWNLOAD))
        self._constants = tuple(constants)
        self.places.update(device.constants.acquire(constants))
        constant_bytes = sum(storage_bytes(storage) for storage in constants)
        live = largest_live_set([life for storage, life in lives.items() if storage.kind is not StorageKind.CONSTANT])
        self.report = MemoryReport(
            constant_bytes, arena_bytes, io_bytes, constant_bytes + arena_bytes + io_bytes, constant_bytes + live
        )

    def release_constants(self) -> None:
        """Let the constants go."""
        self._device.constants.release(self._constants)
        self._constants = ()

    def _place_arena(
        self, scope: ResourceScope, group: Sequence[Storage], lives: Mapping[Storage, Life], use: MemoryUse
    ) -> int:
        limits = self._device.info.limits
        alignment = placement_alignment(self._device)
        largest = max((storage_bytes(storage) for storage in group), default=0)
        allowed = min(max(_CHUNK_BYTES, largest + alignment), limits.max_memory_allocation_size)
        chunk = allowed // alignment * alignment
        plan = plan_arena([lives[storage] for storage in group], alignment, chunk)
        starts = range(0, plan.nbytes, chunk)
        chunks = [allocate_buffer(self._device, scope, min(chunk, plan.nbytes - start), use) for start in starts]
        for storage, offset in zip(group, plan.offsets, strict=True):
            self.places[storage] = Place(chunks[offset // chunk], offset % chunk, storage_bytes(storage))
        return plan.nbytes

    def _place_io(self, scope: ResourceScope, group: Sequence[Storage], use: MemoryUse) -> int:
        if not group:
            return 0
        offsets, nbytes = _lay_out(group, placement_alignment(self._device))
        buffer = allocate_buffer(self._device, scope, nbytes, use)
        for storage, offset in zip(group, offsets, strict=True):
            self.places[storage] = Place(buffer, offset, storage_bytes(storage))
        return nbytes


def _use(storage: Storage, staged: StagedStream) -> MemoryUse:
    if storage in staged.device_storages or storage.kind is StorageKind.TEMPORARY:
        return MemoryUse.DEVICE
    return MemoryUse.UPLOAD if storage.kind is StorageKind.INPUT else MemoryUse.DOWNLOAD


def _lives(staged: StagedStream) -> dict[Storage, Life]:
    """The life of every storage that is used: inputs from the start, outputs to the end."""
    spans: dict[Storage, tuple[int, int]] = {}
    end = len(staged.operations)
    for tensor in staged.inputs:
        if isinstance(tensor, HostTensor):
            continue
        spans[tensor.storage] = (0, 0)
    for step, operation in enumerate(staged.operations):
        for storage, _, _ in storages(operation):
            first, _ = spans.get(storage, (step, step))
            spans[storage] = (first, step)
    if staged.flag is not None:
        spans[staged.flag.storage] = (0, end)
    for tensor in staged.outputs:
        if isinstance(tensor, HostTensor):
            continue
        first, _ = spans.get(tensor.storage, (end, end))
        spans[tensor.storage] = (first, end)
    return {storage: Life(storage_bytes(storage), first, last) for storage, (first, last) in spans.items()}
