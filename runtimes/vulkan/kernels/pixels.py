"""Images as the kernels of convolutions read and write them: pixels of whole vec4s of channels."""

from __future__ import annotations

import torch

from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, default_strides
from mobopt.runtimes.vulkan.kernels.copies import copied
from mobopt.runtimes.vulkan.kernels.plan import Plan


def is_copied(tensor: DeviceTensor) -> bool:
    """Whether an image must be copied to become channels_last pixels of whole vec4s, also the last one."""
    pitch = tensor.channel_pitch
    return pitch is None or pitch % 4 != 0 or tensor.offset % 4 != 0 or tensor.storage.capacity % 4 != 0


def whole_vectors(plan: Plan, tensor: DeviceTensor) -> DeviceTensor:
    """The tensor, or a copy of it, as channels_last pixels of whole vec4s."""
    return copied(plan, tensor, default_strides(tensor.sizes, torch.float32)) if is_copied(tensor) else tensor


def pixel_strides(tensor: DeviceTensor) -> tuple[int, int, int]:
    """vec4s from pixel to pixel, row to row and image to image; dense pixels may be counted through as one run."""
    if tensor.channel_pitch is not None:
        pitch = pitch_of(tensor)
        return pitch, tensor.sizes[3] * pitch, tensor.sizes[2] * tensor.sizes[3] * pitch
    batch, _, row, pixel = tensor.strides
    return pixel // 4, row // 4, batch // 4


def pitch_of(tensor: DeviceTensor) -> int:
    """vec4s from pixel to pixel of a channels_last tensor."""
    pitch = tensor.channel_pitch
    assert pitch is not None
    return pitch // 4
