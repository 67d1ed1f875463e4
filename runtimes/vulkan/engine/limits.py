"""Refuse a plan that exceeds what the device can do, before anything is made, in words that name the operation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine.descriptors import texels
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import MAX_ITERATIONS, Binding, Dispatch, Stream
from mobopt.runtimes.vulkan.engine.tensor import element_type

_ADVICE = "use a smaller input or batch, or another device"


class LimitError(DeviceError):
    """A dispatch exceeds a limit of the device, or loops more often than any driver lets it."""


def exceeded_limit(info: DeviceInfo, sizes: Sequence[int], dtype: torch.dtype) -> str | None:
    """None if a buffer of the device can hold such a tensor, else the limit that it exceeds."""
    needed = -(-math.prod(sizes) // 4) * 4 * element_type(dtype).itemsize
    if needed <= info.limits.max_storage_buffer_range and needed <= info.limits.max_memory_allocation_size:
        return None
    for name, limit in (
        ("maxStorageBufferRange", info.limits.max_storage_buffer_range),
        ("maxMemoryAllocationSize", info.limits.max_memory_allocation_size),
    ):
        if needed > limit:
            what = "x".join(map(str, sizes))
            return f"a tensor of {what} takes {needed} bytes, but the {name} of {info.name} is {limit}"
    return None


def check_limits(info: DeviceInfo, stream: Stream) -> None:
    """Check every dispatch, unless they were checked as they were appended.

    Raises:
        LimitError: one exceeds a limit; the message names the operation, the value and the limit.
    """
    if stream.checked_for is info:
        return
    for operation in stream.operations:
        if isinstance(operation, Dispatch):
            check_dispatch(info, operation)


def check_dispatch(info: DeviceInfo, dispatch: Dispatch) -> None:
    """Check one dispatch.

    Raises:
        LimitError: it exceeds a limit; the message names the operation, the value and the limit.
    """
    name = dispatch.label or dispatch.shader
    if dispatch.iterations > MAX_ITERATIONS:
        raise LimitError(
            f"{name}: an invocation of {dispatch.shader} would loop {dispatch.iterations} times, but drivers end loops "
            f"after {MAX_ITERATIONS}; its lowering must divide the work, please report this"
        )
    limits = info.limits
    for axis, groups, limit in zip("xyz", dispatch.groups, limits.max_compute_work_group_count, strict=True):
        if groups > limit:
            raise _exceeded(info, name, f"{groups} workgroups in {axis}", "maxComputeWorkGroupCount", limit)
    size = len(dispatch.push_constants)
    if size > limits.max_push_constants_size:
        raise _exceeded(
            info, name, f"{size} bytes of push constants", "maxPushConstantsSize", limits.max_push_constants_size
        )
    texel = 0
    for binding in dispatch.bindings:
        if binding.texel_words:
            texel += 1
    if texel > limits.max_texel_buffers:
        raise _exceeded(
            info, name, f"{texel} texel buffers", "maxPerStageDescriptorStorageImages", limits.max_texel_buffers
        )
    buffers = len(dispatch.bindings) - texel
    if buffers > limits.max_storage_buffers:
        raise _exceeded(
            info, name, f"{buffers} storage buffers", "maxPerStageDescriptorStorageBuffers", limits.max_storage_buffers
        )
    alignment, most, most_range = (
        limits.binding_alignment,
        limits.max_memory_allocation_size,
        limits.max_storage_buffer_range,
    )
    for binding in dispatch.bindings:
        fits = (
            texels(binding) <= limits.max_texel_buffer_elements if binding.texel_words else binding.nbytes <= most_range
        )
        if not fits or binding.offset % alignment or binding.storage.nbytes > most:
            _refuse_binding(info, name, binding)


def _refuse_binding(info: DeviceInfo, name: str, binding: Binding) -> None:
    """Say which limit a binding exceeds."""
    limits = info.limits
    tensor = name if binding.storage.name in ("", name) else f"{name}, tensor {binding.storage.name}"
    if binding.offset % limits.binding_alignment:
        raise LimitError(
            f"{tensor}: a binding at byte {binding.offset}, "
            f"but {info.name} needs multiples of {limits.binding_alignment}"
        )
    if binding.storage.nbytes > limits.max_memory_allocation_size:
        raise _exceeded(
            info,
            tensor,
            f"{binding.storage.nbytes} bytes",
            "maxMemoryAllocationSize",
            limits.max_memory_allocation_size,
        )
    if binding.texel_words:
        count = f"{texels(binding)} texels"
        raise _exceeded(info, tensor, count, "maxTexelBufferElements", limits.max_texel_buffer_elements)
    raise _exceeded(info, tensor, f"{binding.nbytes} bytes", "maxStorageBufferRange", limits.max_storage_buffer_range)


def _exceeded(info: DeviceInfo, name: str, value: str, limit_name: str, limit: int) -> LimitError:
    return LimitError(f"{name}: {value}, but the {limit_name} of {info.name} is {limit}; {_ADVICE}")
