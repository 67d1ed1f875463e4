"""Machine code of pipelines, made on all cores before they are first used.

lavapipe makes a pipeline's machine code at its first dispatch, in the one thread of the queue, and keeps it in Mesa's
cache on disk. A model has a dozen pipelines, each of which takes a quarter of a second. So those that the driver hasn't
met are dispatched first, without workgroups, on twins of the device, one for a core; the device then finds them in that
cache. For which pipelines this was done is kept, as loading from the cache needs no twins.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count

from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.buffers import MemoryUse, Place, allocate_buffer
from mobopt.runtimes.vulkan.engine.descriptors import DescriptorSets
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_cache import device_file, keep, read_kept
from mobopt.runtimes.vulkan.engine.pipelines import PipelineKey, PipelineStore
from mobopt.runtimes.vulkan.engine.recording import BoundDispatch, CommandPool, Recordable, submit_and_wait
from mobopt.runtimes.vulkan.engine.stream import Binding, Dispatch
from mobopt.runtimes.vulkan.engine.tensor import Storage
from mobopt.runtimes.vulkan.engine.threads import start

_LOGGER = logging.getLogger("mobopt.vulkan")
_MOST_TWINS = 8
_FEWEST = 2
"""Pipelines for which it is worth to open twins."""
_STORAGE = Storage(48)
"""What every binding of a dispatch without workgroups is bound to. Code depends on whether a buffer's size is a power
of two, which those of models hardly ever are."""


class MachineCode:
    """What this process knows of a device's pipelines: ``device.shared(MachineCode)``."""

    def __init__(self, device: Device) -> None:
        self.met: set[PipelineKey] = set()
        """Those that plans of this process have had."""

    def close(self) -> None:
        """There is nothing to give back."""


@contextmanager
def made_on_all_cores(device: Device, keys: Mapping[Dispatch, PipelineKey]) -> Iterator[None]:
    """Make the machine code of the pipelines that dispatches run, while the caller does something else; the end waits.

    Where that fails, as for lack of memory, it is logged, and the first dispatch makes it.
    """
    code = device.shared(MachineCode)
    unmet = {key: dispatch for dispatch, key in keys.items() if key not in code.met}
    code.met.update(unmet)
    if len(unmet) < _FEWEST or not _compiles_at_dispatch(device):
        yield
        return
    path = device_file("machine_code", device.info, ".json")
    kept = read_kept(path)
    new = {digest: (dispatch, key) for key, dispatch in unmet.items() if (digest := _digest(key)) not in kept}
    twins = min(_MOST_TWINS, os.cpu_count() or 1, len(new))
    if twins < _FEWEST:
        yield
        return
    work, numbers = list(new.values()), count()
    with ThreadPoolExecutor(twins) as pool:
        running = start(pool, partial(_make, device, work, numbers), twins)
        yield
        try:
            for each in running:
                each.result()
        except DeviceError as error:
            _LOGGER.warning("machine code is not made ahead on %s: %s", device.info.name, error)
            return
    if running:
        keep(path, {**kept, **dict.fromkeys(new, 1)})


def _compiles_at_dispatch(device: Device) -> bool:
    """Whether it is lavapipe, with a cache on disk.

    Not under the validation layer, which is for finding faults, not for fast starts: once it took fences of twins for
    pending that had been signalled.
    """
    switches = ("MESA_SHADER_CACHE_DISABLE", "MESA_GLSL_CACHE_DISABLE")
    has_cache = not any(os.environ.get(name, "").lower() in ("1", "true", "yes", "y") for name in switches)
    return device.info.driver_id == vk.VK_DRIVER_ID_MESA_LLVMPIPE and has_cache and not device.is_watched


def _digest(key: PipelineKey) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:24]


def _make(device: Device, work: Sequence[tuple[Dispatch, PipelineKey]], numbers: Iterator[int]) -> None:
    """Take one pipeline after the other that no other thread has taken, and dispatch it on a twin."""
    twin = device.twin()
    try:
        while (number := next(numbers)) < len(work):
            _dispatch_nothing(twin, *work[number])
    finally:
        twin.close()


def _dispatch_nothing(twin: Device, dispatch: Dispatch, key: PipelineKey) -> None:
    """Run no workgroup of a pipeline; bindings are of the kinds that the dispatch has, as code depends on them."""
    store, scope = twin.shared(PipelineStore), twin.scope()
    try:
        place = Place(allocate_buffer(twin, scope, _STORAGE.nbytes, MemoryUse.DEVICE), 0, _STORAGE.nbytes)
        bindings = [Binding(_STORAGE, 0, _STORAGE.nbytes, texel_words=one.texel_words) for one in dispatch.bindings]
        nothing = replace(dispatch, bindings=tuple(bindings), groups=(0, 0, 0))
        layout, places = store.layout(key.layout), {_STORAGE: place}
        sets = DescriptorSets(twin, scope, {nothing: layout}, places).handles
        bound = BoundDispatch(store.acquire([key])[key], layout.handle, sets, 0)
        run = Recordable([nothing], [None], {nothing: bound}, places, False, {})
        submit_and_wait(twin, scope, CommandPool(twin, scope).record(run))
    finally:
        scope.close()
