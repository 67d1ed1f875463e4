"""An NVIDIA GPU's clock, kept up between calls: a pure Vulkan process lets it fall in every pause.

The driver keeps it up while a process has a CUDA context open on the GPU, which needs the driver's own library alone;
nothing is computed there. It costs power: the GPU never idles (47 W on an H200).
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from mobopt.errors import UnsupportedError
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo

_LOGGER = logging.getLogger("mobopt.vulkan")
_NVIDIA = 0x10DE
_UUID_BYTES = 16
_WITHOUT = "leave out keep_clock"


def load_cuda() -> Any:
    """The driver's CUDA library.

    Raises:
        OSError: there is none.
    """
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


class KeptClock:
    """Keeps the clock of one GPU up until this object, or the process, ends.

    Each holds one reference to the GPU's primary context, which it shares with others of the process, and with torch.
    """

    def __init__(self, info: DeviceInfo, load: Callable[[], Any] = load_cuda) -> None:
        """Open the context, which takes .1 to .2 s where the process has none.

        Args:
            info: of the Vulkan device.
            load: gives the CUDA library.

        Raises:
            UnsupportedError: the device is not NVIDIA's, or CUDA can't be used with it.
        """
        if info.vendor_id != _NVIDIA:
            raise UnsupportedError(
                f"keep_clock holds the clock of NVIDIA's GPUs up by CUDA, and {info.name} is none; {_WITHOUT}"
            )
        try:
            self._cuda = load()
        except OSError as error:
            raise UnsupportedError(
                f"keep_clock needs the CUDA library of NVIDIA's driver, which can't be loaded ({error}); {_WITHOUT}"
            ) from error
        self._check(self._cuda.cuInit(0), "start CUDA")
        number = self._find(info)
        context = ctypes.c_void_p()
        self._check(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number), f"open {info.name}")
        weakref.finalize(self, _release, self._cuda, number, os.getpid())

    def _find(self, info: DeviceInfo) -> ctypes.c_int:
        """CUDA's number of the device: theirs may be another order, and some may be hidden."""
        count = ctypes.c_int()
        self._check(self._cuda.cuDeviceGetCount(ctypes.byref(count)), "count devices")
        for index in range(count.value):
            number, uuid = ctypes.c_int(), ctypes.create_string_buffer(_UUID_BYTES)
            self._check(self._cuda.cuDeviceGet(ctypes.byref(number), index), f"find device {index}")
            self._check(self._cuda.cuDeviceGetUuid(uuid, number), f"identify device {index}")
            if uuid.raw == info.device_uuid:
                return number
        raise UnsupportedError(
            f"none of the {count.value} devices that CUDA sees is {info.name} (CUDA_VISIBLE_DEVICES may hide it); "
            f"show it, or {_WITHOUT}"
        )

    def _check(self, result: int, what: str) -> None:
        if result:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(result, ctypes.byref(text))
            reason = (text.value or b"no text").decode(errors="replace")
            raise UnsupportedError(f"keep_clock: CUDA could not {what} ({result}: {reason}); {_WITHOUT}")


def _release(cuda: Any, number: ctypes.c_int, process: int) -> None:
    """Give the reference back; a forked process has none of its parent's."""
    if os.getpid() == process and (result := cuda.cuDevicePrimaryCtxRelease_v2(number)):
        _LOGGER.debug("CUDA gave %d when a context was released", result)
