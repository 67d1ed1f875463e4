"""A call that is submitted before the host has written its inputs: its first dispatch waits until the host rings.

A GPU takes 8 to 13 us from a submission to its first dispatch (H200), and a host takes as long to write an image over
the bus. With a doorbell both happen at the same time. It is one workgroup that polls a word of the memory that the host
writes inputs to; what reads them waits for it as for any dispatch, by a counter or a barrier.

Two things it takes that Vulkan doesn't promise, so it is used where they are known (``doorbell_names`` in
``device_costs.toml``): that a dispatch which runs sees what is written meanwhile, and that what was written before the
word is there when the word is. NVIDIA's own NCCL, whose kernels poll for what comes over the bus, relies on both from
compute capability 9.0 on where the CPU has no other way to the GPU than the bus, as x86 (``ncclTopoNeedFlush``).

A host that doesn't ring within a second, as one that was stopped, finds the call given up, and computes anew.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.buffers import MemoryUse, Place, allocate_buffer
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.hazards import Barrier, GpuOperation
from mobopt.runtimes.vulkan.engine.resources import ResourceScope
from mobopt.runtimes.vulkan.engine.staging import StagedStream
from mobopt.runtimes.vulkan.engine.stream import MAX_ITERATIONS, Binding, Dispatch, HostCall, HostTensor, storages
from mobopt.runtimes.vulkan.engine.tensor import Storage, StorageKind
from mobopt.shaders.push_constants import DoorbellPush

_WORD_BYTES = 16
_MOST_POLLS = 1 << 19
"""An H200 has given up when a host rings after a second. Dispatches that wait for this one by a counter poll longer."""


@dataclass(frozen=True)
class DoorbellPlan:
    """The dispatch that waits, and where in the first segment of a plan it is waited for."""

    dispatch: Dispatch
    first_reader: int
    """The number of the first operation that reads what the host writes."""

    def before(
        self, operations: Sequence[GpuOperation], barriers: Sequence[Barrier | None]
    ) -> tuple[list[GpuOperation], list[Barrier | None]]:
        """The operations of the segment and their barriers, with the one that waits."""
        planned = [None, *barriers]
        planned[1 + self.first_reader] = Barrier(after_writes=True)
        return [self.dispatch, *operations], planned


def plan_doorbell(device: DeviceInfo, staged: StagedStream, least_bytes: int | None) -> DoorbellPlan | None:
    """The doorbell of a plan; None if it needs none.

    Args:
        device: which polls.
        staged: the plan.
        least_bytes: how much the host writes for a call, if there is to be one; None: never.
    """
    written = [tensor for tensor in staged.inputs if not isinstance(tensor, HostTensor)]
    written = [tensor for tensor in written if tensor.storage not in staged.bound_inputs.values()]
    nbytes = sum(tensor.used_bytes for tensor in written)
    if least_bytes is None or not written or nbytes < least_bytes:
        return None
    inputs = {tensor.storage for tensor in written}
    for number, operation in enumerate(staged.operations):
        if isinstance(operation, HostCall):
            return None  # what comes before it doesn't need the inputs, and the host needs what comes before it
        if any(storage in inputs for storage, _, _ in storages(operation)):
            return DoorbellPlan(_dispatch(device), number)
    return None


def _dispatch(device: DeviceInfo) -> Dispatch:
    bell = Storage(_WORD_BYTES, StorageKind.INPUT, name="bell", elements=torch.int32)
    late = Storage(_WORD_BYTES, StorageKind.OUTPUT, name="late", elements=torch.int32)
    bindings = (Binding(bell, 0, _WORD_BYTES), Binding(late, 0, _WORD_BYTES, reads=False, writes=True))
    polls = MAX_ITERATIONS // 2 if device.is_cpu else _MOST_POLLS  # half: it must be the shader that ends the loop
    return Dispatch("doorbell", bindings, (1, 1, 1), polls, (), DoorbellPush(polls).pack(), "wait for the host")


class Doorbell:
    """What a lane rings."""

    def __init__(self, device: Device, scope: ResourceScope, plan: DoorbellPlan) -> None:
        """Allocate it in ``scope``.

        Raises:
            DeviceError: memory is exhausted.
        """
        bell, late = (binding.storage for binding in plan.dispatch.bindings)
        buffers = [allocate_buffer(device, scope, _WORD_BYTES, use) for use in (MemoryUse.UPLOAD, MemoryUse.DOWNLOAD)]
        self.plan = plan
        self.places: Mapping[Storage, Place] = {
            storage: Place(buffer, 0, _WORD_BYTES) for storage, buffer in zip((bell, late), buffers, strict=True)
        }
        self._rung, self._late = (vk.ffi.cast("uint32_t*", vk.ffi.from_buffer(buffer.mapped)) for buffer in buffers)
        self._late[0] = 0
        self._order = threading.Lock()

    def hush(self) -> None:
        """Have the next submission wait; nothing runs now."""
        self._rung[0] = 0
        self._late[0] = 0

    def ring(self) -> None:
        """Say that the inputs are written."""
        # Memory of the device is written through buffers of the core, which empty themselves in any order; the atomic
        # instructions of a lock empty them.
        with self._order:
            self._rung[0] = 1

    def is_late(self) -> bool:
        """Whether a submission that has ended hadn't waited long enough."""
        return bool(self._late[0])
