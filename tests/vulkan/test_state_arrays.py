"""State of models that lies on the device between calls."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mobopt
from mobopt import optimize_for_mobile
from mobopt.errors import DeviceLostError, InputError, MoboptError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.array_memory import ArrayPool
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.transfers import Transfers
from mobopt.runtimes.vulkan.program import VulkanProgram

_LOST = -4  # VK_ERROR_DEVICE_LOST


class Cache(nn.Module):
    """A cache of keys, written by index or by slice, and a count."""

    def __init__(self, by_slice: bool) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(16, 5))
        self.by_slice = by_slice
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.by_slice:
            self.keys[self.count : self.count + 1] = x
        else:
            self.keys.index_copy_(0, torch.tensor([self.count]), x)
        self.count += 1
        return (x @ self.keys.t()).relu()


class Recurrent(nn.Module):
    """A hidden state that each call assigns anew, and one that it also returns."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hidden", torch.zeros(1, 4))
        self.register_buffer("shown", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.hidden = torch.tanh(self.hidden * 0.5 + x)
        self.shown = self.shown + self.hidden
        return self.shown, self.hidden * 2


def program_of(model: nn.Module, device: Device) -> VulkanProgram:
    """A model on a device."""
    return VulkanProgram(program_from_script_module(torch.jit.script(model.eval())), device)


def steps(count: int, size: int = 5) -> list[torch.Tensor]:
    """Inputs of calls."""
    generator = torch.Generator().manual_seed(count)
    return [torch.rand(1, size, generator=generator) - 0.5 for _ in range(count)]


def kept(program: VulkanProgram) -> int:
    """How many memories of the state lie on the device."""
    return len(program._state_arrays._kept)


@pytest.mark.parametrize("by_slice", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_a_cache_is_not_copied_from_call_to_call(device: Device, by_slice: bool, on_device: bool) -> None:
    eager, program = Cache(by_slice), program_of(Cache(by_slice), device)
    transfers = device.shared(Transfers)
    for number, x in enumerate(steps(6)):
        given = DeviceArray.from_tensor(device, x) if on_device else x
        before = transfers.uploads, transfers.downloads
        found = (program.run_on_device if on_device else program.run)("forward", [given])
        crossed = transfers.uploads - before[0], transfers.downloads - before[1]
        assert crossed == ((1, 0) if number == 0 else (0, 0))
        torch.testing.assert_close(found.tensor() if on_device else found, eager(x))
        assert kept(program) == 1
    torch.testing.assert_close(program.model_state.values["keys"], eager.keys)
    assert transfers.downloads == before[1] + 1 + on_device
    for x in steps(3):
        torch.testing.assert_close(program.run("forward", [x]), eager(x))
    torch.testing.assert_close(program.model_state.values["keys"], eager.keys)


def test_what_a_call_returns_too_is_the_callers(device: Device) -> None:
    eager, program = Recurrent(), program_of(Recurrent(), device)
    pairs = []
    for x in steps(4, 4):
        pairs.append((program.run("forward", [x]), eager(x)))
        for found, expected in pairs:
            for one, two in zip(found, expected, strict=True):
                torch.testing.assert_close(one, two)
        assert pairs[-1][0][0] is program.model_state.forms["shown"]
        assert program._state_arrays.array(program.model_state.forms["hidden"]).shape == (1, 4)
        assert not program.model_state.is_exposed(program.model_state.forms["hidden"])
    pairs[-1][0][0].fill_(7.0)  # the state's own
    eager.shown.fill_(7.0)
    x = steps(1, 4)[0]
    torch.testing.assert_close(program.run("forward", [x])[0], eager(x)[0])


def test_results_in_arrays_are_what_the_state_was(device: Device) -> None:
    eager, program = Recurrent(), program_of(Recurrent(), device)
    results = []
    for x in steps(4, 4):
        results.append((program.run_on_device("forward", [x]), [one.clone() for one in eager(x)]))
    for found, expected in results:
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one.tensor(), two)
    assert kept(program) == 2


class Parts(nn.Module):
    """Attributes that share memory with one another, in views."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.arange(12.0).reshape(3, 4)
        self.register_buffer("whole", whole)
        self.register_buffer("row", whole[1])
        self.register_buffer("columns", whole.t()[1:3])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.row.add_(x)
        self.columns.mul_(2.0)
        return self.whole.sum(0) * 1.0

    @torch.jit.export
    def renew(self, x: torch.Tensor) -> torch.Tensor:
        base = (x.unsqueeze(0) * torch.ones(3, 1)).t().contiguous().t()
        self.whole = base
        self.row = base[1]
        self.columns = base.t()[1:3]
        return x * 1.0

    @torch.jit.export
    def look(self, x: torch.Tensor) -> torch.Tensor:
        return self.row


@pytest.mark.parametrize("seed", range(4))
def test_views_and_methods(device: Device, seed: int) -> None:
    eager = Parts()
    script = torch.jit.script(Parts())
    program = VulkanProgram(program_from_script_module(script, ["forward", "renew", "look"]), device)
    generator = torch.Generator().manual_seed(seed)
    given: list[tuple[torch.Tensor, torch.Tensor]] = []
    for _ in range(10):
        method = ("forward", "forward", "renew", "look")[int(torch.randint(4, (), generator=generator))]
        x = torch.rand(4, generator=generator)
        if int(torch.randint(2, (), generator=generator)):
            found = program.run_on_device(method, [x]).tensor()
            torch.testing.assert_close(found, getattr(eager, method)(x))
        else:
            given.append((program.run(method, [x]), getattr(eager, method)(x)))
        for one, two in given:
            torch.testing.assert_close(one, two)
        if int(torch.randint(3, (), generator=generator)) == 0:
            for name in ("whole", "row", "columns"):
                torch.testing.assert_close(program.model_state.values[name], getattr(eager, name))


def test_a_call_that_fails_leaves_the_state(device: Device) -> None:
    class Picks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            self.total.add_(1.0)
            return x.index_select(0, i) * self.total

    program = program_of(Picks(), device)
    x = torch.ones(3)
    assert program.run("forward", [x, torch.tensor([0, 1, 2])]).tolist() == [1.0] * 3
    for _ in range(2):
        with pytest.raises(InputError, match="out of range"):
            program.run("forward", [x, torch.tensor([0, 1, 3])])
    assert program.run("forward", [x, torch.tensor([0, 1, 2])]).tolist() == [2.0] * 3
    assert kept(program) == 1


def test_state_goes_from_the_device_into_copies_and_files(device: Device, tmp_path: Path) -> None:
    module = optimize_for_mobile(torch.jit.script(Cache(False)), backend="vulkan", runtime="mobopt")
    eager = Cache(False)
    for x in steps(3):
        torch.testing.assert_close(module(x), eager(x))
    assert kept(module.runtime) == 1
    module.save(tmp_path / "cache.pt")
    others = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), mobopt.load(tmp_path / "cache.pt")]
    assert kept(module.runtime) == 1
    x = steps(1)[0]
    wanted = copy.deepcopy(eager)(x)
    for other in others:
        torch.testing.assert_close(other(x), wanted)
    torch.testing.assert_close(module(x), eager(x))
    torch.testing.assert_close(module.state_dict()["keys"], eager.keys)
    module.keys.zero_()  # torch has it now, and may write to it
    eager.keys.zero_()
    for x in steps(2):
        torch.testing.assert_close(module(x), eager(x))
        torch.testing.assert_close(module.state_dict()["keys"], eager.keys)
    assert kept(module.runtime) == 0


def test_state_that_is_set(device: Device) -> None:
    module, eager = optimize_for_mobile(torch.jit.script(Recurrent()), backend="vulkan", runtime="mobopt"), Recurrent()
    for x in steps(2, 4):
        module(x), eager(x)
    start = torch.ones(1, 4)
    module.hidden, eager.hidden = start, start.clone()
    for x in steps(2, 4):
        torch.testing.assert_close(module(x), eager(x))
    assert torch.equal(start, torch.ones(1, 4))


def test_shallow_copies_share_what_is_written_to(device: Device) -> None:
    module = optimize_for_mobile(torch.jit.script(Cache(True)), backend="vulkan", runtime="mobopt")
    x, y = steps(2)
    module(x)
    twin = copy.copy(module)
    twin(y)
    eager = Cache(True)
    eager(x), eager(y)
    torch.testing.assert_close(module.model_state.values["keys"], eager.keys)


def test_a_closed_device_gives_the_state_back(device: Device) -> None:
    eager, program = Cache(False), program_of(Cache(False), device)
    inputs = steps(4)
    for x in inputs[:2]:
        program.run("forward", [x]), eager(x)
    assert kept(program) == 1
    device.close()
    assert kept(program) == 0
    for x in inputs[2:]:
        torch.testing.assert_close(program.run("forward", [x]), eager(x))


def test_memory_of_state_that_was_replaced_is_freed(device: Device) -> None:
    program = program_of(Recurrent(), device)
    inputs = steps(6, 4)
    for x in inputs[:2]:
        program.run("forward", [x])
    gc.collect()
    before = device.shared(ArrayPool).live_bytes
    for x in inputs[2:]:
        program.run("forward", [x])
    assert device.shared(ArrayPool).live_bytes == before
    del program
    gc.collect()
    assert device.shared(ArrayPool).live_bytes < before


class _LosingDriver:
    """The C functions of Vulkan; ``vkQueueSubmit`` says that the device is lost while ``faults`` lasts."""

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


def test_state_that_is_lost_with_the_device_is_named_once(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = _LosingDriver(vk.lib)
    monkeypatch.setattr(vk, "lib", driver, raising=False)
    eager, program = Cache(False), program_of(Cache(False), device)
    inputs = steps(5)
    for x in inputs[:2]:
        torch.testing.assert_close(program.run("forward", [x]), eager(x))
    eager.keys.copy_(program.model_state.values["keys"])  # the CPU has seen it
    saved = copy.deepcopy(eager)
    program.run("forward", [inputs[2]])
    driver.faults = 1
    with pytest.raises(DeviceLostError, match="VK_ERROR_DEVICE_LOST"):
        program.run("forward", [inputs[3]])
    with pytest.raises(DeviceLostError, match="with it what the model's state had become"):
        program.model_state.values  # noqa: B018
    with pytest.raises(DeviceLostError, match="the state is what was last read on the CPU"):
        program.run("forward", [inputs[3]])
    torch.testing.assert_close(program.model_state.values["keys"], saved.keys)
    saved.count = 3  # numbers lie on the CPU
    torch.testing.assert_close(program.run("forward", [inputs[4]]), saved(inputs[4]))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems don't fork by default")
@pytest.mark.skipif("MOBOPT_DEVICE" in os.environ, reason="a GPU's driver does not outlive a fork")
def test_a_forked_process_has_the_state_of_then(tmp_path: Path) -> None:
    script = """
        import os, torch
        from mobopt import optimize_for_mobile

        class Adds(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("total", torch.zeros(2))

            def forward(self, x):
                self.total.add_(x)
                return self.total * 1.0

        m = optimize_for_mobile(torch.jit.script(Adds()), backend="vulkan", runtime="mobopt")
        m(torch.ones(2)), m(torch.ones(2))
        pid = os.fork()
        print(m(torch.ones(2)).tolist(), flush=True)
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
    """
    path = tmp_path / "forked.py"  # torch reads the source of what it scripts
    path.write_text(textwrap.dedent(script))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[3.0, 3.0]\n" * 2), done.stderr


def test_a_state_that_can_not_be_read_can_not_be_saved(
    device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = optimize_for_mobile(torch.jit.script(Cache(False)), backend="vulkan", runtime="mobopt")
    module(steps(1)[0])
    with monkeypatch.context() as patch:
        patch.setattr(module.runtime.device.in_use, "is_lost", True)
        with pytest.raises(MoboptError, match="was lost"):
            module.save(tmp_path / "lost.pt")
    assert not (tmp_path / "lost.pt").exists()
