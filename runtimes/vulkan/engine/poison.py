"""Memory full of NaN before it is used: what reads an element that nobody wrote is seen then."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mobopt.runtimes.vulkan.engine.buffers import Buffer
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.recording import fill

WORD = 0x7FFF7FFF
"""Not a number as float32, and in both halves as float16 and bfloat16; large as an integer."""


def fill_with_nan(device: Device, buffers: Sequence[Buffer]) -> None:
    """Overwrite all bytes of buffers that nothing on the device uses now.

    Raises:
        DeviceError: the device failed.
    """
    hidden = []
    for buffer in buffers:
        if buffer.mapped is None:
            hidden.append(buffer)
        else:
            words = buffer.nbytes // 4
            torch.frombuffer(buffer.mapped, dtype=torch.int32, count=words).fill_(WORD)
    if hidden:
        fill(device, hidden, WORD)
