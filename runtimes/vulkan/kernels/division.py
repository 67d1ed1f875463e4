"""Long reductions in parts: one dimension is cut, the parts are reduced side by side, and a second step joins them.

An invocation that walks a long dimension alone leaves a device idle, adds up rounding errors, and meets drivers' limits
on loops (see ``MAX_ITERATIONS``). Parts are views of the tensor, so nothing is copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, device_costs
from mobopt.runtimes.vulkan.kernels.reduction_kernel import Reduction

# A division pays where so few invocations take so many steps each that most of the device would idle.
_CPU_RESULTS, _CPU_STEPS = 256, 1024


@dataclass(frozen=True)
class Division:
    """A dimension cut into ``parts`` of ``length`` elements and, if ``rest`` isn't 0, a shorter one of ``rest``."""

    dim: int
    length: int
    parts: int
    rest: int = 0

    @property
    def count(self) -> int:
        """How many parts there are in all."""
        return self.parts + (self.rest > 0)

    def pieces(self, tensor: DeviceTensor) -> Iterator[tuple[int, DeviceTensor]]:
        """Views of the tensor with a leading dimension of parts, each with the number of its first part: all parts of
        one length, then the shorter one."""
        stride = tensor.strides[self.dim] * self.length
        for first, parts, length in ((0, self.parts, self.length), (self.parts, 1, self.rest)):
            if length:
                sizes = list(tensor.sizes)
                sizes[self.dim] = length
                yield first, tensor.view((parts, *sizes), (stride, *tensor.strides), tensor.offset + first * stride)


def collapsed(tensor: DeviceTensor, dims: Sequence[int], *, ordered: bool = False) -> DeviceTensor:
    """The same elements with neighbouring runs among ``dims`` in one of them, the others left with size 1.

    ``ordered`` keeps the row-major order of the elements; else only their set stays the same.
    """
    sizes, strides = list(tensor.sizes), list(tensor.strides)
    present = [d for d in dims if sizes[d] > 1]
    if not ordered:
        present.sort(key=lambda d: -abs(strides[d]))
    for outer, inner in pairwise(present):
        if strides[outer] == strides[inner] * sizes[inner]:
            sizes[inner] *= sizes[outer]
            sizes[outer] = 1
    return tensor.view(sizes, strides)


def long_dimension(sizes: Sequence[int], dims: Sequence[int]) -> int:
    """The longest of ``dims``."""
    return max(dims, key=lambda d: sizes[d])


def divide(
    device: DeviceInfo, tensor: DeviceTensor, dims: Sequence[int], reduction: Reduction, *, passes: int = 1
) -> Division | None:
    """How to divide a reduction of ``dims``, or None if one dispatch does it best.

    Args:
        device: decides how many parts it takes to keep it busy.
        tensor: what is reduced, :func:`collapsed`.
        dims: the reduced dimensions.
        reduction: how one dispatch would walk it.
        passes: how often the kernel walks its elements.
    """
    if tensor.numel == 0 or not dims:
        return None
    results = tensor.numel // math.prod(tensor.sizes[d] for d in dims)
    parts = (_cpu_parts if device.is_cpu else _gpu_parts)(device, reduction, results)
    if passes * reduction.steps > USUAL_ITERATIONS:
        parts = max(parts, math.isqrt(reduction.steps))
    dim = long_dimension(tensor.sizes, dims)
    parts = min(parts, tensor.sizes[dim])
    if parts < 2:
        return None
    unit = 4 if reduction.lanes_reduced and abs(tensor.strides[dim]) == 1 else 1
    return _cut(dim, tensor.sizes[dim], parts, unit)


def _cpu_parts(device: DeviceInfo, reduction: Reduction, results: int) -> int:
    busy = results > _CPU_RESULTS or reduction.steps < _CPU_STEPS
    return 1 if busy else math.isqrt(reduction.steps)


def _gpu_parts(device: DeviceInfo, reduction: Reduction, results: int) -> int:
    costs = device_costs(device)
    least = costs.reduction_least_lone_steps if reduction.threads == 1 else costs.reduction_least_steps
    if results > costs.reduction_most_results or reduction.steps < least:
        return 1
    if reduction.threads == 1:
        return math.isqrt(reduction.steps)
    idle = core_count(device) * costs.reduction_invocations_per_core // (reduction.items * reduction.threads)
    return min(reduction.steps // costs.reduction_steps_of_a_part, idle)


def _cut(dim: int, size: int, parts: int, unit: int) -> Division | None:
    """About ``parts`` parts: of equal length if some length nearby divides the size, which saves a dispatch."""
    length = -(-size // (parts * unit)) * unit
    for near in range(length, 2 * length, unit):
        if size % near == 0:
            length = near
            break
    whole, rest = divmod(size, length)
    return Division(dim, length, whole, rest) if whole + (rest > 0) > 1 else None
