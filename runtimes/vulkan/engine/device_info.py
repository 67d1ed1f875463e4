"""What a Vulkan device is and can do, queried and kept as plain values."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

from mobopt.runtimes.vulkan.engine import matrix_units, vk
from mobopt.runtimes.vulkan.engine.quirks import quirks_of, switches_for, workgroup

# By VkPhysicalDeviceType.
_KINDS = ("other", "integrated", "discrete", "virtual", "cpu")
_PREFERENCE = ("discrete", "integrated", "virtual", "other", "cpu")

_SUBGROUP_OPERATIONS = {
    "subgroup_vote": 0x2,
    "subgroup_arithmetic": 0x4,
    "subgroup_ballot": 0x8,
    "subgroup_shuffle": 0x10,
}
_COMPUTE_STAGE = 0x20
_RELEASE = re.compile(r"\b(\d+(?:\.\d+)+)")


_CHAIN_SHARED_BYTES = 16
"""See ``shaders/glsl/chain_end.glsl``."""


@dataclass(frozen=True)
class DeviceLimits:
    """Limits that plans and lowerings must respect; names follow VkPhysicalDeviceLimits."""

    max_storage_buffer_range: int
    """Bytes of a storage buffer that one binding may span."""
    max_texel_buffer_elements: int
    """Texels (of 1 or 4 components) of one texel buffer."""
    max_push_constants_size: int
    max_compute_work_group_count: tuple[int, int, int]
    max_compute_work_group_size: tuple[int, int, int]
    max_compute_work_group_invocations: int
    max_compute_shared_memory_size: int
    min_storage_buffer_offset_alignment: int
    min_texel_buffer_offset_alignment: int
    max_storage_buffers: int
    """Storage buffers that one shader may bind."""
    max_texel_buffers: int
    """Storage texel buffers that one shader may bind."""
    max_memory_allocation_size: int
    """Bytes of one allocation, and of one buffer."""

    @cached_property
    def binding_alignment(self) -> int:
        """Bytes that the offset of any binding must be a multiple of (at least one vec4)."""
        return max(self.min_storage_buffer_offset_alignment, self.min_texel_buffer_offset_alignment, 16)


@dataclass(frozen=True)
class DeviceInfo:
    """One Vulkan device."""

    index: int
    """Its number in :func:`mobopt.runtimes.vulkan.engine.devices.list_devices`; what MOBOPT_DEVICE may name."""
    name: str
    kind: str
    """``discrete``, ``integrated``, ``virtual``, ``cpu`` or ``other``."""
    vendor_id: int
    device_id: int
    driver: str
    """Name and version of the driver, as it calls itself."""
    driver_version: int
    """As the driver packs it; lavapipe always says 1."""
    api_version: tuple[int, int, int]
    pipeline_cache_uuid: bytes
    driver_uuid: bytes
    limits: DeviceLimits
    features: frozenset[str]
    """Of ``float16 int8 int16 int64 float64 storage16 storage8 texel_formats timestamps subgroup_vote
    subgroup_arithmetic subgroup_ballot subgroup_shuffle matrix_units bfloat16_units device_memory_model``: what the
    device has; and ``ordered_fragments`` of an open one, see ``fragment_order.py``."""
    subgroup_size: int
    memory_bytes: int
    """Size of the largest device-local heap."""
    timestamp_period_ns: float
    """Nanoseconds of one tick of a timestamp; 0 if there are none."""
    cores: int = 0
    """Multiprocessors or compute units that share the work; 0 if the driver doesn't say."""
    driver_id: int = 0
    """VkDriverId; 0 if the driver doesn't say."""
    device_uuid: bytes = b""
    """What tells it from other devices in every API of its driver."""
    matrix_shapes: tuple[matrix_units.Shape, ...] = ()
    """Of products of halves, with float32 sums, by matrix units; none if there are none."""
    bfloat_shapes: tuple[matrix_units.Shape, ...] = ()
    """The same of bfloat16."""
    switches: frozenset[str] = frozenset()
    """Choices that are made otherwise, for what the driver is known to compute wrongly: see ``quirks.py``."""

    @property
    def is_cpu(self) -> bool:
        """Whether this is a driver that computes on the CPU."""
        return self.kind == "cpu"

    def __hash__(self) -> int:
        return hash((self.name, self.driver, self.driver_uuid))

    @cached_property
    def driver_release(self) -> tuple[int, ...]:
        """The numbers of the release that the driver's text names, as in ``llvmpipe Mesa 25.0.7``; none without it."""
        found = _RELEASE.search(self.driver)
        return tuple(map(int, found[1].split("."))) if found else ()

    @property
    def has_unified_memory(self) -> bool:
        """Whether the host and the device share one memory, so that neither reads the other's across a bus."""
        return self.kind in ("cpu", "integrated")

    @property
    def shared_memory_bytes(self) -> int:
        """What a kernel may take of a workgroup's shared memory: if it waits for others by a counter, it holds more."""
        held = _CHAIN_SHARED_BYTES if "device_memory_model" in self.features else 0
        return self.limits.max_compute_shared_memory_size - held

    @property
    def preference(self) -> int:
        """Smaller is better: discrete, integrated, virtual, other, CPU."""
        return _PREFERENCE.index(self.kind)

    def workgroup(self, usual: int) -> int:
        """How many invocations a workgroup has, where any number is right and ``usual`` is best."""
        limits = self.limits
        most = min(limits.max_compute_work_group_invocations, limits.max_compute_work_group_size[0])
        return workgroup(self.switches, usual, most)

    def __str__(self) -> str:
        return f"{self.index}: {self.name} ({self.kind})"


