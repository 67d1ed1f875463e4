"""Copies between layouts and dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from mobopt.runtimes.vulkan.engine.tensor import (
    DeviceTensor,
    contiguous_strides,
    default_strides,
    storage_type,
    word_type,
)
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute_into
from mobopt.runtimes.vulkan.kernels.pointwise_program import ProgramBuilder


def strided_copy(plan: Plan, source: DeviceTensor, target: DeviceTensor, *, fresh: bool = False) -> None:
    """Copy ``source``, broadcast to the target's sizes and converted to its dtype, into ``target``.

    ``fresh`` says that nothing but the target lives in its storage, so that its padding may be overwritten.
    """
    builder = ProgramBuilder()
    compute_into(plan, builder, builder.tensor(source), target, fresh=fresh)


def copied(
    plan: Plan, tensor: DeviceTensor, strides: Sequence[int] | None = None, dtype: torch.dtype | None = None
) -> DeviceTensor:
    """A copy with other strides; without them, in the default layout. Its elements are those of ``dtype``; without one,
    of the tensor's own type."""
    elements = tensor.storage.elements if dtype is None else storage_type(dtype)
    target = plan.empty(tensor.sizes, elements if dtype is None else dtype, strides, elements)
    strided_copy(plan, tensor, target, fresh=True)
    return replace(target, dtype=tensor.dtype) if dtype is None else target


def in_words(plan: Plan, tensor: DeviceTensor) -> DeviceTensor:
    """The tensor itself if its elements take 32 bits, else a copy as float32 or int32: for kernels that know
    no others."""
    return tensor if tensor.has_words else copied(plan, tensor, dtype=word_type(tensor.dtype))


def as_contiguous(plan: Plan, tensor: DeviceTensor) -> DeviceTensor:
    """The tensor itself if it is dense in row-major order, else a copy that is."""
    return tensor if tensor.is_contiguous else copied(plan, tensor, contiguous_strides(tensor.sizes))


def as_channels_last(plan: Plan, tensor: DeviceTensor, aligned: bool = True) -> DeviceTensor:
    """The 4-D tensor itself if its pixels are dense runs of channels (and, if ``aligned``, vec4-aligned), else a copy
    that is."""
    pitch = tensor.channel_pitch
    if pitch is not None and (not aligned or (pitch % 4 == 0 and tensor.offset % 4 == 0)):
        return tensor
    return copied(plan, tensor, default_strides(tensor.sizes, torch.float32))
