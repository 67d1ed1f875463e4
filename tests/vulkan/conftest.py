"""Devices for tests: lavapipe and SwiftShader in one process, watched by the Khronos validation layer.

``MOBOPT_DEVICE`` names another device for all of them; ``MOBOPT_VALIDATION=0`` is for a machine without the layer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from glob import glob
from pathlib import Path
from zlib import crc32

import pytest

_DRIVERS = ("/usr/share/vulkan/icd.d/lvp_icd*.json", "/usr/lib/chromium/vk_swiftshader_icd.json")
"""Patterns: before Mesa 25, a processor's name is part of lavapipe's."""
if not {"VK_DRIVER_FILES", "MOBOPT_DEVICE"} & set(os.environ):
    os.environ["VK_DRIVER_FILES"] = ":".join(path for pattern in _DRIVERS for path in sorted(glob(pattern)))

from mobopt.errors import DeviceError  # noqa: E402
from mobopt.runtimes.vulkan.engine import buffers  # noqa: E402
from mobopt.runtimes.vulkan.engine import executable as executable_module  # noqa: E402
from mobopt.runtimes.vulkan.engine.array_memory import ArrayPool  # noqa: E402
from mobopt.runtimes.vulkan.engine.device import Device  # noqa: E402
from mobopt.runtimes.vulkan.engine.devices import open_device  # noqa: E402

_NAMED = os.environ.get("MOBOPT_DEVICE")
_LONG_ON_SWIFTSHADER = frozenset({"test_pointwise.py", "test_long_integers.py"})
_EMULATED = frozenset(
    f"test_{name}.py"
    for name in (
        *(
            "attention",
            "bfloat_units",
            "cached_attention",
            "convolution_roads",
            "excited_depthwise",
            "expanded_depthwise",
        ),
        *("find_attention", "fragment_products", "fusion_scaling", "gated_products", "gpu_kernels", "half_outputs"),
        *("half_precision", "image_rows", "matrix_attention", "matrix_units", "normalized_products", "planar_inputs"),
        *("row_layers", "row_units", "scaled_halves", "split_attention", "split_products", "summed_convolutions"),
    )
)
"""Of kernels for GPUs, which lavapipe compiles for seconds each."""
_CASES, _TESTS = 6, 3
"""One in so many is in the default suite: of a test's cases, and of a file's tests."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """SwiftShader takes up to a minute to compile what some files try, so CI tries a quarter of it. Of kernels for GPUs
    lavapipe has a third of each file's tests by default, and a sixth of their cases, one at least; CI's sweeps have a
    sixth of the other tests' cases, and a sixteenth of all the rest."""
    files: dict[Path, dict[str, list[pytest.Item]]] = {}
    for item in items:
        if item.path.name in _LONG_ON_SWIFTSHADER and "[swiftshader" in item.nodeid and _draw(item.nodeid) % 4:
            item.add_marker(pytest.mark.long)
        is_compiled = item.path.name in _EMULATED and "device" in getattr(item, "fixturenames", ())
        if is_compiled and not _NAMED and item.get_closest_marker("sweep") is None:
            files.setdefault(item.path, {}).setdefault(item.name.partition("[")[0], []).append(item)
    for tests in files.values():
        for place, name in enumerate(sorted(tests, key=_draw)):
            cases = sorted(tests[name], key=lambda item: _draw(item.nodeid))
            chosen = -(-len(cases) // _CASES)
            for item in cases[chosen if place < -(-len(tests) // _TESTS) else 0 :]:
                item.add_marker(pytest.mark.sweep)
            for number, item in enumerate(cases[chosen:]):
                if number % 16:
                    item.add_marker(pytest.mark.long)


def _draw(name: str) -> int:
    """A number that depends on a test's name alone."""
    return crc32(name.encode())


@pytest.fixture(params=[_NAMED] if _NAMED else ["llvmpipe", pytest.param("swiftshader", marks=pytest.mark.sweep)])
def any_device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Each software driver in turn; a message of the validation layer fails the test."""
    yield from _watched(request.param)


@pytest.fixture
def device() -> Iterator[Device]:
    """The device that MOBOPT_DEVICE names, by default lavapipe; a message of the validation layer fails the test."""
    yield from _watched(_NAMED or "llvmpipe")


@pytest.fixture
def lavapipe(device: Device) -> Device:
    """The device, for tests of facts that are lavapipe's own."""
    if "llvmpipe" not in device.info.name:
        pytest.skip(f"{device.info.name} is not lavapipe")
    return device


@pytest.fixture
def watched(device: Device) -> Device:
    """The device, for tests of what the Khronos validation layer sees."""
    if not device.is_watched:
        pytest.skip("MOBOPT_VALIDATION=0: there is no validation layer")
    return device


@pytest.fixture
def device_across_a_bus(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Lavapipe on the road of a device across a bus."""
    monkeypatch.setattr(executable_module, "has_fast_upload_memory", lambda device: False)
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete"))
    pool = ArrayPool(device)
    assert pool._use is buffers.MemoryUse.DEVICE
    monkeypatch.setitem(device._shared, ArrayPool, pool)
    return device


@pytest.fixture
def units(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device with matrix units, its own or emulated ones."""
    if "matrix_units" not in device.info.features:
        switches = device.info.switches | {"emulated-matrix-units"}
        monkeypatch.setattr(device, "info", replace(device.info, switches=switches))
    return device


@pytest.fixture(params=[False, True], ids=["unified", "across a bus"])
def any_road(request: pytest.FixtureRequest, device: Device) -> Device:
    """Lavapipe as it is, and on the road of a device across a bus."""
    return request.getfixturevalue("device_across_a_bus") if request.param else device


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
