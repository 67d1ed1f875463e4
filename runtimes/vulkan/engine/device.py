"""Find, choose and open Vulkan devices."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from mobopt.environment import is_on, warn_of_unknown
from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine import matrix_units, vk
from mobopt.runtimes.vulkan.engine.device_gate import DeviceGate
from mobopt.runtimes.vulkan.engine.device_info import (
    DeviceInfo,
    DeviceLimits,
    compute_queue_family,
    extensions,
    query_device,
)
from mobopt.runtimes.vulkan.engine.forked import skip_exit_handlers
from mobopt.runtimes.vulkan.engine.instance import Instance
from mobopt.runtimes.vulkan.engine.resources import ResourceScope

__all__ = ["Device", "DeviceInfo", "DeviceLimits", "list_devices", "open_device"]

_LOGGER = logging.getLogger("mobopt.vulkan")
_NO_DEVICE = (
    "there is no Vulkan 1.1 device with a compute queue; install a driver (Debian: `apt install mesa-vulkan-drivers`)"
)
# DeviceInfo's names of features, and the fields that turn them on.
_EXIT_SECONDS = 10.0
"""How long the end of the process waits for a call of a daemon thread."""
_PORTABILITY_EXTENSION = "VK_KHR_portability_subset"
_CORE_FEATURES = {
    "int16": "shaderInt16",
    "int64": "shaderInt64",
    "float64": "shaderFloat64",
    "texel_formats": "shaderStorageImageExtendedFormats",
}


class Closable(Protocol):
    """What uses a device until it is closed."""

    def close(self) -> None:
        """Give everything back to the device."""


Shared = TypeVar("Shared", bound=Closable)


class Device:
    """An open device, with its queue. Made by :func:`open_device`, shared by the whole process."""

    def __init__(self, info: DeviceInfo, physical: vk.Handle, instance: Instance) -> None:
        self.info = info
        self.physical = physical
        self.live_objects: Counter[str] = Counter()
        """How many Vulkan objects of each type exist now."""
        self.lock = threading.RLock()
        """Held while the queue, or a pool that the device shares between executables, is used."""
        self.poisons = False
        """Whether memory is filled with NaN before each call that uses it (``poison.py``)."""
        self.chains = True
        """Whether dispatches may wait for each other by counters; no more once one did in vain (``chains.py``)."""
        self.in_use = DeviceGate(info.name)
        """Entered for as long as a call, or the building of a plan, needs the device to stay open."""
        self.is_watched = instance.validation
        """Whether the Khronos validation layer watches."""
        self._instance = instance
        self._lent = 0
        self._put_off: deque[Callable[[], None]] = deque()
        self._first_message = len(instance.messages)
        self._users: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._shared: dict[Callable[[Device], Closable], Closable] = {}
        family = compute_queue_family(physical)
        if family is None:
            raise DeviceError(f"{info.name} has no compute queue; choose another device")
        self.queue_family = family[0]
        self.handle = self._create()
        queue = vk.ffi.new("VkQueue*")
        vk.lib.vkGetDeviceQueue(self.handle, self.queue_family, 0, queue)
        self.queue = queue[0]
        self.is_open = True

    def _create(self) -> vk.Handle:
        queues = vk.struct(
            "VkDeviceQueueCreateInfo", queueFamilyIndex=self.queue_family, queueCount=1, pQueuePriorities=[1.0]
        )
        # A device that lacks parts of Vulkan must be opened with the extension that says so.
        enabled = sorted({_PORTABILITY_EXTENSION} & extensions(self.physical))
        if "matrix_units" in self.info.features:
            enabled.append(matrix_units.EXTENSION)
        if "bfloat16_units" in self.info.features:
            enabled.append(matrix_units.BFLOAT_EXTENSION)
        info = vk.struct(
            "VkDeviceCreateInfo",
            pNext=self._features(),
            queueCreateInfoCount=1,
            pQueueCreateInfos=queues,
            enabledExtensionCount=len(enabled),
            ppEnabledExtensionNames=enabled,
        )
        handle = vk.ffi.new("VkDevice*")
        vk.check(vk.lib.vkCreateDevice(self.physical, info, vk.ffi.NULL, handle), f"open {self.info.name}")
        return handle[0]

    def _features(self) -> vk.Handle:
        """The chain of feature structures that turns on all that DeviceInfo lists."""
        has = self.info.features
        chain = vk.ffi.NULL
        if "storage16" in has:
            chain = vk.struct("VkPhysicalDevice16BitStorageFeatures", pNext=chain, storageBuffer16BitAccess=1)
        if "storage8" in has:
            chain = vk.struct("VkPhysicalDevice8BitStorageFeatures", pNext=chain, storageBuffer8BitAccess=1)
        if has & {"float16", "int8"}:
            chain = vk.struct(
                "VkPhysicalDeviceShaderFloat16Int8Features",
                pNext=chain,
                shaderFloat16="float16" in has,
                shaderInt8="int8" in has,
            )
        model = "device_memory_model" in has
        if model or "matrix_units" in has:
            name = matrix_units.MEMORY_MODEL_FEATURES
            chain = vk.struct(name, pNext=chain, vulkanMemoryModel=1, vulkanMemoryModelDeviceScope=model)
        if "matrix_units" in has:
            chain = vk.struct(matrix_units.FEATURES, pNext=chain, cooperativeMatrix=1)
        if "bfloat16_units" in has:
            chain = matrix_units.bfloat_features(chain)
        features = vk.struct("VkPhysicalDeviceFeatures2", pNext=chain)
        for name, field in _CORE_FEATURES.items():
            setattr(features.features, field, name in has)
        return features

    @property
    def validation_messages(self) -> list[str]:
        """What the validation layer has said since the device was opened (of any device of the process)."""
        return self._instance.messages[self._first_message :]

    def shared(self, make: Callable[[Device], Shared]) -> Shared:
        """What all users of the device share: the first call makes it, the end of the device closes it."""
        with self.lock:
            self._catch_up()
            if make not in self._shared:
                self._shared[make] = make(self)
            return self._shared[make]  # type: ignore[return-value]

    def scope(self) -> ResourceScope:
        """An owner for new Vulkan objects."""
        return ResourceScope(self.handle, self.live_objects)

    def when_free(self, work: Callable[[], None]) -> None:
        """Do something under the lock: now, or, where another thread has it, when something shared is next asked for.

        For finalizers: they run wherever the garbage collector does, and who has the lock may wait for that thread.
        """
        self._put_off.append(work)
        self._catch_up()

    def _catch_up(self) -> None:
        """Do what was put off, if the lock is free."""
        while self._put_off and self.lock.acquire(blocking=False):
            try:
                if self._put_off:
                    self._put_off.popleft()()
            finally:
                self.lock.release()

    def register(self, user: Closable) -> None:
        """Have ``user.close()`` called before the device is destroyed."""
        self._users.add(user)

    @property
    def is_lost(self) -> bool:
        """Whether the driver has said that the device is lost; it can only be closed then."""
        return self.in_use.is_lost

    def lend(self) -> None:
        """Say that somebody else has memory of the device, who will never ask whether it is open."""
        with self.lock:
            self._lent += 1

    def take_back(self) -> None:
        """Undo one :meth:`lend`."""
        with self.lock:
            self._lent -= 1

    @property
    def is_lending(self) -> bool:
        """Whether somebody else has memory of the device, so that it must not be destroyed."""
        return self._lent > 0

    def open_again(self) -> Device:
        """The same device, opened anew after it was closed or lost, or after the process was forked.

        Raises:
            DeviceError: it is not there any more, or can't be opened.
        """
        self.close()
        return open_device(self.info.index, self._instance.validation)

    def twin(self) -> Device:
        """The same device opened once more, with a queue of its own; whoever asks for it closes it."""
        return Device(self.info, self.physical, self._instance)

    def abandon(self) -> None:
        """Forget the device without a word to the driver, whose threads a forked process doesn't have."""
        self.lock = threading.RLock()
        self._put_off.clear()
        self.in_use.forget()
        self.is_open = False

    def close(self, wait_seconds: float | None = None) -> None:
        """Close everything that uses the device, then the device, once calls that run have ended.

        A second call does nothing.

        Args:
            wait_seconds: how long to wait for running calls; None for as long as they take. What is still in use
                after that stays open.
        """
        if not self.in_use.close(wait_seconds):
            return
        with self.lock:
            if not self.is_open:
                return
            self._catch_up()
            vk.lib.vkDeviceWaitIdle(self.handle)
            for user in (*self._users, *reversed(self._shared.values())):
                user.close()
            self.is_open = False
            if self.is_lending:
                level = logging.DEBUG if DeviceGate.process_is_ending else logging.WARNING
                _LOGGER.log(level, "%s is closed, but its memory stays, for others have some of it", self.info.name)
                self._instance.must_stay = True
                return
            vk.lib.vkDestroyDevice(self.handle, vk.ffi.NULL)


