"""Copies that are not part of a plan: between the host and memory that it does not see, and between arrays."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.buffers import Buffer, MemoryUse, allocate_buffer
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.recording import CommandPool, CopyRegion, Submission, create_fence
from mobopt.runtimes.vulkan.engine.resources import ResourceScope

_MIN_STAGING_BYTES = 1 << 16
_MAX_KEPT_BYTES = 64 << 20
_MAX_RECORDED = 16
"""Copies for which a way keeps recorded commands; those not used for longest go first."""
_MAX_RECORDED_REGIONS = 16
"""Copies of more regions are recorded each time."""


@dataclass(eq=False)
class _Way:
    """What one transfer at a time needs."""

    scope: ResourceScope
    pool: CommandPool
    fence: vk.Handle
    staging: dict[MemoryUse, tuple[ResourceScope, Buffer]]
    recorded: OrderedDict[tuple[Buffer, Buffer, tuple[CopyRegion, ...]], tuple[vk.Handle, Submission]] = field(
        default_factory=OrderedDict
    )
    """By what is copied; a buffer that was freed is never asked for again."""


class Transfers:
    """Copies of a device's memory: ``device.shared(Transfers)``. Each is done when its call returns."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._idle: list[_Way] = []
        self._ways: list[_Way] = []
        self.uploads = 0
        """How many copies from the host there have been."""
        self.downloads = 0
        """How many copies to the host there have been."""

    def upload(self, source: torch.Tensor, target: Buffer, offset: int) -> None:
        """Write contiguous elements to a buffer, ``offset`` bytes from its start."""
        self.uploads += 1
        if target.mapped is not None:
            _flat(target, source.dtype, source.numel(), offset).copy_(source.reshape(-1))
            return
        way = self._take()
        try:
            staging = self._staging(way, MemoryUse.UPLOAD, source.nbytes)
            _flat(staging, source.dtype, source.numel(), 0).copy_(source.reshape(-1))
            self._run(way, staging, target, [CopyRegion(0, offset, source.nbytes)])
        finally:
            self._give_back(way)

    def download(self, source: Buffer, offset: int, dtype: torch.dtype, count: int) -> torch.Tensor:
        """A new tensor with ``count`` elements of a buffer, from ``offset`` bytes on."""
        self.downloads += 1
        if source.mapped is not None:
            return _flat(source, dtype, count, offset).clone()
        way = self._take()
        try:
            nbytes = count * dtype.itemsize
            staging = self._staging(way, MemoryUse.DOWNLOAD, nbytes)
            self._run(way, source, staging, [CopyRegion(offset, 0, nbytes)])
            return _flat(staging, dtype, count, 0).clone()
        finally:
            self._give_back(way)

    def copy(self, source: Buffer, target: Buffer, regions: Sequence[CopyRegion]) -> None:
        """Copy bytes on the device."""
        way = self._take()
        try:
            self._run(way, source, target, regions)
        finally:
            self._give_back(way)

    def close(self) -> None:
        """Give everything back."""
        for way in self._ways:
            for scope, _ in way.staging.values():
                scope.close()
            way.scope.close()
        self._ways.clear()
        self._idle.clear()

    def _take(self) -> _Way:
        with self._device.lock:
            if self._idle:
                return self._idle.pop()
            scope = self._device.scope()
            try:
                way = _Way(scope, CommandPool(self._device, scope), create_fence(scope), {})
            except BaseException:
                scope.close()
                raise
            self._ways.append(way)
            return way

    def _give_back(self, way: _Way) -> None:
        """Let the next transfer have it, without large buffers."""
        for use, (scope, buffer) in list(way.staging.items()):
            if buffer.nbytes > _MAX_KEPT_BYTES:
                scope.close()
                del way.staging[use]
        self._idle.append(way)

    def _staging(self, way: _Way, use: MemoryUse, nbytes: int) -> Buffer:
        """A buffer of at least so many bytes."""
        if use in way.staging:
            scope, buffer = way.staging[use]
            if buffer.nbytes >= nbytes:
                return buffer
            scope.close()
            del way.staging[use]
        scope = self._device.scope()
        try:
            buffer = allocate_buffer(self._device, scope, max(nbytes, _MIN_STAGING_BYTES), use)
        except BaseException:
            scope.close()
            raise
        way.staging[use] = scope, buffer
        return buffer

    def _run(self, way: _Way, source: Buffer, target: Buffer, regions: Sequence[CopyRegion]) -> None:
        if len(regions) <= _MAX_RECORDED_REGIONS:
            self._recorded(way, source, target, tuple(regions)).run()
            return
        commands = way.pool.record_copy(source, target, regions)
        try:
            Submission(self._device, commands, way.fence).run()
        finally:
            way.pool.free(commands)

    def _recorded(self, way: _Way, source: Buffer, target: Buffer, regions: tuple[CopyRegion, ...]) -> Submission:
        """The commands of a copy, which is often made again: arrays of one size take turns in a few buffers."""
        key = source, target, regions
        found = way.recorded.get(key)
        if found is None:
            while len(way.recorded) >= _MAX_RECORDED:
                way.pool.free(way.recorded.popitem(last=False)[1][0])
            commands = way.pool.record_copy(source, target, regions)
            found = way.recorded[key] = commands, Submission(self._device, commands, way.fence)
        else:
            way.recorded.move_to_end(key)
        return found[1]


def _flat(buffer: Buffer, dtype: torch.dtype, count: int, offset: int) -> torch.Tensor:
    """Elements of a mapped buffer, shared."""
    if not count:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(buffer.mapped, dtype=dtype, count=count, offset=offset)
