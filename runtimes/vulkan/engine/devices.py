"""Find, choose, open and close Vulkan devices."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from dataclasses import replace

from mobopt.environment import is_on, warn_of_unknown
from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_gate import DeviceGate
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo, compute_queue_family, query_device
from mobopt.runtimes.vulkan.engine.forked import skip_exit_handlers
from mobopt.runtimes.vulkan.engine.fragment_order import ORDERED_FRAGMENTS, has_ordered_fragments
from mobopt.runtimes.vulkan.engine.instance import Instance

_LOGGER = logging.getLogger("mobopt.vulkan")
_NO_DEVICE = (
    "there is no Vulkan 1.1 device with a compute queue; install a driver (Debian: `apt install mesa-vulkan-drivers`)"
)
_EXIT_SECONDS = 10.0
"""How long the end of the process waits for a call of a daemon thread."""

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
            device = Device(info, physical, instance)
            if has_ordered_fragments(device):
                device.info = replace(info, features=info.features | {ORDERED_FRAGMENTS})
            _devices[info.index, watched] = device
        return device


def open_again(device: Device) -> Device:
    """The same device, opened anew after it was closed or lost, or after the process was forked.

    Raises:
        DeviceError: it is not there any more, or can't be opened.
    """
    device.close()
    return open_device(device.info.index, device.is_watched)


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