_lock = threading.RLock()
_instances: dict[bool, Instance] = {}
_devices: dict[tuple[int, bool], Device] = {}
_lost_by_fork: list[str] = []
"""GPUs that were open in the process that this one was forked from."""
_has_forked_drivers = False
"""Whether that process had loaded drivers."""


def list_devices(validation: bool | None = None) -> list[DeviceInfo]:
    """Every Vulkan 1.1 device with a compute queue, the best first.

    Raises:
        DeviceError: there is no Vulkan loader, or Vulkan can't be started.
    """
    return [info for info, _ in _physical_devices(_instance(_wants_validation(validation)))]


def is_vulkan_available() -> bool:
    """Whether there is a Vulkan device that models can run on, a software one too."""
    try:
        return bool(list_devices())
    except DeviceError:
        return False


def open_device(selector: int | str | None = None, validation: bool | None = None) -> Device:
    """Open a device, or return it if the process has it open.

    Args:
        selector: a number from :func:`list_devices`, or a part of a name in any case; by default the environment
            variable MOBOPT_DEVICE, else the first device listed.
        validation: whether the Khronos validation layer watches; by default whether MOBOPT_VALIDATION is ``1``.

    Raises:
        DeviceError: there is no loader, no device, or none that the selector names.
        InputError: MOBOPT_VALIDATION or MOBOPT_QUIRKS has a value that means nothing.
    """
    with _lock:
        watched = _wants_validation(validation)
        instance = _instance(watched)
        candidates = _physical_devices(instance)
        info, physical = candidates[_choose([info for info, _ in candidates], selector)]
        device = _devices.get((info.index, watched))
        if device is not None and device.is_lost:
            device.close()
        if device is None or not device.is_open:
            if info.is_cpu:
                _LOGGER.warning("%s computes on the CPU: results are right, but expect no speed of a GPU", info.name)
            device = _devices[info.index, watched] = Device(info, physical, instance)
        return device


