"""Make PyTorch models ready for mobile GPUs, and run them on any Vulkan device."""
