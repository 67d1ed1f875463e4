from __future__ import annotations

from mobopt.runtimes.vulkan.engine import vk


def test_misuse_of_vulkan_is_collected(watched):
    """The fixture's promise rests on this: a wrong call gives a message."""
    device = watched
    seen = len(device.validation_messages)
    buffer = vk.ffi.new("VkBuffer*")
    vk.lib.vkCreateBuffer(device.handle, vk.struct("VkBufferCreateInfo", size=0, usage=0x20), vk.ffi.NULL, buffer)
    messages = device.validation_messages[seen:]
    assert any("VUID-VkBufferCreateInfo-size" in message for message in messages)
    vk.lib.vkDestroyBuffer(device.handle, buffer[0], vk.ffi.NULL)
    del device._instance.messages[-len(device.validation_messages[seen:]) :]
