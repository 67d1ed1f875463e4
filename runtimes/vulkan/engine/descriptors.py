"""Descriptor sets of a plan's dispatches, made and written all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.buffers import Place
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.memory_plan import align
from mobopt.runtimes.vulkan.engine.pipelines import PipelineStore, descriptor_type, pipeline_key
from mobopt.runtimes.vulkan.engine.resources import ResourceScope
from mobopt.runtimes.vulkan.engine.stream import Binding, Dispatch
from mobopt.runtimes.vulkan.engine.tensor import WORD_BYTES, Storage

# By words of a texel.
_FORMATS = {1: "VK_FORMAT_R32_SINT", 2: "VK_FORMAT_R32G32_SINT", 4: "VK_FORMAT_R32G32B32A32_SINT"}


def texels(binding: Binding) -> int:
    """Texels that a texel binding spans."""
    return -(-binding.nbytes // (WORD_BYTES * binding.texel_words))


@dataclass(frozen=True)
class _Range:
    """A binding's bytes in a buffer."""

    buffer: vk.Handle
    offset: int
    nbytes: int


class DescriptorSets:
    """One descriptor set per dispatch, in order, in a pool of exactly their size."""

    def __init__(
        self, device: Device, scope: ResourceScope, dispatches: Sequence[Dispatch], places: Mapping[Storage, Place]
    ) -> None:
        self._device = device
        self._scope = scope
        self._places = places
        self._views: dict[tuple[vk.Handle, int, int, str], vk.Handle] = {}
        self.handles: list[vk.Handle] = []
        if dispatches:
            self.handles = self._allocate(dispatches)
            self._write(dispatches)

    def _allocate(self, dispatches: Sequence[Dispatch]) -> list[vk.Handle]:
        pool = self._create_pool(dispatches)
        store = self._device.shared(PipelineStore)
        layouts = [store.layout(pipeline_key(dispatch).layout).set_layout for dispatch in dispatches]
        info = vk.struct(
            "VkDescriptorSetAllocateInfo",
            descriptorPool=pool,
            descriptorSetCount=len(layouts),
            pSetLayouts=layouts,
        )
        handles = vk.ffi.new("VkDescriptorSet[]", len(layouts))
        vk.check(vk.lib.vkAllocateDescriptorSets(self._device.handle, info, handles), "allocate descriptor sets")
        return list(handles)

    def _create_pool(self, dispatches: Sequence[Dispatch]) -> vk.Handle:
        bindings = [binding for dispatch in dispatches for binding in dispatch.bindings]
        texel = sum(binding.texel_words > 0 for binding in bindings)
        counts = [(descriptor_type(True), texel), (descriptor_type(False), len(bindings) - texel)]
        sizes = [vk.struct("VkDescriptorPoolSize", type=kind, descriptorCount=count) for kind, count in counts if count]
        info = vk.struct(
            "VkDescriptorPoolCreateInfo", maxSets=len(dispatches), poolSizeCount=len(sizes), pPoolSizes=sizes
        )
        return self._scope.create("DescriptorPool", info, "make a descriptor pool")

    def _write(self, dispatches: Sequence[Dispatch]) -> None:
        slots = [
            (handle, index, binding)
            for handle, dispatch in zip(self.handles, dispatches, strict=True)
            for index, binding in enumerate(dispatch.bindings)
        ]
        writes = vk.ffi.new("VkWriteDescriptorSet[]", len(slots))
        buffers = vk.ffi.new("VkDescriptorBufferInfo[]", len(slots))
        views = vk.ffi.new("VkBufferView[]", len(slots))
        for number, (handle, index, binding) in enumerate(slots):
            write = writes[number]
            write.sType = vk.VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET
            write.dstSet = handle
            write.dstBinding = index
            write.descriptorCount = 1
            write.descriptorType = descriptor_type(binding.texel_words > 0)
            where = self._range(binding)
            if binding.texel_words:
                views[number] = self._view(where, _FORMATS[binding.texel_words])
                write.pTexelBufferView = views + number
            else:
                buffers[number] = (where.buffer, where.offset, where.nbytes)
                write.pBufferInfo = buffers + number
        vk.lib.vkUpdateDescriptorSets(self._device.handle, len(slots), writes, 0, vk.ffi.NULL)

    def _range(self, binding: Binding) -> _Range:
        place = self._places[binding.storage]
        # Storages are padded to whole vec4s, so a binding may span the vec4 that its last byte is in.
        return _Range(place.buffer.handle, place.offset + binding.offset, max(align(binding.nbytes, 16), 16))

    def _view(self, where: _Range, format_name: str) -> vk.Handle:
        key = (where.buffer, where.offset, where.nbytes, format_name)
        if key not in self._views:
            info = vk.struct(
                "VkBufferViewCreateInfo",
                buffer=where.buffer,
                format=getattr(vk, format_name),
                offset=where.offset,
                range=where.nbytes,
            )
            self._views[key] = self._scope.create("BufferView", info, "make a texel buffer view")
        return self._views[key]
