"""Descriptor sets of a plan's dispatches, made and written all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.buffers import BufferViews, Place
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.memory_plan import align
from mobopt.runtimes.vulkan.engine.pipelines import PipelineLayout, descriptor_type
from mobopt.runtimes.vulkan.engine.resources import ResourceScope
from mobopt.runtimes.vulkan.engine.stream import Binding, Dispatch
from mobopt.runtimes.vulkan.engine.tensor import WORD_BYTES, Storage


def texels(binding: Binding) -> int:
    """Texels that a texel binding spans."""
    return -(-binding.nbytes // (WORD_BYTES * binding.texel_words))


class DescriptorSets:
    """One descriptor set per dispatch, in order, in a pool of exactly their size.

    Attributes:
        handles: the sets, an array of C that this object keeps.
    """

    def __init__(
        self,
        device: Device,
        scope: ResourceScope,
        layouts: Mapping[Dispatch, PipelineLayout],
        places: Mapping[Storage, Place],
    ) -> None:
        """Make them.

        Args:
            device: what runs the dispatches.
            scope: owns the pool and the texel views, but for those of constants.
            layouts: the dispatches, with the layout of the pipeline that each of them runs.
            places: where storages lie.

        Raises:
            DeviceError: memory is exhausted.
        """
        self._device = device
        self._scope = scope
        self._places = places
        self._views = BufferViews(scope)
        self.handles: vk.Handle = None
        if layouts:
            self.handles = self._allocate(layouts)
            self._write(layouts)

    def _allocate(self, layouts: Mapping[Dispatch, PipelineLayout]) -> vk.Handle:
        info = vk.struct(
            "VkDescriptorSetAllocateInfo",
            descriptorPool=self._create_pool(list(layouts)),
            descriptorSetCount=len(layouts),
            pSetLayouts=[layout.set_layout for layout in layouts.values()],
        )
        handles = vk.ffi.new("VkDescriptorSet[]", len(layouts))
        vk.check(vk.lib.vkAllocateDescriptorSets(self._device.handle, info, handles), "allocate descriptor sets")
        return handles

    def _create_pool(self, dispatches: Sequence[Dispatch]) -> vk.Handle:
        words = [binding.texel_words for dispatch in dispatches for binding in dispatch.bindings]
        buffers = words.count(0)
        counts = [(descriptor_type(True), len(words) - buffers), (descriptor_type(False), buffers)]
        sizes = [vk.struct("VkDescriptorPoolSize", type=kind, descriptorCount=count) for kind, count in counts if count]
        info = vk.struct(
            "VkDescriptorPoolCreateInfo", maxSets=len(dispatches), poolSizeCount=len(sizes), pPoolSizes=sizes
        )
        return self._scope.create("DescriptorPool", info, "make a descriptor pool")

    def _write(self, layouts: Mapping[Dispatch, PipelineLayout]) -> None:
        words: list[int] = []
        starts: list[int] = []
        for dispatch in layouts:
            starts.append(len(words))
            for binding in dispatch.bindings:
                place = self._places[binding.storage]
                # Storages are padded to whole vec4s, so a binding may span the vec4 that its last byte is in.
                offset, nbytes = place.offset + binding.offset, max(align(binding.nbytes, 16), 16)
                if binding.texel_words:
                    views = place.buffer.views or self._views
                    words.append(views.view(place.buffer, offset, nbytes, binding.texel_words))
                else:
                    words += (place.buffer.number, offset, nbytes)
        data = vk.ffi.new("uint64_t[]", words)
        write, device, handles = vk.lib.vkUpdateDescriptorSetWithTemplate, self._device.handle, self.handles
        for index, (layout, start) in enumerate(zip(layouts.values(), starts, strict=True)):
            write(device, handles[index], layout.update_template, data + start)
