"""What matrix units a device offers: VK_KHR_cooperative_matrix, and VK_KHR_shader_bfloat16."""

from __future__ import annotations

from mobopt.runtimes.vulkan.engine import vk

EXTENSION = "VK_KHR_cooperative_matrix"
FEATURES = "VkPhysicalDeviceCooperativeMatrixFeaturesKHR"
MEMORY_MODEL_FEATURES = "VkPhysicalDeviceVulkanMemoryModelFeatures"
BFLOAT_EXTENSION = "VK_KHR_shader_bfloat16"
_QUERY = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"

# The binding is older than the extension, whose structure has the name of another one here that has the same fields:
# three truth values, whether there is the type, whether there are its dot products, and whether units multiply it.
_BFLOAT_FEATURES = "VkPhysicalDevice8BitStorageFeatures"
_BFLOAT_TYPE, _BFLOAT_MATRICES = "storageBuffer8BitAccess", "storagePushConstant8"
_BFLOAT_STRUCTURE_TYPE = _BFLOAT_COMPONENT_TYPE = 1000141000

Shape = tuple[int, int, int]
"""Rows and columns of the sums of a subgroup, and the inner size: M, N and K."""
SHAPE = (16, 16, 16)
"""What shaders are written for: a device that has others alone, as lavapipe of Mesa 26 8 x 8 x 8, counts as without."""


def has_matrix_units(handle: vk.Handle) -> bool:
    """Whether the features are there that shaders for them need, of a device that has the extension."""
    memory_model = vk.struct(MEMORY_MODEL_FEATURES)
    features = vk.struct(FEATURES, pNext=memory_model)
    vk.lib.vkGetPhysicalDeviceFeatures2(handle, vk.struct("VkPhysicalDeviceFeatures2", pNext=features))
    return bool(features.cooperativeMatrix and memory_model.vulkanMemoryModel)


def bfloat_features(chain: vk.Handle) -> vk.Handle:
    """The structure that turns on bfloat16, before a chain of others."""
    return _bfloat_structure(pNext=chain, **{_BFLOAT_TYPE: 1, _BFLOAT_MATRICES: 1})


def has_bfloat_units(handle: vk.Handle) -> bool:
    """Whether the features are there that shaders for bfloat16 need besides, of a device that has both extensions."""
    features = _bfloat_structure()
    vk.lib.vkGetPhysicalDeviceFeatures2(handle, vk.struct("VkPhysicalDeviceFeatures2", pNext=features))
    return bool(getattr(features, _BFLOAT_TYPE) and getattr(features, _BFLOAT_MATRICES))


def _bfloat_structure(**fields: vk.Handle) -> vk.Handle:
    return vk.struct(_BFLOAT_FEATURES, sType=_BFLOAT_STRUCTURE_TYPE, **fields)


def half_shapes(instance: vk.Handle, handle: vk.Handle) -> tuple[Shape, ...]:
    """Shapes of products of halves with float32 sums by a subgroup, of a device that has the extension."""
    return _shapes(instance, handle, vk.VK_COMPONENT_TYPE_FLOAT16_KHR)


def bfloat_shapes(instance: vk.Handle, handle: vk.Handle) -> tuple[Shape, ...]:
    """The same of bfloat16, of a device that has both extensions."""
    return _shapes(instance, handle, _BFLOAT_COMPONENT_TYPE)


def _shapes(instance: vk.Handle, handle: vk.Handle, factors: int) -> tuple[Shape, ...]:
    """Shapes of products of factors of a VkComponentTypeKHR with float32 sums by a subgroup."""
    query = vk.ffi.cast(f"PFN_{_QUERY}", vk.lib.vkGetInstanceProcAddr(instance, _QUERY.encode()))
    count = vk.ffi.new("uint32_t*")
    vk.check(query(handle, count, vk.ffi.NULL), "list shapes of cooperative matrices")
    found = vk.ffi.new("VkCooperativeMatrixPropertiesKHR[]", max(count[0], 1))
    for index in range(count[0]):
        found[index].sType = vk.VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR
    vk.check(query(handle, count, found), "list shapes of cooperative matrices")
    single = vk.VK_COMPONENT_TYPE_FLOAT32_KHR
    return tuple(
        (item.MSize, item.NSize, item.KSize)
        for item in (found[index] for index in range(count[0]))
        if (item.AType, item.BType, item.CType, item.ResultType) == (factors, factors, single, single)
        and item.scope == vk.VK_SCOPE_SUBGROUP_KHR
    )
