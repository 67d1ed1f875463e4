"""Images and volumes at places that a grid names."""

from __future__ import annotations

import math

import torch

from mobopt.ir import Node
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.kernel_access import element_form, local_size, reading, spread, writing
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.shaders.enumerations import LoadMode
from mobopt.shaders.push_constants import GridSamplePush

_TAPS = 16
"""Elements that a place is made of, at most."""


def check_grid(call: Node) -> str | None:
    """Float32: torch's CPU kernels round places to halves where these are given, which moves them."""
    for value in call.inputs:
        if value.dtype != torch.float32:
            return f"{value.dtype} places or images are computed in steps that round, by the CPU's kernel alone"
    return check_dtypes(call)


@lowers("aten::grid_sampler", "aten::grid_sampler_2d", "aten::grid_sampler_3d", check=check_grid)
def grid_sample(plan: Plan, call: Node) -> DeviceTensor:
    """Interpolated between elements of an image, with every rule for what lies outside."""
    image, grid = plan.tensor(call.args[0]), plan.tensor(call["grid"])
    target = plan.result(call.output)
    rank = image.rank - 2
    if not target.numel:
        return target
    places = [(tensor.offset, *tensor.strides) for tensor in (target, image, grid)]
    size = local_size(plan.device, target.numel)
    plan.dispatch(
        "grid_sample",
        [writing(target), reading(image, LoadMode.SINGLES, False), reading(grid, LoadMode.SINGLES, False)],
        spread(-(-math.prod(target.sizes) // size)),
        [
            size,
            rank,
            element_form(image),
            element_form(grid),
            element_form(target),
            call["interpolation_mode"],
            call["padding_mode"],
            int(call["align_corners"]),
        ],
        GridSamplePush(target.sizes, image.sizes[2:], *places),
        iterations=_TAPS * (3 * rank + 1) + 8 * rank,
    )
    return target
