"""An open Vulkan device, and what its users share."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine import matrix_units, vk
from mobopt.runtimes.vulkan.engine.device_gate import DeviceGate
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo, compute_queue_family, extensions
from mobopt.runtimes.vulkan.engine.instance import Instance
from mobopt.runtimes.vulkan.engine.resources import ResourceScope

_LOGGER = logging.getLogger("mobopt.vulkan")
_PORTABILITY_EXTENSION = "VK_KHR_portability_subset"
# DeviceInfo's names of features, and the fields that turn them on.
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
    """An open device, with its queue. Made by ``devices.py``, shared by the whole process."""

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
            self.catch_up()
            if make not in self._shared:
                self._shared[make] = make(self)
            return self._shared[make]  # type: ignore[return-value]

    def scope(self) -> ResourceScope:
        """An owner for new Vulkan objects."""
        return ResourceScope(self.handle, self.live_objects)

    def when_free(self, work: Callable[[], None]) -> None:
        """Do something under the lock: now, or, where a thread has it, when something shared is next asked for.

        For finalizers: they run wherever the garbage collector does. Another thread that has the lock may wait for that
        one, and this one may be in the middle of what they would change.
        """
        self._put_off.append(work)
        if not self.lock._is_owned():  # type: ignore[attr-defined]  # as threading.Condition asks
            self.catch_up()

    def catch_up(self) -> None:
        """Do what was put off, unless another thread has the lock; a thread that has it is in the middle of nothing."""
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
            self.catch_up()
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
