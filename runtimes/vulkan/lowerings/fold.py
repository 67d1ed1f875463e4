"""Windows laid over an image, and added up where they overlap."""

from __future__ import annotations

from functools import partial

from mobopt.ir import Node
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.loops import loop_iterations
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.space_kernel import as_volume, run_space_kernel
from mobopt.runtimes.vulkan.lowerings.checks import check_floating
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.shaders.push_constants import PoolPush


def check_fold(call: Node) -> str | None:
    """Floats, in windows of few enough taps for one dispatch."""
    if loop_iterations(call["kernel_size"]) > USUAL_ITERATIONS:
        return f"windows of {call['kernel_size']} are too large for the loops of one dispatch"
    return check_floating(call)


@lowers("aten::col2im", check=check_fold)
def fold(plan: Plan, call: Node) -> DeviceTensor:
    """``[N, C * taps, windows]``, or without N, to ``[N, C, H, W]``."""
    source, target = plan.tensor(call.args[0]), plan.result(call.output)
    _append(plan, source, target, *(tuple(call[name]) for name in ("kernel_size", "dilation", "padding", "stride")))
    return target


@replayable
def _append(
    plan: Plan,
    source: DeviceTensor,
    target: DeviceTensor,
    taps: tuple[int, int],
    gap: tuple[int, int],
    pad: tuple[int, int],
    step: tuple[int, int],
) -> None:
    volume = as_volume(target, 2)
    channels, count = volume.sizes[1], taps[0] * taps[1]
    high, wide = (
        (size + 2 * pad[d] - gap[d] * (taps[d] - 1) - 1) // step[d] + 1 for d, size in enumerate(volume.sizes[3:])
    )
    batch = source.strides[0] if source.rank == 3 else 0
    of_row, of_window = source.strides[-2:]
    windows = source.view(
        (volume.sizes[0], channels, count, high, wide),
        (batch, count * of_row, of_row, wide * of_window, of_window),
    )
    push = partial(PoolPush, extent=(1, high, wide), step=(1, *step), pad=(0, *pad), gap=(1, *gap), divisor=0)
    run_space_kernel(plan, "fold", windows, [volume], taps, push, iterations=loop_iterations(taps))
