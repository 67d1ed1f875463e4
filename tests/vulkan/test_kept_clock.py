"""A GPU's clock held up by a CUDA context, with a library of the tests in the place of the driver's."""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import pickle
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from device_infos import device_info

import mobopt
from mobopt.errors import InputError, UnsupportedError
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.kept_clock import KeptClock
from mobopt.tools.execution import run_bundle

OTHER, OWN = bytes(range(16)), bytes(range(16, 32))


class Cuda:
    """What the driver's library is asked for: devices by their UUIDs, and how often each one's context is held."""

    def __init__(self, uuids: tuple[bytes, ...] = (OTHER, OWN), failing: str = "") -> None:
        self.uuids, self.failing = uuids, failing
        self.held: Counter[int] = Counter()
        self.is_started = False

    def _result(self, name: str) -> int:
        assert self.is_started
        return 2 if name == self.failing else 0

    def cuInit(self, flags: int) -> int:  # noqa: N802
        assert flags == 0
        self.is_started = True
        return self._result("cuInit")

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.uuids)
        return self._result("cuDeviceGetCount")

    def cuDeviceGet(self, number: Any, index: int) -> int:  # noqa: N802
        number._obj.value = index + 7
        return self._result("cuDeviceGet")

    def cuDeviceGetUuid(self, uuid: Any, number: ctypes.c_int) -> int:  # noqa: N802
        uuid.raw = self.uuids[number.value - 7]
        return self._result("cuDeviceGetUuid")

    def cuDevicePrimaryCtxRetain(self, context: Any, number: ctypes.c_int) -> int:  # noqa: N802
        context._obj.value = 1
        self.held[number.value] += not self._result("cuDevicePrimaryCtxRetain")
        return self._result("cuDevicePrimaryCtxRetain")

    def cuDevicePrimaryCtxRelease_v2(self, number: ctypes.c_int) -> int:  # noqa: N802
        self.held[number.value] -= 1
        return self._result("cuDevicePrimaryCtxRelease_v2")

    def cuGetErrorString(self, result: int, text: Any) -> int:  # noqa: N802
        assert result == 2
        text._obj.value = b"out of memory"
        return 0


def nvidia() -> DeviceInfo:
    return replace(device_info("discrete"), vendor_id=0x10DE, name="a card", device_uuid=OWN)


def test_the_context_of_the_same_device_is_held_until_the_end() -> None:
    cuda = Cuda()
    first, second = (KeptClock(nvidia(), lambda: cuda) for _ in range(2))
    assert cuda.held == {8: 2}  # CUDA counts the references
    del first
    gc.collect()
    assert cuda.held == {8: 1}
    del second
    gc.collect()
    assert cuda.held == {8: 0}


def test_a_forked_process_gives_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    clock = KeptClock(nvidia(), lambda: cuda)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    del clock
    gc.collect()
    assert cuda.held == {8: 1}


def test_the_end_of_the_process_gives_it_back() -> None:
    """A process of its own, whose object lives until then."""
    program = """
        from test_kept_clock import Cuda, KeptClock, nvidia

        class Told(Cuda):
            def cuDevicePrimaryCtxRelease_v2(self, number):
                print("released", number.value)
                return 0

        clock = KeptClock(nvidia(), Told)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout == "released 8\n", done.stderr


def no_library() -> Any:
    raise OSError("libcuda.so.1: cannot open shared object file")


@pytest.mark.parametrize(
    ("info", "load", "message"),
    [
        (device_info("cpu"), Cuda, "NVIDIA's GPUs up by CUDA, and a cpu device is none; leave out keep_clock"),
        (nvidia(), no_library, r"CUDA library of NVIDIA's driver, which can't be loaded \(libcuda.so.1: cannot open"),
        (nvidia(), lambda: Cuda((OTHER,)), r"none of the 1 devices that CUDA sees is a card \(CUDA_VISIBLE_DEVICES"),
        (nvidia(), lambda: Cuda(()), "none of the 0 devices"),
        (nvidia(), lambda: Cuda(failing="cuInit"), r"could not start CUDA \(2: out of memory\)"),
        (nvidia(), lambda: Cuda(failing="cuDeviceGetUuid"), r"could not identify device 0 \(2"),
        (nvidia(), lambda: Cuda(failing="cuDevicePrimaryCtxRetain"), r"could not open a card \(2"),
    ],
)
def test_it_is_refused_with_a_reason(info: DeviceInfo, load: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        KeptClock(info, load)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of one operator."""
    torch.jit.script(torch.nn.ReLU()).save(str(tmp_path / "relu.pt"))
    return tmp_path / "relu.pt"


def test_models_are_refused_where_there_is_no_such_clock(device: Device, path: Path) -> None:
    x = torch.randn(2, 3)
    if device.info.vendor_id != 0x10DE:
        with pytest.raises(UnsupportedError, match="keep_clock holds the clock of NVIDIA's GPUs"):
            mobopt.load(path, device.info.index, keep_clock=True)(x)
    with pytest.raises(UnsupportedError, match=r"keep_clock=True holds .* the module runs on the CPU"):
        mobopt.load(path, "cpu", keep_clock=True)
    with pytest.raises(InputError, match="keep_clock holds"):
        run_bundle(path, [x], device="cpu", keep_clock=True)


def test_copies_keep_it_too(path: Path) -> None:
    kept = mobopt.load(path, keep_clock=True)
    for twin in (copy.copy(kept), copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        assert twin.__dict__["_keep_clock"] is True
