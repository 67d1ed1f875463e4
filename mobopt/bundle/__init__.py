"""Model files of PyTorch's own formats: TorchScript archives (``.pt``) and lite interpreter archives (``.ptl``)."""

from mobopt.bundle.reader import read_bundle
from mobopt.bundle.writer import write_lite, write_torchscript

__all__ = ["read_bundle", "write_lite", "write_torchscript"]
