"""The largest elements of windows, of halves that stand for float32: ``pool_halves.comp`` compares them as they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.kernel_access import element_form, local_size, reads_texels, spread, writing
from mobopt.runtimes.vulkan.kernels.loops import loop_iterations
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.space_kernel import offset_and_strides
from mobopt.shaders.enumerations import ElementForm
from mobopt.shaders.push_constants import SpacePush

_RUN = 8
"""Channels that an invocation reads at once."""


def compares_halves(device: DeviceInfo, source: DeviceTensor, target: DeviceTensor) -> bool:
    """Whether a device has the kernel, and 5-D tensors lie as it takes them: eight channels side by side."""
    if "float16" not in device.features or reads_texels(device):
        return False
    return source.sizes[1] % _RUN == 0 and all(map(_lies_in_runs, (source, target)))


def _lies_in_runs(tensor: DeviceTensor) -> bool:
    """Whether eight halves that stand for float32 lie side by side wherever a run of channels begins. Those of a tensor
    of float16 are for the other kernel: here subnormal ones may be flushed."""
    steps = (tensor.offset, *(tensor.strides[d] for d in (0, 2, 3, 4) if tensor.sizes[d] > 1))
    is_rounded = element_form(tensor) == ElementForm.ROUNDED
    return is_rounded and tensor.strides[1] == 1 and all(step % _RUN == 0 for step in steps)


def append_pool_of_halves(
    plan: Plan,
    source: DeviceTensor,
    target: DeviceTensor,
    kernel: Sequence[int],
    push: Callable[..., SpacePush],
) -> None:
    """Append the dispatch.

    Args:
        plan: where it goes.
        source: (batch, channels, depth, height, width).
        target: likewise.
        kernel: sizes of the window, which has no gaps, in three dimensions.
        push: makes the push constants of what all kernels on volumes have.
    """
    invocations = target.numel // _RUN
    if invocations == 0:
        return
    size = local_size(plan.device, invocations)
    batch, channels, *space = target.sizes
    plan.dispatch(
        "pool_halves",
        (writing(target), bind(source)),
        spread(-(-invocations // size)),
        (size, *kernel),
        push(batch, channels, space, offset_and_strides(source), offset_and_strides(target)),
        iterations=loop_iterations(kernel),
    )
