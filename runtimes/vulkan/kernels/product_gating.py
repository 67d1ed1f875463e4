"""Products that store what gates let pass: ``act(gate) * passing`` of a few rows takes no dispatch of its own.

Columns of gates and of what passes them take turns, a vec4 of each (``compile/gates.py``), so that an invocation or its
neighbour has both; the shaders' half is ``shaders/glsl/gates.glsl``.
"""

from __future__ import annotations

from dataclasses import replace

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.gpu_kernels import choose_gpu_kernel
from mobopt.runtimes.vulkan.kernels.product_kernels import use_shared_memory
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.row_kernels import MOST_ROWS, RowKernel

NO_GATED_PRODUCTS = "no-gated-products"
"""The switch by which gates let pass by dispatches of their own."""


def most_gated_rows(device: DeviceInfo, inner: int, columns: int, bits: int, are_halves: bool) -> int:
    """Up to how many rows the kernel that is chosen for a product can store what gates let pass; 0 if none can.

    Args:
        device: where it runs.
        inner: elements of a row.
        columns: of gates and of what passes them.
        bits: of weights that are integers, 8 or 4; else 0.
        are_halves: whether matrix units may take the operands as they lie.
    """
    if NO_GATED_PRODUCTS in device.switches or not use_shared_memory(device):
        return 0
    wide, run = columns // 4, 0 if bits else 8
    shape = ProductShape(1, -(-inner // 4), wide, wide, is_plain=True, bits=bits)
    shape = replace(shape, half_run=run) if are_halves else replace(shape, float_run=run)
    counts = range(1, MOST_ROWS + 1)
    return max(
        (n for n in counts if isinstance(choose_gpu_kernel(device, replace(shape, rows=n)), RowKernel)), default=0
    )