@dataclass(frozen=True)
class _Properties:
    """The chained property structures of a physical device, filled in."""

    core: vk.Handle
    subgroup: vk.Handle
    maintenance3: vk.Handle
    identity: vk.Handle
    driver: vk.Handle


def query_device(instance: vk.Handle, handle: vk.Handle, index: int) -> DeviceInfo:
    """Everything that mobopt wants to know of a physical device."""
    found = _query_properties(handle)
    core = found.core
    features = _features(handle, found)
    shapes = _matrix_shapes(instance, handle, found, features)
    bfloat_shapes = _bfloat_shapes(instance, handle, features) if shapes else ()
    units = {
        name for name, own in (("matrix_units", shapes), ("bfloat16_units", bfloat_shapes)) if matrix_units.SHAPE in own
    }
    return DeviceInfo(
        index=index,
        name=vk.string(core.deviceName),
        kind=_KINDS[core.deviceType] if core.deviceType < len(_KINDS) else "other",
        vendor_id=core.vendorID,
        device_id=core.deviceID,
        driver=_driver_text(found),
        driver_version=core.driverVersion,
        api_version=split_version(core.apiVersion),
        pipeline_cache_uuid=bytes(core.pipelineCacheUUID),
        driver_uuid=bytes(found.identity.driverUUID),
        limits=_limits(found, _largest_buffer(handle, core)),
        features=features | units,
        subgroup_size=found.subgroup.subgroupSize,
        memory_bytes=_device_memory(handle),
        timestamp_period_ns=core.limits.timestampPeriod if "timestamps" in features else 0.0,
        cores=_cores(handle),
        driver_id=found.driver.driverID,
        device_uuid=bytes(found.identity.deviceUUID),
        matrix_shapes=shapes,
        bfloat_shapes=bfloat_shapes,
        switches=switches_for(quirks_of(found.driver.driverID, core.vendorID, core.driverVersion)),
    )


def split_version(version: int) -> tuple[int, int, int]:
    """Major, minor and patch of a packed Vulkan version."""
    return (version >> 22) & 0x7F, (version >> 12) & 0x3FF, version & 0xFFF


def extensions(handle: vk.Handle) -> set[str]:
    """Names of the device extensions of a physical device."""
    count = vk.ffi.new("uint32_t*")
    null = vk.ffi.NULL
    vk.check(vk.lib.vkEnumerateDeviceExtensionProperties(handle, null, count, null), "list device extensions")
    found = vk.ffi.new("VkExtensionProperties[]", max(count[0], 1))
    vk.check(vk.lib.vkEnumerateDeviceExtensionProperties(handle, null, count, found), "list device extensions")
    return {vk.string(found[index].extensionName) for index in range(count[0])}


