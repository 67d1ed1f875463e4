"""How Vulkan is found and started on other platforms: the loader's names, and devices that are portability subsets."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine import device as device_module
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.instance import Instance

_EXTENSION_NOT_PRESENT = -7


class _Driver:
    """The C functions of Vulkan; notes the flags and extensions of what is created."""

    def __init__(self, lib: Any, refused: str = "") -> None:
        self.created: list[tuple[int, list[str]]] = []
        self._lib = lib
        self._refused = refused

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def vkCreateInstance(self, info: Any, allocator: Any, handle: Any) -> int:  # noqa: N802
        self.created.append((info.flags, _extensions(info)))
        if self._refused in self.created[-1][1]:
            return _EXTENSION_NOT_PRESENT
        result: int = self._lib.vkCreateInstance(info, allocator, handle)
        return result

    def vkCreateDevice(self, physical: Any, info: Any, allocator: Any, handle: Any) -> int:  # noqa: N802
        self.created.append((info.flags, _extensions(info)))
        return _EXTENSION_NOT_PRESENT


def _extensions(info: Any) -> list[str]:
    return [vk.string(info.ppEnabledExtensionNames[index]) for index in range(info.enabledExtensionCount)]


def test_devices_that_are_portability_subsets_are_asked_for(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = _Driver(vk.lib)
    monkeypatch.setattr(vk, "lib", driver, raising=False)
    Instance(validation=False).close()
    assert driver.created == [(1, ["VK_KHR_portability_enumeration"])]


def test_an_old_loader_is_not_asked_for_them(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = _Driver(vk.lib, refused="VK_KHR_portability_enumeration")
    monkeypatch.setattr(vk, "lib", driver, raising=False)
    instance = Instance(validation=False)
    assert instance.physical_devices()
    instance.close()
    assert driver.created[1:] == [(0, [])]


@pytest.mark.parametrize(
    ("offered", "enabled"),
    [({"VK_KHR_portability_subset", "VK_KHR_swapchain"}, ["VK_KHR_portability_subset"]), ({"VK_KHR_swapchain"}, [])],
)
def test_a_portability_subset_is_opened_as_one(
    device: Device, monkeypatch: pytest.MonkeyPatch, offered: set[str], enabled: list[str]
) -> None:
    driver = _Driver(vk.lib)
    monkeypatch.setattr(vk, "lib", driver, raising=False)
    monkeypatch.setattr(device_module, "extensions", lambda physical: offered)
    instance = Instance(validation=False)
    with pytest.raises(DeviceError, match="VK_ERROR_EXTENSION_NOT_PRESENT"):
        features = device.info.features - {"matrix_units", "bfloat16_units"}
        Device(replace(device.info, features=features), device.physical, instance)
    instance.close()
    assert driver.created[-1] == (0, enabled)


@pytest.mark.parametrize(
    ("platform", "tried", "advice"),
    [
        ("linux", [], r"libvulkan.so.1\) .*apt install libvulkan1"),
        ("win32", [], r"vulkan-1.dll\) .*driver of the GPU"),
        (
            "darwin",
            [
                "libvulkan.1.dylib",
                "/opt/homebrew/lib/libvulkan.1.dylib",
                "/usr/local/lib/libvulkan.1.dylib",
                "libMoltenVK.dylib",
                "/opt/homebrew/lib/libMoltenVK.dylib",
                "/usr/local/lib/libMoltenVK.dylib",
            ],
            r"libvulkan.dylib\) .*brew install vulkan-loader molten-vk",
        ),
    ],
)
def test_loaders_of_a_platform(monkeypatch: pytest.MonkeyPatch, platform: str, tried: list[str], advice: str) -> None:
    found: list[str] = []

    def dlopen(name: str) -> None:
        found.append(name)
        raise OSError(name)

    monkeypatch.setitem(sys.modules, "vulkan._vulkancache", SimpleNamespace(ffi=SimpleNamespace(dlopen=dlopen)))
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(DeviceError, match=advice):
        vk._find_loader()
    assert found == tried


def test_the_names_that_the_binding_knows() -> None:
    from vulkan import _vulkan

    assert {"libvulkan.so.1", "vulkan-1.dll", "libvulkan.dylib"} <= set(_vulkan._lib_names)


_ELSEWHERE = """
import importlib.util, sys
folder = importlib.util.find_spec("vulkan").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("vulkan._vulkancache", f"{folder}/_vulkancache.py")
declarations = importlib.util.module_from_spec(spec)
spec.loader.exec_module(declarations)

class Deaf:  # to names that the binding knows
    def __init__(self, ffi):
        self.ffi = ffi
    def dlopen(self, name, *flags):
        if not name.startswith("/"):
            raise OSError(name)
        return self.ffi.dlopen(name, *flags)
    def __getattr__(self, name):
        return getattr(self.ffi, name)

deaf = declarations.ffi = Deaf(declarations.ffi)
sys.modules["vulkan._vulkancache"] = declarations
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.devices import list_devices
vk._MORE_LOADERS[sys.platform] = ("/nowhere/libvulkan.1.dylib", sys.argv[1])
print(len(list_devices()), vk.ffi is deaf)
"""


def test_a_loader_in_another_place_is_used(device: Device, tmp_path: Path) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("where libraries lie is read from /proc")
    loader = next(line.split()[-1] for line in maps.read_text().splitlines() if "/libvulkan.so" in line)
    (tmp_path / "libvulkan.1.dylib").symlink_to(loader)
    command = [sys.executable, "-c", _ELSEWHERE, str(tmp_path / "libvulkan.1.dylib")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    count, is_own = done.stdout.split()
    assert int(count) >= 1 and is_own == "True"
