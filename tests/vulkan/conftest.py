"""Devices for tests: lavapipe and SwiftShader in one process, watched by the Khronos validation layer.

``MOBOPT_DEVICE`` names another device for all of them; ``MOBOPT_VALIDATION=0`` is for a machine without the layer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_DRIVERS = ("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json", "/usr/lib/chromium/vk_swiftshader_icd.json")
if not {"VK_DRIVER_FILES", "MOBOPT_DEVICE"} & set(os.environ):
    os.environ["VK_DRIVER_FILES"] = ":".join(path for path in _DRIVERS if Path(path).exists())

from mobopt.errors import DeviceError  # noqa: E402
from mobopt.runtimes.vulkan.engine.device import Device, open_device  # noqa: E402

_NAMED = os.environ.get("MOBOPT_DEVICE")


@pytest.fixture(params=[_NAMED] if _NAMED else ["llvmpipe", pytest.param("swiftshader", marks=pytest.mark.sweep)])
def any_device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Each software driver in turn; a message of the validation layer fails the test."""
    yield from _watched(request.param)


@pytest.fixture
def device() -> Iterator[Device]:
    """The device that MOBOPT_DEVICE names, by default lavapipe; a message of the validation layer fails the test."""
    yield from _watched(_NAMED or "llvmpipe")


def _watched(name: str) -> Iterator[Device]:
    try:
        device = open_device(name, validation=os.environ.get("MOBOPT_VALIDATION") != "0")
    except DeviceError as error:
        if os.environ.get("CI"):
            raise  # there, a missing driver or layer must not pass for success
        pytest.skip(str(error))
    before = len(device.validation_messages)
    yield device
    messages = device.validation_messages[before:]
    assert not messages, "\n".join(messages)
