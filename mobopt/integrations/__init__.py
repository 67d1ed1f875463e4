"""mobopt inside of PyTorch: ``torch.compile`` with a Vulkan device, and nn.Modules that compute there."""
