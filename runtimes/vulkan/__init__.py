"""Mobopt's own runtime for Vulkan devices; :class:`~mobopt.runtimes.vulkan.program.VulkanProgram` is its face."""