def compute_queue_family(handle: vk.Handle) -> tuple[int, int] | None:
    """A queue family that computes, without graphics if there is a choice, and its timestamps' valid bits.

    None if no family computes.
    """
    count = vk.ffi.new("uint32_t*")
    vk.lib.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, vk.ffi.NULL)
    families = vk.ffi.new("VkQueueFamilyProperties[]", max(count[0], 1))
    vk.lib.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, families)
    able = [index for index in range(count[0]) if families[index].queueFlags & vk.VK_QUEUE_COMPUTE_BIT]
    if not able:
        return None
    best = min(able, key=lambda index: (families[index].queueFlags & vk.VK_QUEUE_GRAPHICS_BIT == 0, index))
    return best, families[best].timestampValidBits


def _query_properties(handle: vk.Handle) -> _Properties:
    driver = vk.struct("VkPhysicalDeviceDriverProperties")
    identity = vk.struct("VkPhysicalDeviceIDProperties", pNext=driver)
    maintenance3 = vk.struct("VkPhysicalDeviceMaintenance3Properties", pNext=identity)
    subgroup = vk.struct("VkPhysicalDeviceSubgroupProperties", pNext=maintenance3)
    chain = vk.struct("VkPhysicalDeviceProperties2", pNext=subgroup)
    vk.lib.vkGetPhysicalDeviceProperties2(handle, chain)
    return _Properties(_owned(chain, "properties"), subgroup, maintenance3, identity, driver)


# By extension: its property structure, and the fields whose product is the number of cores.
_CORE_COUNTS = {
    "VK_NV_shader_sm_builtins": ("VkPhysicalDeviceShaderSMBuiltinsPropertiesNV", ("shaderSMCount",)),
    "VK_ARM_shader_core_builtins": ("VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM", ("shaderCoreCount",)),
    "VK_AMD_shader_core_properties": (
        "VkPhysicalDeviceShaderCorePropertiesAMD",
        ("shaderEngineCount", "shaderArraysPerEngineCount", "computeUnitsPerShaderArray"),
    ),
}


def _cores(handle: vk.Handle) -> int:
    for extension in _CORE_COUNTS.keys() & extensions(handle):
        name, fields = _CORE_COUNTS[extension]
        properties = vk.struct(name)
        vk.lib.vkGetPhysicalDeviceProperties2(handle, vk.struct("VkPhysicalDeviceProperties2", pNext=properties))
        return math.prod(getattr(properties, field) for field in fields)
    return 0


def _owned(chain: vk.Handle, field: str) -> vk.Handle:
    """A copy of a nested structure that doesn't depend on the life of the chain."""
    value = getattr(chain, field)
    copy = vk.ffi.new(f"{vk.ffi.typeof(value).cname}*")
    copy[0] = value
    return copy


def _driver_text(found: _Properties) -> str:
    name, version = vk.string(found.driver.driverName), vk.string(found.driver.driverInfo)
    packed = ".".join(map(str, split_version(found.core.driverVersion)))
    return f"{name} {version}".strip() or f"driver {packed}"


def _largest_buffer(handle: vk.Handle, core: vk.Handle) -> int:
    """Bytes of a buffer, or more than any device has if the driver doesn't say."""
    if split_version(core.apiVersion) < (1, 3, 0) and "VK_KHR_maintenance4" not in extensions(handle):
        return 2**63
    properties = vk.struct("VkPhysicalDeviceMaintenance4Properties")
    vk.lib.vkGetPhysicalDeviceProperties2(handle, vk.struct("VkPhysicalDeviceProperties2", pNext=properties))
    return int(properties.maxBufferSize)


