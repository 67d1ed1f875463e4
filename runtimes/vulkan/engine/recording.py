"""Command buffers: recorded once, submitted with one fence that is used again and again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.buffers import Buffer, Place
from mobopt.runtimes.vulkan.engine.code_ahead import emptied
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.hazards import Barrier, GpuOperation
from mobopt.runtimes.vulkan.engine.resources import ResourceScope
from mobopt.runtimes.vulkan.engine.stream import Binding, Copy, Dispatch
from mobopt.runtimes.vulkan.engine.tensor import Storage
from mobopt.shaders.push_constants import NO_LINK, Link

_POLL_SECONDS = 0.01
_WAIT_NANOSECONDS = 200_000_000


class BoundDispatch(NamedTuple):
    """The Vulkan objects of one dispatch."""

    pipeline: vk.Handle
    layout: vk.Handle
    sets: vk.Handle
    """An array of descriptor sets."""
    number: int
    """Of its own among them."""


@dataclass(frozen=True, eq=False)
class Recordable:
    """A run of GPU operations, and all that recording them takes."""

    operations: Sequence[GpuOperation]
    barriers: Sequence[Barrier | None]
    bound: Mapping[Dispatch, BoundDispatch]
    places: Mapping[Storage, Place]
    continues: bool
    """Whether earlier command buffers wrote what this one reads."""
    links: Mapping[Dispatch, bytes]
    """Of dispatches of chained shaders: the push constants that say what they wait for."""
    progress: vk.Handle = None
    """The descriptor set that those count in."""
    ahead: Mapping[int, Sequence[Dispatch]] = field(default_factory=dict)
    """By the number of an operation: dispatches of whose kernels the instructions are read after it."""


@dataclass(frozen=True)
class CopyRegion:
    """Bytes that are copied from one buffer to another: where they start in each, and how many they are."""

    source: int
    target: int
    nbytes: int


class CommandPool:
    """Records command buffers."""

    def __init__(self, device: Device, scope: ResourceScope) -> None:
        self._device = device
        info = vk.struct("VkCommandPoolCreateInfo", queueFamilyIndex=device.queue_family)
        self._handle = scope.create("CommandPool", info, "make a command pool")

    def record(self, run: Recordable, queries: vk.Handle = None) -> vk.Handle:
        """A command buffer of the operations with their barriers.

        Args:
            run: what to record.
            queries: a timestamp query pool; timestamp 0 is written first, and one after each operation.
        """
        commands = self._begin()
        if queries is not None:
            vk.lib.vkCmdResetQueryPool(commands, queries, 0, len(run.operations) + 1)
            vk.lib.vkCmdWriteTimestamp(commands, vk.VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries, 0)
        if run.continues:
            _record_barrier(commands, Barrier(after_writes=True))
        for index, (operation, barrier) in enumerate(zip(run.operations, run.barriers, strict=True)):
            if barrier is not None:
                _record_barrier(commands, barrier)
            if isinstance(operation, Dispatch):
                _record_dispatch(commands, operation, run)
            else:
                _record_copy(commands, operation, run.places)
            for dispatch in run.ahead.get(index, ()):
                _record_empty(commands, dispatch, run)
            if queries is not None:
                vk.lib.vkCmdWriteTimestamp(commands, vk.VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries, index + 1)
        _record_host_barrier(commands)
        vk.check(vk.lib.vkEndCommandBuffer(commands), "record commands")
        return commands

    def record_copy(self, source: Buffer, target: Buffer, regions: Sequence[CopyRegion]) -> vk.Handle:
        """A command buffer that copies bytes, after all earlier commands, and makes them visible to all later ones and
        to the host."""
        commands = self._begin()
        _record_barrier(commands, Barrier(after_writes=True))
        array = vk.ffi.new("VkBufferCopy[]", [(one.source, one.target, one.nbytes) for one in regions])
        vk.lib.vkCmdCopyBuffer(commands, source.handle, target.handle, len(regions), array)
        _record_barrier(commands, Barrier(after_writes=True))
        _record_host_barrier(commands)
        vk.check(vk.lib.vkEndCommandBuffer(commands), "record commands")
        return commands

    def record_fill(self, targets: Sequence[Buffer], word: int) -> vk.Handle:
        """A command buffer that writes a word all over buffers, after earlier commands and before later ones."""
        commands = self._begin()
        _record_barrier(commands, Barrier(after_writes=True))
        for target in targets:
            vk.lib.vkCmdFillBuffer(commands, target.handle, 0, target.nbytes // 4 * 4, word)
        _record_barrier(commands, Barrier(after_writes=True))
        vk.check(vk.lib.vkEndCommandBuffer(commands), "record commands")
        return commands

    def free(self, commands: vk.Handle) -> None:
        """Forget a command buffer that does not run."""
        handles = vk.ffi.new("VkCommandBuffer[]", [commands])
        vk.lib.vkFreeCommandBuffers(self._device.handle, self._handle, 1, handles)

    def _begin(self) -> vk.Handle:
        info = vk.struct("VkCommandBufferAllocateInfo", commandPool=self._handle, commandBufferCount=1)
        handle = vk.ffi.new("VkCommandBuffer*")
        vk.check(vk.lib.vkAllocateCommandBuffers(self._device.handle, info, handle), "allocate a command buffer")
        vk.check(vk.lib.vkBeginCommandBuffer(handle[0], vk.struct("VkCommandBufferBeginInfo")), "record commands")
        return handle[0]


def _record_dispatch(commands: vk.Handle, dispatch: Dispatch, run: Recordable) -> None:
    _record_bound(commands, dispatch, run.bound[dispatch], run.links.get(dispatch), run.progress)


def _record_empty(commands: vk.Handle, dispatch: Dispatch, run: Recordable) -> None:
    """One workgroup of the same kernel, which has no rows to compute, waits for nobody, and is waited for by nobody."""
    link = NO_LINK.pack() if dispatch in run.links else None
    _record_bound(commands, emptied(dispatch), run.bound[dispatch], link, run.progress)


def _record_bound(
    commands: vk.Handle, dispatch: Dispatch, bound: BoundDispatch, link: bytes | None, progress: vk.Handle
) -> None:
    point = vk.VK_PIPELINE_BIND_POINT_COMPUTE
    vk.lib.vkCmdBindPipeline(commands, point, bound.pipeline)
    count, sets = 1, bound.sets + bound.number
    if link is not None:
        count, sets = 2, vk.ffi.new("VkDescriptorSet[]", [sets[0], progress])
    vk.lib.vkCmdBindDescriptorSets(commands, point, bound.layout, 0, count, sets, 0, vk.ffi.NULL)
    for offset, constants in ((0, dispatch.push_constants), (Link.first, link)):
        if constants:
            data, stage = vk.ffi.from_buffer(constants), vk.VK_SHADER_STAGE_COMPUTE_BIT
            vk.lib.vkCmdPushConstants(commands, bound.layout, stage, offset, len(constants), data)
    vk.lib.vkCmdDispatch(commands, *dispatch.groups)


def _record_copy(commands: vk.Handle, copy: Copy, places: Mapping[Storage, Place]) -> None:
    source, target = places[copy.source.storage], places[copy.target.storage]
    region = vk.struct(
        "VkBufferCopy",
        srcOffset=_start(source, copy.source),
        dstOffset=_start(target, copy.target),
        size=copy.source.nbytes,
    )
    vk.lib.vkCmdCopyBuffer(commands, source.buffer.handle, target.buffer.handle, 1, region)


def _start(place: Place, binding: Binding) -> int:
    return place.offset + binding.offset


def _record_barrier(commands: vk.Handle, barrier: Barrier) -> None:
    stages = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | vk.VK_PIPELINE_STAGE_TRANSFER_BIT
    writes = vk.VK_ACCESS_SHADER_WRITE_BIT | vk.VK_ACCESS_TRANSFER_WRITE_BIT
    reads = vk.VK_ACCESS_SHADER_READ_BIT | vk.VK_ACCESS_TRANSFER_READ_BIT
    _record_memory_barrier(commands, stages, stages, writes if barrier.after_writes else 0, reads | writes)


def _record_host_barrier(commands: vk.Handle) -> None:
    """Let the host read what was written, once the fence is signalled."""
    stages = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | vk.VK_PIPELINE_STAGE_TRANSFER_BIT
    writes = vk.VK_ACCESS_SHADER_WRITE_BIT | vk.VK_ACCESS_TRANSFER_WRITE_BIT
    _record_memory_barrier(commands, stages, vk.VK_PIPELINE_STAGE_HOST_BIT, writes, vk.VK_ACCESS_HOST_READ_BIT)


def _record_memory_barrier(commands: vk.Handle, before: int, after: int, flushed: int, visible: int) -> None:
    null = vk.ffi.NULL
    count, memory = (1, _memory_barrier(flushed, visible)) if flushed else (0, null)
    vk.lib.vkCmdPipelineBarrier(commands, before, after, 0, count, memory, 0, null, 0, null)


@cache
def _memory_barrier(flushed: int, visible: int) -> vk.Handle:
    return vk.struct("VkMemoryBarrier", srcAccessMask=flushed, dstAccessMask=visible)


class Submission:
    """A recorded command buffer that can be run many times."""

    def __init__(self, device: Device, commands: vk.Handle, fence: vk.Handle) -> None:
        """Prepare every argument of the calls that :meth:`run` makes.

        Args:
            device: whose queue runs it.
            commands: a recorded command buffer.
            fence: unsignalled; submissions that never run at the same time may share it.
        """
        self._device = device
        self._fence = fence
        self._info = vk.struct("VkSubmitInfo", commandBufferCount=1, pCommandBuffers=[commands])
        self._fences = vk.ffi.new("VkFence[]", [fence])
        # A driver that computes on the CPU needs the cores that polling would burn.
        self._poll_seconds = 0.0 if device.info.is_cpu else _POLL_SECONDS
        self._submit = vk.lib.vkQueueSubmit
        self._status = vk.lib.vkGetFenceStatus
        self._reset = vk.lib.vkResetFences
        self._not_ready = vk.VK_NOT_READY
        self._is_pending = False

    def run(self) -> None:
        """Submit, and wait until the device is done.

        Raises:
            DeviceError: the device is lost, or out of memory.
        """
        try:
            self.begin()
            self.finish()
        finally:
            self.settle()

    def begin(self) -> None:
        """Submit; :meth:`finish` or :meth:`settle` comes next.

        Raises:
            DeviceError: the device is lost, or out of memory.
        """
        device = self._device
        self._is_pending = True
        with device.lock:
            result = self._submit(device.queue, 1, self._info, self._fence)
        if result < 0:
            vk.check(result, f"run on {device.info.name}")

    def finish(self, polls: bool = True) -> None:
        """Wait until the device is done.

        Args:
            polls: whether to poll for a short while, which costs this thread the least time, and takes the
                interpreter's lock from others again and again; or to sleep.

        Raises:
            DeviceError: the device is lost, or out of memory.
        """
        self._wait(self._poll_seconds if polls else 0.0)
        self._is_pending = False
        self._reset(self._device.handle, 1, self._fences)

    def settle(self) -> None:
        """See that nothing runs, also after an error or an interrupt: the fence, and the memory, must not be left to
        commands that still do."""
        if self._is_pending:
            device = self._device
            with device.lock:
                vk.lib.vkQueueWaitIdle(device.queue)
            self._is_pending = False
            self._reset(device.handle, 1, self._fences)

    def _wait(self, poll_seconds: float) -> None:
        """Poll for so long, then sleep."""
        handle, fence, not_ready = self._device.handle, self._fence, self._not_ready
        result = not_ready
        deadline = time.perf_counter() + poll_seconds
        while result == not_ready and time.perf_counter() < deadline:
            result = self._status(handle, fence)
        while result in (not_ready, vk.VK_TIMEOUT):
            # Short waits, so that Ctrl-C is heard.
            result = vk.lib.vkWaitForFences(handle, 1, self._fences, 1, _WAIT_NANOSECONDS)
        if result < 0:
            vk.check(result, f"wait for {self._device.info.name}")


def create_fence(scope: ResourceScope) -> vk.Handle:
    """An unsignalled fence."""
    return scope.create("Fence", vk.struct("VkFenceCreateInfo"), "make a fence")


def submit_and_wait(device: Device, scope: ResourceScope, commands: vk.Handle) -> None:
    """Run a command buffer once."""
    Submission(device, commands, create_fence(scope)).run()


def fill(device: Device, targets: Sequence[Buffer], word: int) -> None:
    """Write a word all over buffers that nothing on the device uses now.

    Raises:
        DeviceError: the device failed.
    """
    scope = device.scope()
    try:
        submit_and_wait(device, scope, CommandPool(device, scope).record_fill(targets, word))
    finally:
        scope.close()
