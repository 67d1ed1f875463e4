"""Descriptor sets of a plan's dispatches, made and written all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.buffers import Place
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.memory_plan import align
from mobopt.runtimes.vulkan.engine.pipelines import PipelineKey, PipelineStore, descriptor_type
from mobopt.runtimes.vulkan.engine.resources import ResourceScope
from mobopt.runtimes.vulkan.engine.stream import Binding, Dispatch
from mobopt.runtimes.vulkan.engine.tensor import WORD_BYTES, Storage

# By words of a texel.
_FORMATS = {1: "VK_FORMAT_R32_SINT", 2: "VK_FORMAT_R32G32_SINT", 4: "VK_FORMAT_R32G32B32A32_SINT"}


def texels(binding: Binding) -> int:
    """Texels that a texel binding spans."""
    return -(-binding.nbytes // (WORD_BYTES * binding.texel_words))


_Range = tuple[vk.Handle, int, int]
"""A binding's bytes in a buffer: its handle, where they begin, and how many they are."""


class DescriptorSets:
    """One descriptor set per dispatch, in order, in a pool of exactly their size."""

    def __init__(
        self,
        device: Device,
        scope: ResourceScope,
        keys: Mapping[Dispatch, PipelineKey],
        places: Mapping[Storage, Place],
    ) -> None:
        """Make them.

        Args:
            device: what runs the dispatches.
            scope: owns the pool and the texel views.
            keys: the dispatches, with the pipeline that each of them runs.
            places: where storages lie.

        Raises:
            DeviceError: memory is exhausted.
        """
        self._device = device
        self._scope = scope
        self._places = places
        self._views: dict[tuple[vk.Handle, int, int, int], vk.Handle] = {}
        self._view_info = vk.struct("VkBufferViewCreateInfo")
        self.handles: list[vk.Handle] = []
        if keys:
            dispatches = list(keys)
            self.handles = self._allocate(dispatches, keys)
            self._write(dispatches)

    def _allocate(self, dispatches: Sequence[Dispatch], keys: Mapping[Dispatch, PipelineKey]) -> list[vk.Handle]:
        pool = self._create_pool(dispatches)
        store = self._device.shared(PipelineStore)
        layouts = [store.layout(keys[dispatch].layout).set_layout for dispatch in dispatches]
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
        count = sum(len(dispatch.bindings) for dispatch in dispatches)
        writes = vk.ffi.new("VkWriteDescriptorSet[]", count)
        buffers = vk.ffi.new("VkDescriptorBufferInfo[]", count)
        views = vk.ffi.new("VkBufferView[]", count)
        kind, types = vk.VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, (descriptor_type(False), descriptor_type(True))
        number = 0
        for handle, dispatch in zip(self.handles, dispatches, strict=True):
            for index, binding in enumerate(dispatch.bindings):
                write = writes[number]
                write.sType = kind
                write.dstSet = handle
                write.dstBinding = index
                write.descriptorCount = 1
                where = self._range(binding)
                if binding.texel_words:
                    write.descriptorType = types[True]
                    views[number] = self._view(where, binding.texel_words)
                    write.pTexelBufferView = views + number
                else:
                    write.descriptorType = types[False]
                    buffers[number] = where
                    write.pBufferInfo = buffers + number
                number += 1
        vk.lib.vkUpdateDescriptorSets(self._device.handle, count, writes, 0, vk.ffi.NULL)

    def _range(self, binding: Binding) -> _Range:
        place = self._places[binding.storage]
        # Storages are padded to whole vec4s, so a binding may span the vec4 that its last byte is in.
        return place.buffer.handle, place.offset + binding.offset, max(align(binding.nbytes, 16), 16)

    def _view(self, where: _Range, words: int) -> vk.Handle:
        key = (*where, words)
        if key not in self._views:
            info = self._view_info
            info.buffer, info.offset, info.range = where
            info.format = getattr(vk, _FORMATS[words])
            self._views[key] = self._scope.create("BufferView", info, "make a texel buffer view")
        return self._views[key]
