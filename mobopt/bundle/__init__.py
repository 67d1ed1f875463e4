"""Model files of PyTorch's own formats: TorchScript archives (``.pt``) and lite interpreter archives (``.ptl``)."""

from mobopt.bundle.info import BundleInfo, ContextInfo, MethodInfo, RecordInfo, describe_bundle
from mobopt.bundle.reader import read_bundle
from mobopt.bundle.writer import write_lite, write_torchscript

__all__ = [
    "BundleInfo",
    "ContextInfo",
    "MethodInfo",
    "RecordInfo",
    "describe_bundle",
    "read_bundle",
    "write_lite",
    "write_torchscript",
]
