"""The Vulkan instance, and the validation layer's messages."""

from __future__ import annotations

import logging
from typing import Any

from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine import vk

_LOGGER = logging.getLogger("mobopt.vulkan")
_API_VERSION = (1 << 22) | (2 << 12)  # The newest version whose structures are used; devices may be of 1.1.
_VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
_DEBUG_EXTENSION = "VK_EXT_debug_utils"
_PORTABILITY_EXTENSION = "VK_KHR_portability_enumeration"
"""Without it, loaders leave out devices that have Vulkan but for a few parts, such as MoltenVK's."""


class Instance:
    """A Vulkan instance, with the Khronos validation layer if asked for."""

    def __init__(self, validation: bool) -> None:
        self.validation = validation
        self.messages: list[str] = []
        """What the validation layer said, warnings and errors."""
        self.must_stay = False
        """Whether memory of one of its devices is in other hands, so that it must not be destroyed."""
        self._callback: Any = None
        self._messenger: vk.Handle = None
        if validation and _VALIDATION_LAYER not in _layers():
            raise DeviceError(
                f"validation is on, but the layer {_VALIDATION_LAYER} is not installed "
                "(Debian: `apt install vulkan-validationlayers`); install it, or unset MOBOPT_VALIDATION"
            )
        self.handle = self._create()
        if validation:
            self._messenger = self._create_messenger()

    def _create(self) -> vk.Handle:
        """With the extension if the loader has it: asking it first would load every driver once more."""
        result, handle = self._try_to_create(
            [_PORTABILITY_EXTENSION], vk.VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
        )
        if result == vk.VK_ERROR_EXTENSION_NOT_PRESENT:
            result, handle = self._try_to_create([], 0)
        vk.check(result, "start Vulkan")
        return handle

    def _try_to_create(self, extensions: list[str], flags: int) -> tuple[int, vk.Handle]:
        application = vk.struct("VkApplicationInfo", pApplicationName="mobopt", apiVersion=_API_VERSION)
        layers = [_VALIDATION_LAYER] if self.validation else []
        if self.validation:
            extensions = [*extensions, _DEBUG_EXTENSION]
        info = vk.struct(
            "VkInstanceCreateInfo",
            flags=flags,
            pApplicationInfo=application,
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=layers,
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=extensions,
        )
        handle = vk.ffi.new("VkInstance*")
        return vk.lib.vkCreateInstance(info, vk.ffi.NULL, handle), handle[0]

    def _create_messenger(self) -> vk.Handle:
        self._callback = vk.ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT", self._receive)
        info = vk.struct(
            "VkDebugUtilsMessengerCreateInfoEXT",
            messageSeverity=vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT
            | vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
            messageType=vk.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
            pfnUserCallback=self._callback,
        )
        messenger = vk.ffi.new("VkDebugUtilsMessengerEXT*")
        create = self._function("vkCreateDebugUtilsMessengerEXT")
        vk.check(create(self.handle, info, vk.ffi.NULL, messenger), "listen to the validation layer")
        return messenger[0]

    def _receive(self, severity: int, kind: int, data: Any, user: Any) -> int:
        message = vk.string(data.pMessage)
        self.messages.append(message)
        _LOGGER.error("validation: %s", message)
        return 0

    def _function(self, name: str) -> Any:
        return vk.ffi.cast(f"PFN_{name}", vk.lib.vkGetInstanceProcAddr(self.handle, name.encode()))

    def physical_devices(self) -> list[vk.Handle]:
        """Handles of every device that any installed driver offers, in the loader's order."""
        count = vk.ffi.new("uint32_t*")
        vk.check(vk.lib.vkEnumeratePhysicalDevices(self.handle, count, vk.ffi.NULL), "list Vulkan devices")
        handles = vk.ffi.new("VkPhysicalDevice[]", max(count[0], 1))
        vk.check(vk.lib.vkEnumeratePhysicalDevices(self.handle, count, handles), "list Vulkan devices")
        return [handles[index] for index in range(count[0])]

    def close(self) -> None:
        """Destroy it; every device made from it must be closed."""
        if self._messenger is not None:
            self._function("vkDestroyDebugUtilsMessengerEXT")(self.handle, self._messenger, vk.ffi.NULL)
        vk.lib.vkDestroyInstance(self.handle, vk.ffi.NULL)


def _layers() -> set[str]:
    count = vk.ffi.new("uint32_t*")
    vk.check(vk.lib.vkEnumerateInstanceLayerProperties(count, vk.ffi.NULL), "list Vulkan layers")
    layers = vk.ffi.new("VkLayerProperties[]", max(count[0], 1))
    vk.check(vk.lib.vkEnumerateInstanceLayerProperties(count, layers), "list Vulkan layers")
    return {vk.string(layers[index].layerName) for index in range(count[0])}
