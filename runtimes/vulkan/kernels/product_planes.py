"""Images that a convolution reads as the caller gives them: at most four channels, each of which is a plane.

So the first convolution of a network needs no copy in channels_last before it. The shaders' half is
``shaders/glsl/product_planar.glsl``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.convolution_parameters import Convolution
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, device_costs
from mobopt.runtimes.vulkan.kernels.fragment_kernels import FragmentKernel
from mobopt.runtimes.vulkan.kernels.gpu_kernels import SharedKernel
from mobopt.runtimes.vulkan.kernels.matrix_kernels import MatrixKernel
from mobopt.runtimes.vulkan.kernels.product_kernels import ProductKernel, TileKernel
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape

NO_PLANAR_INPUTS = "no-planar-inputs"
"""The switch by which all images are copied to channels_last first."""
_PlanarKernel = SharedKernel | MatrixKernel | FragmentKernel
"""Kernels that can read planes."""
_MOST_CHANNELS = 4
_PLANE_CYCLES = 8.0
"""32 floats of a further plane, beside what a vec4 costs, where workgroups queue for a core: one that has a core to
itself waits for its loads anyway (an H100: ResNet18 at batch 1 takes 6 us less by planes, ResNet50 at batch 8 9 us)."""
_ROUNDED_PLANE_CYCLES = 27.0
"""The same, of floats that become halves in shared memory (an H100: ResNet50 takes 18 us more at batch 8, 119 us at
batch 32, so it copies)."""
_COPY_CYCLES = 100.0
"""32 pixels that are copied, of a core."""
# Straight to registers, on an H200: chosen by hand from times of 11 first layers at batches of 1, 8 and 32.
_PLANES_NANOSECONDS = 3500.0
"""What planes take beyond rows of pixels, however few loads there are."""
_LOAD_NANOSECONDS = 50.0
"""And for each 32 vec4s that a core loads."""
_ROWS_NANOSECONDS = 5300.0
"""The copy that makes rows of pixels, with its dispatch."""
_PIXEL_NANOSECONDS = 0.0056
"""And for each pixel."""


@dataclass(frozen=True)
class Planes:
    """How a kernel reads the planes of an image."""

    rounded: torch.dtype | None = None
    """The halves to which kernels that multiply them may round what they read; None: they may not take it."""


def are_planes(tensor: DeviceTensor) -> bool:
    """Whether an image (batch, C, height, width) lies as the kernels read planes: floats or halves, row-major."""
    return (
        tensor.rank == 4
        and tensor.sizes[1] <= _MOST_CHANNELS
        and tensor.dtype == torch.float32
        and tensor.elements in (torch.float32, torch.float16, torch.bfloat16)
        and tensor.is_contiguous
    )


def reads_planes(device: DeviceInfo, kernel: ProductKernel, shape: ProductShape, channels: int, pixels: int) -> bool:
    """Whether a kernel should read planes: it can, and what its further loads cost is less than a copy, and the
    dispatch for it.

    Args:
        device: where it runs.
        kernel: what is chosen for the product.
        shape: of the product; its inner dimension is a vec4 for each tap.
        channels: of the image.
        pixels: of all images of the batch, which a copy would write.
    """
    if NO_PLANAR_INPUTS in device.switches or not isinstance(kernel, _PlanarKernel):
        return False
    costs, cores = device_costs(device), core_count(device)
    across, down, deep = kernel.groups(shape)
    queue = -(-across * down * deep // cores)
    if isinstance(kernel, FragmentKernel):
        loads = queue * kernel.rows * -(-shape.inner // kernel.parts) / 32
        return _PLANES_NANOSECONDS + _LOAD_NANOSECONDS * loads < _ROWS_NANOSECONDS + _PIXEL_NANOSECONDS * pixels
    loads = (queue - 1) * kernel.group_rows * -(-shape.inner // kernel.parts) / 32
    is_rounded = isinstance(kernel, MatrixKernel) and not kernel.split
    further = loads * (channels - 1) * (_ROUNDED_PLANE_CYCLES if is_rounded else _PLANE_CYCLES)
    copying = pixels / 32 / cores * _COPY_CYCLES + costs.second_dispatch_nanoseconds * costs.cycles_per_nanosecond
    return further < copying


def reads_rows(device: DeviceInfo, kernel: ProductKernel, convolution: Convolution) -> bool:
    """Whether the copy of an image, which a convolution of one group doesn't read as planes, is to be one in rows of
    pixels: see :mod:`mobopt.runtimes.vulkan.kernels.image_rows`. ``kernel`` would be chosen for planes."""
    are_neighbours = convolution.dilation[1] == 1 and convolution.taps[1] > 1
    return are_neighbours and not isinstance(kernel, TileKernel) and NO_PLANAR_INPUTS not in device.switches