def close_devices(wait_seconds: float | None = None) -> None:
    """Close every device and end Vulkan, once calls that run have ended; the next use opens them again.

    Args:
        wait_seconds: how long to wait for them; what is in use then is left open.
    """
    with _lock:
        for device in _devices.values():
            device.close(wait_seconds)
        in_use = [device for device in _devices.values() if device.is_open]
        _devices.clear()
        for instance in _instances.values():
            if not in_use and not instance.must_stay:
                instance.close()
        _instances.clear()


def _close_at_exit() -> None:
    """Threads that still compute (daemons) end their call and then wait for the end of the process."""
    DeviceGate.process_is_ending = True
    close_devices(_EXIT_SECONDS)
    if _has_forked_drivers:
        skip_exit_handlers()  # here, so that it comes before those of what has been loaded since


def _forget_after_fork() -> None:
    """A child process opens devices of its own when it first needs them, where drivers allow it: those of CPUs do."""
    global _lock, _has_forked_drivers
    _lock = threading.RLock()
    _lost_by_fork.extend(device.info.name for device in _devices.values() if not device.info.is_cpu)
    _has_forked_drivers = _has_forked_drivers or bool(_instances)
    for device in _devices.values():
        device.abandon()
    _devices.clear()
    _instances.clear()


atexit.register(_close_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def _wants_validation(validation: bool | None) -> bool:
    return is_on("MOBOPT_VALIDATION") if validation is None else validation


def _instance(validation: bool) -> Instance:
    if _lost_by_fork:
        raise DeviceError(
            f"this process was forked from one that has {', '.join(_lost_by_fork)} open, and a GPU's driver does not "
            "outlive that; start processes with multiprocessing's 'spawn', or open the device after the fork only"
        )
    with _lock:
        if validation not in _instances:
            warn_of_unknown()
            _instances[validation] = Instance(validation)
        return _instances[validation]


def _physical_devices(instance: Instance) -> list[tuple[DeviceInfo, vk.Handle]]:
    """Usable devices with their handles, the best first, numbered in that order."""
    found = [(query_device(instance.handle, handle, 0), handle) for handle in instance.physical_devices()]
    usable = [pair for pair in found if pair[0].api_version >= (1, 1, 0) and compute_queue_family(pair[1]) is not None]
    usable.sort(key=lambda pair: (pair[0].preference, -pair[0].memory_bytes, -len(pair[0].features)))
    return [(replace(info, index=index), handle) for index, (info, handle) in enumerate(usable)]


def _choose(infos: list[DeviceInfo], selector: int | str | None) -> int:
    """Index of the device that a selector means."""
    if not infos:
        raise DeviceError(_NO_DEVICE)
    named = "" if selector is not None else os.environ.get("MOBOPT_DEVICE", "")
    if selector is None:
        selector = named or 0
    if isinstance(selector, str) and selector.strip().isdecimal():
        selector = int(selector)
    if isinstance(selector, int):
        matches = [info.index for info in infos if info.index == selector]
    else:
        matches = [info.index for info in infos if selector.lower() in info.name.lower()]
    if not matches:
        listed = "; ".join(map(str, infos))
        source = " (MOBOPT_DEVICE)" if named else ""
        raise DeviceError(
            f"there is no Vulkan device {selector!r}{source}; choose a number or a part of a name of: {listed}"
        )
    return matches[0]
