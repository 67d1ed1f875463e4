"""Steps without barriers between them: a dispatch waits by a counter for the workgroups of those before it.

The kernels are the variants whose name ends with ``_chained``; ``shaders/glsl/chain_end.glsl`` says how they wait, and
:attr:`mobopt.runtimes.vulkan.engine.stream.Stream.chained_workgroups` when they may.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from mobopt import shaders
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.buffers import MemoryUse, allocate_buffer
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.hazards import Barrier, GpuOperation, Location, reads_rewritten
from mobopt.runtimes.vulkan.engine.pipelines import PipelineStore
from mobopt.runtimes.vulkan.engine.recording import fill
from mobopt.runtimes.vulkan.engine.resources import ResourceScope
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.engine.tensor import Storage
from mobopt.shaders.push_constants import NO_LINK, Link

_MOST_ARRIVALS = 1 << 31
_WORD_BYTES = 16


@dataclass(frozen=True)
class Chained:
    """A run of operations: what each waits for."""

    barriers: Sequence[Barrier | None]
    links: Sequence[Link]


def may_chain(dispatch: Dispatch, most_workgroups: int) -> bool:
    """Whether a dispatch has a chained variant, and not more workgroups than are worth it."""
    chained = shaders.variants().get(f"{dispatch.shader}{shaders.CHAINED}")
    if chained is None or any(binding.texel_words for binding in dispatch.bindings):
        return False
    return math.prod(dispatch.groups) <= most_workgroups


def plan_chain(
    operations: Sequence[GpuOperation],
    barriers: Sequence[Barrier | None],
    is_chained: Callable[[GpuOperation], bool],
    locate: Callable[[Storage], Location],
) -> Chained:
    """Let counters stand for barriers that chained dispatches alone are on both sides of.

    A dispatch waits for all arrivals before it, so the order is that of the barriers. Those of the group before it are
    the only ones that write or read anything while it waits for them alone. So it may empty its core's cache as soon as
    all others have arrived, unless they read what they write for it, too.

    Args:
        operations: of one submission.
        barriers: what they need, in order; see :func:`mobopt.runtimes.vulkan.engine.hazards.plan_barriers`.
        is_chained: whether an operation runs a chained variant.
        locate: where storages lie.
    """
    groups = _groups(operations, barriers, is_chained)
    waits = [False, *(earlier.is_chained and later.is_chained for earlier, later in pairwise(groups))]
    last = max((number for number, does in enumerate(waits) if does), default=-1)
    # The last ones arrive too, for the counter is zero again when all have.
    arriving = [
        group.workgroups if number == last or any(waits[number + 1 : number + 2]) else 0
        for number, group in enumerate(groups)
    ]
    in_all = sum(arriving)
    if not 0 < in_all < _MOST_ARRIVALS:
        return Chained(barriers, [NO_LINK] * len(operations))
    planned, links, settled, before = list(barriers), [], 0, 0
    for number, (group, does_wait, arrivals) in enumerate(zip(groups, waits, arriving, strict=True)):
        if does_wait and reads_rewritten(group.operations, groups[number - 1].operations, locate):
            settled = before
        waited = (settled, before) if does_wait else (0, 0)
        links += [Link(*waited, in_all if arrivals else 0)] * len(group.places)
        settled, before = before, before + arrivals
        start = group.places.start
        if does_wait:
            planned[start] = None
        elif planned[start] is not None:
            # Those that were left out flushed writes, which this one does for them.
            planned[start] = Barrier(after_writes=True)
    return Chained(planned, links)


@dataclass(frozen=True)
class _Group:
    """Operations with no barrier between them."""

    places: range
    operations: Sequence[GpuOperation]
    is_chained: bool
    workgroups: int


def _groups(
    operations: Sequence[GpuOperation],
    barriers: Sequence[Barrier | None],
    is_chained: Callable[[GpuOperation], bool],
) -> list[_Group]:
    starts = [index for index, barrier in enumerate(barriers) if barrier is not None or index == 0]
    groups = []
    for start, end in zip(starts, [*starts[1:], len(operations)], strict=True):
        group = operations[start:end]
        workgroups = sum(math.prod(operation.groups) for operation in group if isinstance(operation, Dispatch))
        groups.append(_Group(range(start, end), group, all(map(is_chained, group)), workgroups))
    return groups


class Progress:
    """The counter of a lane, and whether a workgroup waited for it in vain."""

    def __init__(self, device: Device, scope: ResourceScope) -> None:
        """Allocate it in ``scope``.

        Raises:
            DeviceError: memory is exhausted.
        """
        self._device = device
        self._arrived = allocate_buffer(device, scope, _WORD_BYTES, MemoryUse.DEVICE)
        self._overdue = allocate_buffer(device, scope, _WORD_BYTES, MemoryUse.DOWNLOAD)
        self._view = torch.frombuffer(self._overdue.mapped, dtype=torch.int32, count=1)
        self.reset()
        self.descriptor_set = self._describe(scope)

    def is_overdue(self) -> bool:
        """Whether the results of a run that has ended are not to be used."""
        return bool(self._view.item())

    def reset(self) -> None:
        """Be ready for a run; nothing runs now."""
        self._view.zero_()
        fill(self._device, [self._arrived], 0)

    def _describe(self, scope: ResourceScope) -> vk.Handle:
        kind = vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
        size = vk.struct("VkDescriptorPoolSize", type=kind, descriptorCount=2)
        info = vk.struct("VkDescriptorPoolCreateInfo", maxSets=1, poolSizeCount=1, pPoolSizes=[size])
        pool = scope.create("DescriptorPool", info, "make a descriptor pool")
        layout = self._device.shared(PipelineStore).progress_layout
        wanted = vk.struct(
            "VkDescriptorSetAllocateInfo", descriptorPool=pool, descriptorSetCount=1, pSetLayouts=[layout]
        )
        sets = vk.ffi.new("VkDescriptorSet[]", 1)
        vk.check(vk.lib.vkAllocateDescriptorSets(self._device.handle, wanted, sets), "allocate descriptor sets")
        writes = vk.ffi.new("VkWriteDescriptorSet[]", 2)
        ranges = vk.ffi.new("VkDescriptorBufferInfo[]", 2)
        for index, buffer in enumerate((self._arrived, self._overdue)):
            ranges[index] = (buffer.handle, 0, _WORD_BYTES)
            write = writes[index]
            write.sType, write.dstSet, write.dstBinding = vk.VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, sets[0], index
            write.descriptorCount, write.descriptorType, write.pBufferInfo = 1, kind, ranges + index
        vk.lib.vkUpdateDescriptorSets(self._device.handle, 2, writes, 0, vk.ffi.NULL)
        return sets[0]