def _limits(found: _Properties, largest_buffer: int) -> DeviceLimits:
    limits = found.core.limits
    return DeviceLimits(
        max_storage_buffer_range=limits.maxStorageBufferRange,
        max_texel_buffer_elements=limits.maxTexelBufferElements,
        max_push_constants_size=limits.maxPushConstantsSize,
        max_compute_work_group_count=_triple(limits.maxComputeWorkGroupCount),
        max_compute_work_group_size=_triple(limits.maxComputeWorkGroupSize),
        max_compute_work_group_invocations=limits.maxComputeWorkGroupInvocations,
        max_compute_shared_memory_size=limits.maxComputeSharedMemorySize,
        min_storage_buffer_offset_alignment=limits.minStorageBufferOffsetAlignment,
        min_texel_buffer_offset_alignment=limits.minTexelBufferOffsetAlignment,
        max_storage_buffers=limits.maxPerStageDescriptorStorageBuffers,
        max_texel_buffers=limits.maxPerStageDescriptorStorageImages,
        max_memory_allocation_size=min(found.maintenance3.maxMemoryAllocationSize, largest_buffer),
    )


def _triple(values: vk.Handle) -> tuple[int, int, int]:
    return values[0], values[1], values[2]


def _features(handle: vk.Handle, found: _Properties) -> frozenset[str]:
    storage16 = vk.struct("VkPhysicalDevice16BitStorageFeatures")
    storage8 = vk.struct("VkPhysicalDevice8BitStorageFeatures", pNext=storage16)
    small = vk.struct("VkPhysicalDeviceShaderFloat16Int8Features", pNext=storage8)
    model = vk.struct(matrix_units.MEMORY_MODEL_FEATURES, pNext=small)
    chain = vk.struct("VkPhysicalDeviceFeatures2", pNext=model)
    vk.lib.vkGetPhysicalDeviceFeatures2(handle, chain)
    core, subgroup = chain.features, found.subgroup
    # All but the 16-bit structure are core from 1.2 on; an older driver leaves them as they are, zero.
    family = compute_queue_family(handle)
    has = {
        "float16": small.shaderFloat16,
        "int8": small.shaderInt8,
        "int16": core.shaderInt16,
        "int64": core.shaderInt64,
        "float64": core.shaderFloat64,
        "texel_formats": core.shaderStorageImageExtendedFormats,
        "storage16": storage16.storageBuffer16BitAccess,
        "storage8": storage8.storageBuffer8BitAccess,
        "device_memory_model": model.vulkanMemoryModel and model.vulkanMemoryModelDeviceScope,
        "timestamps": family is not None and family[1] > 0 and found.core.limits.timestampPeriod > 0,
    }
    if subgroup.supportedStages & _COMPUTE_STAGE:
        has |= {name: subgroup.supportedOperations & bit for name, bit in _SUBGROUP_OPERATIONS.items()}
    return frozenset(name for name, value in has.items() if value)


def _matrix_shapes(
    instance: vk.Handle, handle: vk.Handle, found: _Properties, features: frozenset[str]
) -> tuple[matrix_units.Shape, ...]:
    """Only with what the shaders need besides: halves, and the memory model of Vulkan 1.2."""
    if split_version(found.core.apiVersion) < (1, 2, 0) or "float16" not in features:
        return ()
    if matrix_units.EXTENSION not in extensions(handle) or not matrix_units.has_matrix_units(handle):
        return ()
    return matrix_units.half_shapes(instance, handle)


def _bfloat_shapes(instance: vk.Handle, handle: vk.Handle, features: frozenset[str]) -> tuple[matrix_units.Shape, ...]:
    """Of a device with matrix units. Shaders take words apart into integers of 16 bits."""
    if "int16" not in features or matrix_units.BFLOAT_EXTENSION not in extensions(handle):
        return ()
    return matrix_units.bfloat_shapes(instance, handle) if matrix_units.has_bfloat_units(handle) else ()


def _device_memory(handle: vk.Handle) -> int:
    memory = vk.ffi.new("VkPhysicalDeviceMemoryProperties*")
    vk.lib.vkGetPhysicalDeviceMemoryProperties(handle, memory)
    heaps = [memory.memoryHeaps[index] for index in range(memory.memoryHeapCount)]
    return max((heap.size for heap in heaps if heap.flags & vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT), default=0)
