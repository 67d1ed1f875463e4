"""Machine code that is made on all cores before the first dispatch, on drivers that would make it there."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from engine_shaders import engine_shaders, engine_spirv, scale, tensor  # noqa: F401

from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.stream import Stream
from mobopt.runtimes.vulkan.engine.tensor import StorageKind

_numbers = itertools.count(1000)
"""So that each test has pipelines of its own."""


@pytest.fixture
def twins(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Device]:
    """The twins that are opened, with an empty cache, on a driver that compiles at the first dispatch."""
    if device.info.driver_id != vk.VK_DRIVER_ID_MESA_LLVMPIPE:
        pytest.skip("the driver compiles pipelines when they are made")
    monkeypatch.setattr(device, "is_watched", False)
    monkeypatch.setenv("MOBOPT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("MESA_SHADER_CACHE_DISABLE", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    opened: list[Device] = []
    open_twin = Device.twin

    def twin(self: Device) -> Device:
        opened.append(open_twin(self))
        return opened[-1]

    monkeypatch.setattr(Device, "twin", twin)
    return opened


def _stream(shifts: list[float]) -> Stream:
    """A dispatch for each of the shifts, each a pipeline of its own; every second one reads texels."""
    values = [tensor(StorageKind.INPUT, 8), *(tensor(StorageKind.TEMPORARY, 8) for _ in shifts)]
    steps = enumerate(zip(itertools.pairwise(values), shifts, strict=True))
    dispatches = [scale(source, target, 1.0, shift, texel=place % 2 == 1) for place, ((source, target), shift) in steps]
    return Stream(list(dispatches), [values[0]], [values[-1]])


def _check(device: Device, shifts: list[float]) -> None:
    executable = Executable(device, _stream(shifts))
    expected = torch.arange(8.0)
    for shift in shifts:
        expected = expected + shift
    torch.testing.assert_close(executable.run([torch.arange(8.0)])[0], expected)
    executable.close()


def test_new_pipelines_are_dispatched_on_twins_once(device: Device, twins: list[Device], tmp_path: Path) -> None:
    shifts = [float(next(_numbers)) for _ in range(7)]
    _check(device, shifts)
    assert len(twins) == 3 and not any(twin.is_open or any(twin.live_objects.values()) for twin in twins)
    assert [path.suffix for path in (tmp_path / "machine_code").iterdir()] == [".json"]
    _check(device, shifts)
    assert len(twins) == 3  # all are known
    _check(device, [*shifts, float(next(_numbers))])
    assert len(twins) == 3  # one is not worth a twin
    _check(device, [*shifts, *(float(next(_numbers)) for _ in range(2))])
    assert len(twins) == 5


def test_under_the_validation_layer_there_are_none(
    device: Device, twins: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "is_watched", True)
    _check(device, [float(next(_numbers)) for _ in range(4)])
    assert not twins


def test_without_a_cache_on_disk_there_are_none(
    device: Device, twins: list[Device], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MESA_SHADER_CACHE_DISABLE", "true")
    _check(device, [float(next(_numbers)) for _ in range(4)])
    assert not twins and not (tmp_path / "machine_code").exists()


def test_a_twin_that_cannot_be_opened_is_told_and_nothing_is_kept(
    device: Device,
    twins: list[Device],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    def refuse(self: Device) -> Device:
        raise DeviceError("out of memory")

    monkeypatch.setattr(Device, "twin", refuse)
    _check(device, [float(next(_numbers)) for _ in range(4)])
    assert "out of memory" in caplog.text and not (tmp_path / "machine_code").exists()
