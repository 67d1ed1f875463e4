"""Compute pipelines of a device: compiled on every core, shared by executables, kept in the driver's cache on disk."""

from __future__ import annotations

import logging
import os
import struct
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mobopt import shaders
from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.pipeline_cache import cache_path, read_cache, write_cache
from mobopt.runtimes.vulkan.engine.quirks import WHOLE_SHADERS
from mobopt.runtimes.vulkan.engine.resources import ResourceScope
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.engine.threads import shared
from mobopt.shaders.pruning import pruned
from mobopt.shaders.push_constants import CHAIN_END

_LOGGER = logging.getLogger("mobopt.vulkan")
_MOST_THREADS = 16
_MAX_IDLE = 256

BUFFER_WORDS = 3
"""64-bit words of a VkDescriptorBufferInfo."""


class LayoutKey(NamedTuple):
    """What a pipeline layout is made from: which bindings are texel buffers, and the bytes of push constants."""

    texel: tuple[bool, ...]
    push_constants_size: int
    is_chained: bool = False
    """Whether set 1 is what dispatches count in that wait for each other: see ``chains.py``."""


class PipelineKey(NamedTuple):
    """What a pipeline is made from; specialization constants are kept as bytes, four each."""

    shader: str
    specialization: bytes
    layout: LayoutKey
    is_whole: bool = False
    """Whether the driver gets the shader with what its constants rule out."""


@dataclass(frozen=True, eq=False)
class PipelineLayout:
    """A pipeline layout with the layout of its set 0."""

    handle: vk.Handle
    set_layout: vk.Handle
    update_template: vk.Handle
    """Writes a descriptor set from 64-bit words: of each binding in order its buffer, offset and range, or its view."""


def pipeline_key(dispatch: Dispatch, switches: Collection[str], is_chained: bool = False) -> PipelineKey:
    """The pipeline that a dispatch runs by a device's switches, of its shader or of the shader's chained twin."""
    texel = tuple([binding.texel_words > 0 for binding in dispatch.bindings])
    shader, size = dispatch.shader, len(dispatch.push_constants)
    if is_chained:
        shader, size = f"{shader}{shaders.CHAINED}", CHAIN_END
    layout = LayoutKey(texel, size, is_chained)
    return PipelineKey(shader, pack_specialization(dispatch.specialization), layout, WHOLE_SHADERS in switches)


def pack_specialization(values: Sequence[int | float]) -> bytes:
    """Specialization constants 0, 1, 2, ... as bytes: floats as 32-bit floats, ints and bools as 32-bit integers."""
    form = "<" + "".join(["f" if isinstance(value, float) else "I" for value in values])
    return struct.pack(form, *[value if isinstance(value, float) else int(value) & 0xFFFFFFFF for value in values])


class _Modules:
    """Shader modules of pipelines that are made together."""

    def __init__(self, scope: ResourceScope, codes: Mapping[str, bytes]) -> None:
        """``codes`` are the SPIR-V of shaders by their names."""
        self._scope = scope
        self._codes = codes
        self._made: dict[tuple[str, bytes], vk.Handle] = {}

    def of(self, key: PipelineKey) -> vk.Handle:
        """The shader of a pipeline; without what its constants rule out, where the driver would translate that too."""
        code, values = self._codes[key.shader], b"" if key.is_whole else key.specialization
        if (key.shader, values) not in self._made:
            if not key.is_whole:
                code = pruned(code, values)
            info = vk.struct("VkShaderModuleCreateInfo", codeSize=len(code), pCode=code)
            self._made[key.shader, values] = self._scope.create("ShaderModule", info, f"load shader {key.shader!r}")
        return self._made[key.shader, values]


