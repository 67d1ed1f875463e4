"""Devices that are lost, closed, forked over, or in use while the process ends."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest
import torch

from mobopt.errors import DeviceError, DeviceLostError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.array_memory import ArrayPool
from mobopt.runtimes.vulkan.engine.buffer_pool import Block, BufferPool
from mobopt.runtimes.vulkan.engine.buffers import MemoryUse
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

_LOST = -4  # VK_ERROR_DEVICE_LOST


class _FaultyDriver:
    """The C functions of Vulkan, of which ``vkQueueSubmit`` says that the device is lost while ``faults`` lasts."""

    def __init__(self, lib: Any) -> None:
        self.faults = 0
        self._lib = lib

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def vkQueueSubmit(self, *args: Any) -> int:  # noqa: N802
        if self.faults:
            self.faults -= 1
            return _LOST
        result: int = self._lib.vkQueueSubmit(*args)
        return result


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> _FaultyDriver:
    faulty = _FaultyDriver(vk.lib)
    monkeypatch.setattr(vk, "lib", faulty, raising=False)
    return faulty


class _Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(5.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.weight[:, None]) + 1


@pytest.fixture
def program(device: Device) -> VulkanProgram:
    return VulkanProgram(program_from_script_module(torch.jit.script(_Scaled())), device)


X = torch.linspace(-1, 2, 15).reshape(3, 5)


def expected(x: torch.Tensor = X) -> torch.Tensor:
    return torch.relu(x @ torch.arange(5.0)[:, None]) + 1


def test_a_lost_device_is_opened_anew_by_the_next_call(
    program: VulkanProgram, driver: _FaultyDriver, caplog: pytest.LogCaptureFixture
) -> None:
    torch.testing.assert_close(program(X), expected())
    lost = program.device
    program.close()  # the plans of the next call are made with the faulty driver
    driver.faults = 1
    with pytest.raises(DeviceLostError, match=r"VK_ERROR_DEVICE_LOST .*the next call opens the device anew"):
        program(X)
    with caplog.at_level(logging.WARNING, "mobopt.vulkan"):
        torch.testing.assert_close(program(X), expected())
    assert f"{lost.info.name} was lost; it is opened anew" in caplog.messages
    assert program.device is not lost
    assert not lost.is_open
    assert not any(lost.live_objects.values())


def test_a_device_that_is_lost_again_at_once_is_given_up(program: VulkanProgram, driver: _FaultyDriver) -> None:
    driver.faults = 2
    for _ in range(2):
        with pytest.raises(DeviceLostError, match="the next call"):
            program(X)
    with pytest.raises(DeviceLostError, match="lost again after it was opened anew; choose another device"):
        program(X)


def test_programs_of_a_lost_device_share_the_new_one(
    program: VulkanProgram, device: Device, driver: _FaultyDriver
) -> None:
    other = VulkanProgram(program.program, device)
    other(X)
    driver.faults = 1
    with pytest.raises(DeviceLostError):
        program(X)
    torch.testing.assert_close(program(X), expected())
    torch.testing.assert_close(other(2 * X), expected(2 * X))
    assert program.device is other.device


def test_a_program_outlives_its_device(program: VulkanProgram, device: Device) -> None:
    program(X)
    device.close()
    torch.testing.assert_close(program(X), expected())


def test_an_executable_of_a_closed_device_says_so(program: VulkanProgram, device: Device) -> None:
    program(X)
    (plan,) = program._plans
    assert plan.executable is not None
    device.close()
    with pytest.raises(DeviceError, match="is closed, and what was made for it can't run any more"):
        plan.executable.run([X])


_SETUP = """
    import os, sys, threading, time, torch
    from mobopt import optimize_for_mobile
    from mobopt.errors import DeviceError
    module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU()).eval()
    m = optimize_for_mobile(torch.jit.script(module), backend="vulkan", runtime="mobopt")
    x = torch.ones(3, 5)
    wanted = m(x)

    def child(work, status):
        pid = os.fork()
        if not pid:
            work()
            sys.exit(status)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            ended, how = os.waitpid(pid, os.WNOHANG)
            if ended:
                assert os.WIFEXITED(how) and os.WEXITSTATUS(how) == status, how
                return
            time.sleep(0.01)
        os.kill(pid, 9)
        raise SystemExit("the child hangs")

    def call():
        assert torch.equal(m(x), wanted)
        print("right", flush=True)

    def call_in_child():
        if m.runtime.device.info.is_cpu:
            return call()
        try:
            m(x)
        except DeviceError as error:
            assert "was forked from one that has" in str(error)
            print("right", flush=True)
