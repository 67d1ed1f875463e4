"""What matrix units a device offers: VK_KHR_cooperative_matrix."""

from __future__ import annotations

from mobopt.runtimes.vulkan.engine import vk

EXTENSION = "VK_KHR_cooperative_matrix"
FEATURES = "VkPhysicalDeviceCooperativeMatrixFeaturesKHR"
MEMORY_MODEL_FEATURES = "VkPhysicalDeviceVulkanMemoryModelFeatures"
_QUERY = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"

Shape = tuple[int, int, int]
"""Rows and columns of the sums of a subgroup, and the inner size: M, N and K."""


def has_matrix_units(handle: vk.Handle) -> bool:
    """Whether the features are there that shaders for them need, of a device that has the extension."""
    memory_model = vk.struct(MEMORY_MODEL_FEATURES)
    features = vk.struct(FEATURES, pNext=memory_model)
    vk.lib.vkGetPhysicalDeviceFeatures2(handle, vk.struct("VkPhysicalDeviceFeatures2", pNext=features))
    return bool(features.cooperativeMatrix and memory_model.vulkanMemoryModel)


def half_shapes(instance: vk.Handle, handle: vk.Handle) -> tuple[Shape, ...]:
    """Shapes of products of halves with float32 sums by a subgroup, of a device that has the extension."""
    query = vk.ffi.cast(f"PFN_{_QUERY}", vk.lib.vkGetInstanceProcAddr(instance, _QUERY.encode()))
    count = vk.ffi.new("uint32_t*")
    vk.check(query(handle, count, vk.ffi.NULL), "list shapes of cooperative matrices")
    found = vk.ffi.new("VkCooperativeMatrixPropertiesKHR[]", max(count[0], 1))
    for index in range(count[0]):
        found[index].sType = vk.VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR
    vk.check(query(handle, count, found), "list shapes of cooperative matrices")
    half, single = vk.VK_COMPONENT_TYPE_FLOAT16_KHR, vk.VK_COMPONENT_TYPE_FLOAT32_KHR
    return tuple(
        (item.MSize, item.NSize, item.KSize)
        for item in (found[index] for index in range(count[0]))
        if (item.AType, item.BType, item.CType, item.ResultType) == (half, half, single, single)
        and item.scope == vk.VK_SCOPE_SUBGROUP_KHR
    )
