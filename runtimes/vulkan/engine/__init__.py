"""Vulkan itself: devices, memory, pipelines, recorded commands. It knows no operator."""