class PipelineStore:
    """Pipelines by what they are made from, each kept while an executable uses it, and the last idle ones after that,
    since the next plan of a model often wants the same."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._scope = device.scope()
        self._layouts: dict[LayoutKey, PipelineLayout] = {}
        self._pipelines: dict[PipelineKey, tuple[ResourceScope, vk.Handle]] = {}
        self._users: dict[PipelineKey, int] = {}
        self._idle: dict[PipelineKey, None] = {}
        """Pipelines that nobody uses, the longest idle first."""
        self._progress_layout: vk.Handle = None
        self._path = cache_path(device.info)
        self._cache = self._create_cache(read_cache(self._path, device.info))
        self._changed = False

    def acquire(self, keys: Iterable[PipelineKey]) -> Mapping[PipelineKey, vk.Handle]:
        """The pipelines of ``keys``; those that don't exist are made together. Give them back with :meth:`release`.

        Raises:
            DeviceError: a shader is unknown, not built or refused by the driver, or needs a feature that is lacking.
        """
        wanted = list(dict.fromkeys(keys))
        with self._device.lock:
            # Held first: the garbage collector may close another executable at any point from here on.
            for key in wanted:
                self._users[key] = self._users.get(key, 0) + 1
                self._idle.pop(key, None)
            try:
                missing = [key for key in wanted if key not in self._pipelines]
                if missing:
                    self._create(missing)
            except BaseException:
                self.release(wanted)
                raise
            return {key: self._pipelines[key][1] for key in wanted}

    def release(self, keys: Iterable[PipelineKey]) -> None:
        """Undo one :meth:`acquire`."""
        with self._device.lock:
            for key in dict.fromkeys(keys):
                self._users[key] -= 1
                if self._users[key] == 0:
                    del self._users[key]
                    if key in self._pipelines:
                        self._idle[key] = None
            while len(self._idle) > _MAX_IDLE:
                oldest = next(iter(self._idle))
                del self._idle[oldest]
                self._pipelines.pop(oldest)[0].close()

    def layout(self, key: LayoutKey) -> PipelineLayout:
        """The layout of a key; made once, kept as long as the device."""
        with self._device.lock:
            if key not in self._layouts:
                self._layouts[key] = self._create_layout(key)
            return self._layouts[key]

    @property
    def progress_layout(self) -> vk.Handle:
        """The layout of set 1 of chained shaders: two storage buffers."""
        with self._device.lock:
            if self._progress_layout is None:
                self._progress_layout = self._create_set_layout((False, False))
            return self._progress_layout

    def close(self) -> None:
        """Save the cache and destroy everything."""
        if self._changed:
            write_cache(self._path, self._cache_data())
            self._changed = False
        for scope, _ in self._pipelines.values():
            scope.close()
        self._pipelines.clear()
        self._idle.clear()
        self._scope.close()

    def _create(self, keys: Sequence[PipelineKey]) -> None:
        """Compile pipelines, each on the next core that is free: some take ten times as long as others."""
        started = time.perf_counter()
        threads = min(os.cpu_count() or 1, _MOST_THREADS, len(keys))
        modules_scope = self._device.scope()
        try:
            codes = {name: self._code(name) for name in {key.shader for key in keys}}
            modules = _Modules(modules_scope, codes)
            infos = [self._pipeline_info(key, modules.of(key)) for key in keys]
            places, results = self._compile(infos, threads)
        finally:
            modules_scope.close()
        for key, place in zip(keys, places, strict=True):
            if place[0] != vk.ffi.NULL:
                scope = self._device.scope()
                scope.adopt("Pipeline", place[0])
                self._pipelines[key] = scope, place[0]
        for result in results:
            vk.check(result, f"compile {len(keys)} compute pipelines ({', '.join(sorted(codes))})")
        self._changed = True
        _LOGGER.debug("%d pipelines made in %.0f ms", len(keys), (time.perf_counter() - started) * 1e3)

    def _compile(self, infos: Sequence[vk.Handle], threads: int) -> tuple[list[vk.Handle], list[int]]:
        """Where ``vkCreateComputePipelines`` has put each handle, null where it failed, and its results.

        Threads only call it: cffi makes a type or a function when it is first named, which ends the process if two
        threads do so at once.
        """
        create, null = vk.lib.vkCreateComputePipelines, vk.ffi.NULL
        places = [vk.ffi.new("VkPipeline*") for _ in infos]

        def compiled(number: int) -> int:
            result: int = create(self._device.handle, self._cache, 1, infos[number], null, places[number])
            return result

        return places, shared(compiled, range(len(infos)), threads)

    def _code(self, name: str) -> bytes:
        try:
            code = shaders.load(name)
            lacking = set(shaders.variants()[name].requires) - self._device.info.features
        except shaders.ShaderError as error:
            raise DeviceError(str(error)) from None
        if lacking:
            raise DeviceError(f"shader {name!r} needs {sorted(lacking)}, which {self._device.info.name} lacks")
        return code

    def _pipeline_info(self, key: PipelineKey, module: vk.Handle) -> vk.Handle:
        count = len(key.specialization) // 4
        entries = [
            vk.struct("VkSpecializationMapEntry", constantID=index, offset=index * 4, size=4) for index in range(count)
        ]
        constants = vk.struct(
            "VkSpecializationInfo",
            mapEntryCount=count,
            pMapEntries=entries,
            dataSize=len(key.specialization),
            pData=key.specialization,
        )
        stage = vk.struct(
            "VkPipelineShaderStageCreateInfo",
            stage=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            module=module,
            pName="main",
            pSpecializationInfo=constants,
        )
        layout = self.layout(key.layout).handle
        return vk.struct("VkComputePipelineCreateInfo", stage=stage, layout=layout)

    def _create_set_layout(self, texels: Sequence[bool]) -> vk.Handle:
        bindings = [
            vk.struct(
                "VkDescriptorSetLayoutBinding",
                binding=index,
                descriptorType=descriptor_type(texel),
                descriptorCount=1,
                stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            )
            for index, texel in enumerate(texels)
        ]
        info = vk.struct("VkDescriptorSetLayoutCreateInfo", bindingCount=len(bindings), pBindings=bindings)
        return self._scope.create("DescriptorSetLayout", info, "make a descriptor set layout")

    def _create_layout(self, key: LayoutKey) -> PipelineLayout:
        set_layout = self._create_set_layout(key.texel)
        sets = [set_layout, self.progress_layout] if key.is_chained else [set_layout]
        ranges = []
        if key.push_constants_size:
            ranges = [
                vk.struct(
                    "VkPushConstantRange", stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT, size=key.push_constants_size
                )
            ]
        info = vk.struct(
            "VkPipelineLayoutCreateInfo",
            setLayoutCount=len(sets),
            pSetLayouts=sets,
            pushConstantRangeCount=len(ranges),
            pPushConstantRanges=ranges,
        )
        handle = self._scope.create("PipelineLayout", info, "make a pipeline layout")
        return PipelineLayout(handle, set_layout, self._create_update_template(key.texel, set_layout))

    def _create_update_template(self, texels: Sequence[bool], set_layout: vk.Handle) -> vk.Handle:
        words = [1 if texel else BUFFER_WORDS for texel in texels]
        entries = [
            vk.struct(
                "VkDescriptorUpdateTemplateEntry",
                dstBinding=index,
                descriptorCount=1,
                descriptorType=descriptor_type(texel),
                offset=8 * sum(words[:index]),
            )
            for index, texel in enumerate(texels)
        ]
        info = vk.struct(
            "VkDescriptorUpdateTemplateCreateInfo",
            descriptorUpdateEntryCount=len(entries),
            pDescriptorUpdateEntries=entries,
            templateType=vk.VK_DESCRIPTOR_UPDATE_TEMPLATE_TYPE_DESCRIPTOR_SET,
            descriptorSetLayout=set_layout,
        )
        return self._scope.create("DescriptorUpdateTemplate", info, "make a descriptor update template")

    def _create_cache(self, saved: bytes) -> vk.Handle:
        info = vk.struct("VkPipelineCacheCreateInfo", initialDataSize=len(saved), pInitialData=saved)
        return self._scope.create("PipelineCache", info, "make a pipeline cache")

    def _cache_data(self) -> bytes:
        size = vk.ffi.new("size_t*")
        device, action = self._device.handle, "read the pipeline cache"
        vk.check(vk.lib.vkGetPipelineCacheData(device, self._cache, size, vk.ffi.NULL), action)
        data = vk.ffi.new("uint8_t[]", max(size[0], 1))
        vk.check(vk.lib.vkGetPipelineCacheData(device, self._cache, size, data), action)
        return bytes(vk.ffi.buffer(data, size[0]))


def descriptor_type(texel: bool) -> int:
    """The Vulkan descriptor type of a binding."""
    kind = vk.VK_DESCRIPTOR_TYPE_STORAGE_TEXEL_BUFFER if texel else vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
    return int(kind)
