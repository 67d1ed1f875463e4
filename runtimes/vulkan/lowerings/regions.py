"""Parts of images that regions name."""

from __future__ import annotations

import torch

from mobopt.ir import Node
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.kernel_access import element_form, local_size, reading, spread, writing
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.shaders.enumerations import LoadMode
from mobopt.shaders.push_constants import RoiAlignPush

_MOST_SAMPLES = 16
"""Of a cell along each side; an invocation goes through their square."""


def check_regions(call: Node) -> str | None:
    """Float32, some elements, and a number of samples that no region decides."""
    images, ratio = call.args[0], call["sampling_ratio"]
    for value in call.inputs:
        if value.dtype != torch.float32:
            return f"{value.dtype} images or regions; the kernel takes float32"
    if images.numel == 0:
        return "there is no image to sample"
    if ratio <= 0:
        return f"sampling_ratio {ratio} takes as many samples of a cell as its region is long, which elements decide"
    return f"{ratio} x {ratio} samples of each cell" if ratio > _MOST_SAMPLES else None


@lowers("torchvision::roi_align", check=check_regions)
def roi_align(plan: Plan, call: Node) -> DeviceTensor:
    """Means of samples in the cells of a grid on each region; regions of images that don't exist raise the flag."""
    images, regions = plan.tensor(call.args[0]), plan.tensor(call.args[1])
    target = plan.result(call.output)
    if not target.numel:
        return target
    size, ratio = local_size(plan.device, target.numel), call["sampling_ratio"]
    plan.dispatch(
        "roi_align",
        [
            writing(target),
            reading(images, LoadMode.SINGLES, False),
            reading(regions, LoadMode.SINGLES, False),
            plan.stream.raised_by(),
        ],
        spread(-(-target.numel // size)),
        [size, ratio, element_form(images), element_form(regions), element_form(target), int(call["aligned"])],
        RoiAlignPush(
            sizes=target.sizes,
            image_count=images.sizes[0],
            image_sizes=images.sizes[2:],
            result_offset=target.offset,
            result_strides=target.strides,
            image_offset=images.offset,
            image_strides=images.strides,
            region_offset=regions.offset,
            region_strides=regions.strides,
            region_scale=call["spatial_scale"],
        ),
        iterations=ratio * ratio * 4 + ratio + 6,
    )
    return target
