"""Tuning of a device, and what is kept of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from mobopt.errors import UnsupportedError
from mobopt.runtimes.vulkan.device_roofs import DeviceRoofs, roofs_of
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.devices import open_device
from mobopt.runtimes.vulkan.engine.kept_clock import KeptClock
from mobopt.runtimes.vulkan.tuning.kept import TunedCosts as TunedCosts
from mobopt.runtimes.vulkan.tuning.kept import UnitsUse as UnitsUse
from mobopt.runtimes.vulkan.tuning.kept import forget_costs, keep_costs, kept_costs
from mobopt.runtimes.vulkan.tuning.result import ChainsTuning as ChainsTuning
from mobopt.runtimes.vulkan.tuning.result import FamilyTuning as FamilyTuning
from mobopt.runtimes.vulkan.tuning.result import Tuning
from mobopt.runtimes.vulkan.tuning.tune import tune as measured

_LOGGER = logging.getLogger("mobopt.vulkan")


@dataclass(frozen=True)
class Tuned:
    """A device after it was tuned."""

    device: str
    tuning: Tuning
    roofs: DeviceRoofs
    is_kept: bool
    """Whether later processes choose by what was found."""

    def data(self) -> dict[str, Any]:
        """What JSON has of it."""
        return {
            "device": self.device,
            "tuning": self.tuning.data(),
            "roofs": asdict(self.roofs),
            "is_kept": self.is_kept,
        }


def tune(device: str | None, seconds: float, show: Callable[[str], None] = lambda step: None) -> Tuned:
    """Measure a device, and keep its costs if they choose faster kernels than those before.

    Args:
        device: a Vulkan device's number or a part of its name; None for the best.
        seconds: for measuring.
        show: is told each step.

    Raises:
        DeviceError: there is no such device, it has no timestamps, or it failed.
    """
    opened = open_device(device)
    with _held_clock(opened.info):
        tuning = measured(opened, seconds, show=show)
        show("measuring roofs")
        roofs = roofs_of(opened, again=True)
    is_kept = tuning.is_better and keep_costs(opened.info, tuning)
    return Tuned(str(opened.info), tuning, roofs, is_kept)


@contextmanager
def _held_clock(info: DeviceInfo) -> Iterator[None]:
    """Keeps an NVIDIA GPU's clock where it is in calls back to back, if that can be: it falls in the pauses between
    single kernels, and times of a low clock choose other kernels."""
    clock = None
    try:
        clock = KeptClock(info)
    except UnsupportedError as error:
        _LOGGER.info("the clock is not held while the device is measured: %s", error)
    try:
        yield
    finally:
        del clock


def kept(device: str | None) -> tuple[str, TunedCosts]:
    """The device in words, and what an earlier tuning kept; no costs if there was none."""
    info = open_device(device).info
    return str(info), kept_costs(info)


def forget(device: str | None) -> tuple[str, bool]:
    """The device in words, and whether there was something to forget."""
    info = open_device(device).info
    return str(info), forget_costs(info)