"""


def _run(body: str) -> subprocess.CompletedProcess[str]:
    script = textwrap.dedent(_SETUP) + textwrap.dedent(body)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems don't fork by default")
@pytest.mark.parametrize(
    "busy",
    [pytest.param(False, id="idle", marks=pytest.mark.sweep), pytest.param(True, id="beside a thread in a call")],
)
def test_a_forked_process_has_a_device_of_its_own_or_says_why_not(busy: bool) -> None:
    begin = """
        stop = threading.Event()
        thread = threading.Thread(target=lambda: [(m(x), time.sleep(1e-3)) for _ in iter(stop.is_set, True)])
        thread.start()
    """
    end = "stop.set(); thread.join()"
    forks = """
        child(lambda: None, 3)
        child(call_in_child, 0)
        child(lambda: child(call_in_child, 5), 4)
        call()
    """
    parts: list[str] = [textwrap.dedent(part) for part in ([begin, forks, end] if busy else [forks])]
    done = _run("\n".join(parts))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("right") == 3


@pytest.mark.parametrize(
    "daemon",
    [
        pytest.param("lambda: [m(x) for _ in iter(int, 1)]", id="in calls", marks=pytest.mark.sweep),
        pytest.param("lambda: [m(torch.ones(rows, 5)) for rows in range(1, 9999)]", id="making plans"),
    ],
)
def test_a_daemon_thread_does_not_disturb_the_end(daemon: str) -> None:
    done = _run(f"threading.Thread(target={daemon}, daemon=True).start(); time.sleep(0.3); print('end')")
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_new_plans_are_made_while_the_process_ends() -> None:
    """No thread may be started any more when functions of ``atexit`` run."""
    done = _run("""
        import atexit
        fresh = optimize_for_mobile(torch.jit.script(torch.nn.Softmax(1)), backend="vulkan", runtime="mobopt")
        atexit.register(lambda: print(*fresh(x).shape))
    """)
    assert (done.returncode, done.stdout) == (0, "3 5\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_finalizers_do_not_wait_for_the_lock(device: Device) -> None:
    """The garbage collector runs in any thread, also in one for which the thread that has the lock is waiting."""
    pool = device.shared(ArrayPool)
    kept = pool.live_bytes
    held = [pool.allocate(4096)]
    with device.lock:
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join(30)
        assert not thread.is_alive() and not held
        assert pool.live_bytes == kept + 4096
    assert device.shared(ArrayPool).live_bytes == kept


def test_what_is_collected_in_the_middle_of_something_comes_after_it(device: Device) -> None:
    """The garbage collector runs at any allocation, as while idle buffers were looked through for one that fits."""
    pool = device.shared(BufferPool)
    block = pool.take(12_345, MemoryUse.UPLOAD)

    def give_back() -> None:
        pool.give_back(block)

    with device.lock:
        device.when_free(give_back)
        assert block in pool._taken
    assert block in pool._taken
    assert device.shared(BufferPool) is pool and block not in pool._taken
    device.when_free(lambda: pool.give_back(pool.take(12_345, MemoryUse.UPLOAD)))
    assert not device._put_off


def test_memory_that_is_about_to_come_back_serves_where_there_is_no_other(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = device.shared(BufferPool)
    block = pool.take(54_321, MemoryUse.UPLOAD)
    allocate, failures = pool._allocate, [DeviceError("out of memory")]

    def failing_once(nbytes: int, use: MemoryUse) -> Block:
        if failures:
            raise failures.pop()
        return allocate(nbytes, use)

    monkeypatch.setattr(pool, "_allocate", failing_once)
    pool.free_idle()
    with device.lock:
        device.when_free(lambda: pool.give_back(block))
        other = pool.take(76_543, MemoryUse.UPLOAD)
        assert block not in pool._taken and not pool._idle_bytes
    pool.give_back(other)
