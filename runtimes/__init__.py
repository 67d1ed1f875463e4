"""What runs a Program: straight lines for devices (``specialize``), and the runtimes for the CPU and for Vulkan."""
