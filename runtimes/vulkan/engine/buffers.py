"""Buffers with memory of a device, and where storages lie in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import torch

from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.memory_plan import align
from mobopt.runtimes.vulkan.engine.resources import ResourceScope
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage

CHUNK_BYTES = 1 << 30
"""What is allocated at once, unless one tensor takes more."""

_CACHE_LINE = 128
_DEVICE_LOCAL, _HOST_VISIBLE, _HOST_COHERENT, _HOST_CACHED = 1, 2, 4, 8

# By words of a texel.
_FORMATS = {1: "VK_FORMAT_R32_SINT", 2: "VK_FORMAT_R32G32_SINT", 4: "VK_FORMAT_R32G32B32A32_SINT"}


class MemoryUse(Enum):
    """Who touches a buffer, and so which kind of memory it wants."""

    DEVICE = "device"  # the device alone
    UPLOAD = "upload"  # written by the host, read by the device
    DOWNLOAD = "download"  # written by the device, read by the host

    __hash__ = object.__hash__  # Enum's own is a function of Python, and every array of a call asks for it


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
    views: BufferViews | None = field(default=None, repr=False)
    """Keeps the texel views of a buffer that many plans bind; None: each plan makes its own."""

    @cached_property
    def number(self) -> int:
        """Of its handle."""
        return vk.number(self.handle)


class BufferViews:
    """Texel views of buffers, each made once."""

    def __init__(self, scope: ResourceScope) -> None:
        """Start with none; ``scope`` owns them, and lasts no longer than the buffers."""
        self._scope = scope
        self._views: dict[tuple[int, int, int, int], int] = {}

    def view(self, buffer: Buffer, offset: int, nbytes: int, words: int) -> int:
        """The number of the handle of a view whose texels are so many words."""
        key = (buffer.number, offset, nbytes, words)
        found = self._views.get(key)
        if found is None:
            info = vk.struct("VkBufferViewCreateInfo", buffer=buffer.handle, offset=offset, range=nbytes)
            info.format = getattr(vk, _FORMATS[words])
            handle = self._scope.create("BufferView", info, "make a texel buffer view")
            found = self._views[key] = vk.number(handle)
        return found


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
        | vk.VK_BUFFER_USAGE_STORAGE_TEXEL_BUFFER_BIT
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
    """A tensor's elements in mapped memory, as a torch tensor that shares them."""
    dtype = tensor.elements
    count = place.nbytes // dtype.itemsize
    flat = torch.frombuffer(place.buffer.mapped, dtype=dtype, count=count, offset=place.offset)
    return flat.as_strided(tensor.sizes, tensor.strides, tensor.offset)


def lay_out(group: Sequence[Storage], alignment: int) -> tuple[list[int], int]:
    """Offsets of storages one after the other, and the bytes they take."""
    offsets: list[int] = []
    end = 0
    for storage in group:
        offsets.append(align(end, alignment))
        end = offsets[-1] + storage_bytes(storage)
    return offsets, end
