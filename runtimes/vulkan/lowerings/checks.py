"""Reasons why a call can't run on the GPU, shared by lowerings."""

from __future__ import annotations

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.engine.tensor import DEVICE_DTYPES

MAX_RANK = 8

OUT_OF_RANGE = "an index is out of range, which torch refuses"


def check_dtypes(call: Node) -> str | None:
    """None, or which tensor of the call has a dtype or a rank that kernels don't take."""
    for tensor in (*call.inputs, *call.outputs):
        if tensor.dtype == torch.complex64:
            return "no decomposition of complex numbers into real ones is known for this call"
        if tensor.dtype not in DEVICE_DTYPES and not _is_wrapped_number(tensor):
            return f"{tensor.dtype} has no form on the device; float32, int32 and bool have"
        if tensor.rank > MAX_RANK:
            return f"a tensor has rank {tensor.rank}; kernels take at most {MAX_RANK}"
    return None


def check_floating(call: Node) -> str | None:
    """As :func:`check_dtypes`, and the first tensor must be floating."""
    reason = check_dtypes(call)
    first = call.inputs[0]
    if reason is None and not first.dtype.is_floating_point:
        return f"{first.dtype} input; the kernel takes floating tensors only"
    return reason


def _is_wrapped_number(tensor: Value) -> bool:
    """A Python float that was made a tensor (tracing does that) is float64 and counts as float32."""
    return tensor.dtype == torch.float64 and tensor.rank == 0 and tensor.elements is not None


def constants_within(indices: Value, size: int, lowest: int) -> bool:
    """Whether indices are computed (then the kernel looks at them), or constants from ``lowest`` to ``size``."""
    if indices.elements is None or indices.numel == 0:
        return True
    low, high = (int(bound) for bound in torch.aminmax(indices.elements))
    return low >= lowest and high < size
