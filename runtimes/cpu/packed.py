"""CPU reference of the operators on packed contexts, of every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mobopt.runtimes.cpu.packed_metal import METAL_KERNELS
from mobopt.runtimes.cpu.packed_vulkan import VULKAN_KERNELS
from mobopt.runtimes.cpu.packed_xnnpack import XNNPACK_KERNELS

PACKED_KERNELS: dict[str, Callable[..., Any]] = {**VULKAN_KERNELS, **METAL_KERNELS, **XNNPACK_KERNELS}
"""Implementations by operator name."""
