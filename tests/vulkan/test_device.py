from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine import devices, matrix_units, vk
from mobopt.runtimes.vulkan.engine.devices import list_devices, open_device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.stream import Binding, Copy, Stream, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, StorageKind

pytestmark = pytest.mark.usefixtures("device")


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new process."""
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )


_LIST = """
from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine.devices import list_devices, open_device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.stream import Binding, Copy, Stream, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, StorageKind
try:
    {call}
except DeviceError as error:
    print("DeviceError:", error)
"""


def test_devices_are_numbered_in_order_of_preference():
    infos = list_devices()
    assert [info.index for info in infos] == list(range(len(infos)))
    assert [info.preference for info in infos] == sorted(info.preference for info in infos)


def test_facts_of_lavapipe(lavapipe):
    info = lavapipe.info
    assert info.is_cpu
    assert info.has_unified_memory
    assert info.api_version >= (1, 1, 0)
    assert {"float16", "int8", "timestamps", "subgroup_arithmetic"} <= info.features
    assert info.subgroup_size == 8
    assert info.limits.max_storage_buffer_range >= 1 << 27
    assert info.memory_bytes > 0
    assert "Mesa" in info.driver


def test_units_count_by_the_shape_of_the_shaders(device):
    """Lavapipe of Mesa 26 has units of another one."""
    info = device.info
    assert ("matrix_units" in info.features) == (matrix_units.SHAPE in info.matrix_shapes)
    assert ("bfloat16_units" in info.features) == (matrix_units.SHAPE in info.bfloat_shapes)


def test_the_structure_that_turns_on_bfloat16(lavapipe):
    """The binding hasn't got it: its type, a pointer, and three truth values, of dot products no."""
    assert not lavapipe.info.bfloat_shapes
    found = matrix_units.bfloat_features(vk.ffi.NULL)
    words = vk.ffi.cast("uint32_t*", found)
    assert vk.ffi.sizeof(found[0]) == 32 and [words[index] for index in (0, 4, 5, 6)] == [1000141000, 1, 0, 1]


def test_a_device_is_opened_once_and_chosen_by_number_or_name(device):
    for selector in (device.info.index, str(device.info.index), device.info.name.swapcase()):
        assert open_device(selector, validation=device.is_watched) is device


def test_the_environment_chooses(device, monkeypatch):
    for info in list_devices():
        monkeypatch.setenv("MOBOPT_DEVICE", info.name)
        assert open_device(validation=device.is_watched).info.name == info.name


@pytest.mark.parametrize("selector", [99, "99", "no such gpu", -1])
def test_an_unknown_device_lists_what_exists(device, selector):
    with pytest.raises(DeviceError, match=rf"no Vulkan device .*\d: .*{re.escape(device.info.name)}"):
        open_device(selector, validation=device.is_watched)


@pytest.mark.usefixtures("lavapipe")
def test_a_cpu_device_is_a_warning(caplog, monkeypatch):
    monkeypatch.setattr(devices, "_devices", {})
    with caplog.at_level(logging.WARNING, "mobopt.vulkan"):
        opened = open_device("llvmpipe", validation=False)
    assert "computes on the CPU" in caplog.text
    opened.close()
    opened.close()


def test_closing_a_device_leaves_no_object(device, monkeypatch):
    monkeypatch.setattr(devices, "_devices", {})
    own = open_device(device.info.name, validation=device.is_watched)
    x, y = (
        DeviceTensor(Storage(16, kind), torch.float32, (4,), (1,)) for kind in (StorageKind.INPUT, StorageKind.OUTPUT)
    )
    constant = Storage(16, StorageKind.CONSTANT, torch.arange(4.0))
    stream = Stream([Copy(Binding(constant, 0, 16), bind(y, writes=True))], [x], [y])
    executable = Executable(own, stream)
    assert executable.run([torch.zeros(4)])[0].tolist() == [0, 1, 2, 3]
    assert own.live_objects.total() > 0
    own.close()
    assert own.live_objects.total() == 0
    with pytest.raises(DeviceError, match="closed"):
        executable.run([torch.zeros(4)])


def test_no_loader_is_one_clear_error(tmp_path: Path):
    fake = tmp_path / "vulkan"
    fake.mkdir()
    (fake / "__init__.py").write_text("raise OSError('Cannot find Vulkan SDK version')")
    result = _run(_LIST.format(call="list_devices()"), PYTHONPATH=str(tmp_path))
    assert result.stdout.startswith("DeviceError: no Vulkan loader")
    assert "apt install libvulkan1" in result.stdout


def test_no_driver_is_one_clear_error(tmp_path: Path):
    result = _run(_LIST.format(call="open_device()"), VK_DRIVER_FILES=str(tmp_path / "none.json"))
    assert result.stdout.startswith("DeviceError: ")
    assert "apt install mesa-vulkan-drivers" in result.stdout


def test_importing_the_runtime_needs_no_loader():
    code = "import sys, mobopt.runtimes.vulkan.engine.executable; assert 'vulkan' not in sys.modules; print('fine')"
    assert _run(code).stdout == "fine\n"


@pytest.mark.usefixtures("watched", "lavapipe")
def test_a_process_ends_cleanly_with_everything_open():
    code = """
import logging, torch
logging.basicConfig(level=logging.ERROR)
from mobopt.runtimes.vulkan.engine.devices import open_device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.stream import Stream
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, StorageKind
x = DeviceTensor(Storage(16, StorageKind.INPUT), torch.float32, (4,), (1,))
executable = Executable(open_device("llvmpipe"), Stream([], [x], [x]))
print(executable.run([torch.ones(4)])[0].tolist())
"""
    result = _run(code, MOBOPT_VALIDATION="1")
    assert (result.returncode, result.stdout) == (0, "[1.0, 1.0, 1.0, 1.0]\n")
    assert "alidation" not in result.stderr


def test_validation_sees_misuse_and_the_layer_can_be_missing(tmp_path: Path):
    code = _LIST.format(call="open_device('llvmpipe', validation=True)")
    result = _run(code, VK_LAYER_PATH=str(tmp_path))
    assert "vulkan-validationlayers" in result.stdout
