"""Whole models on arrays: chains without copies, results that share memory, futures."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any

import pytest
import torch
from torch import nn

from mobopt import optimize_for_mobile
from mobopt.errors import DeviceError, InputError, UnsupportedError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.stream import Copy
from mobopt.runtimes.vulkan.engine.transfers import Transfers
from mobopt.runtimes.vulkan.program import VulkanProgram


def program_of(model: nn.Module, device: Device) -> VulkanProgram:
    """A model on a device."""
    return VulkanProgram(program_from_script_module(torch.jit.script(model.eval())), device)


def on_cpu(value: Any) -> Any:
    """A nest with tensors in place of arrays."""
    if isinstance(value, (list, tuple)):
        return type(value)(on_cpu(item) for item in value)
    if isinstance(value, dict):
        return {key: on_cpu(item) for key, item in value.items()}
    return value.tensor() if isinstance(value, DeviceArray) else value


class Net(nn.Module):
    """A convolution, so that the layout inside is another than outside."""

    def __init__(self, seed: int, channels: int = 5) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.convolution(x)) + x


X = torch.rand(2, 5, 7, 3, generator=torch.Generator().manual_seed(0))


def test_a_chain_of_models_copies_once_in_and_once_out(device: Device) -> None:
    models = [Net(seed) for seed in range(3)]
    programs = [program_of(model, device) for model in models]
    transfers = device.shared(Transfers)
    for _ in range(2):
        before = transfers.uploads, transfers.downloads
        value: Any = X
        for program in programs:
            value = program.run_on_device("forward", [value])
        assert isinstance(value, DeviceArray)
        found = value.tensor()
        assert (transfers.uploads - before[0], transfers.downloads - before[1]) == (0, 1)  # plans take tensors
    with torch.no_grad():
        torch.testing.assert_close(found, models[2](models[1](models[0](X))), rtol=1e-4, atol=1e-5)
    for program in programs:
        (plan,) = program._plans
        assert plan.executable is not None
        assert not [one for one in plan.executable._staged.operations if isinstance(one, Copy)]
        program.close()
    assert torch.equal(value.tensor(), found)


class Sharing(nn.Module):
    """Results that are arguments, views of them, constants, views of one another, and plain values."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3), requires_grad=False)

    def forward(
        self, x: torch.Tensor, i: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int]:
        y = x * 2
        return x, x.t()[1:], self.weight, y, y[:, ::2], i + 1, x.size(0)


def test_results_share_memory_as_arguments_do(device: Device) -> None:
    model = Sharing()
    program = program_of(model, device)
    x, i = torch.arange(6.0).reshape(2, 3), torch.tensor([1, 2, 3])
    wanted = model(x, i)
    for given in ((x, i), (DeviceArray.from_tensor(device, x), i)):
        found = program.run_on_device("forward", given)
        for value, expected in zip(on_cpu(found), wanted, strict=True):
            torch.testing.assert_close(value, expected)
        same, view, _, y, part, _, _ = found
        assert same.memory is view.memory
        assert y.memory is part.memory
        if isinstance(given[0], DeviceArray):
            assert same.memory is given[0].memory
    strided = DeviceArray.from_tensor(device, torch.arange(12.0)).as_strided((2, 3), (1, 4), 2)
    wanted = model(strided.tensor(), i)
    for given in (strided, torch.arange(12.0).as_strided((2, 3), (1, 4), 2)):
        for one in (program, program_of(model, device)):
            found = one.run_on_device("forward", (given, i))
            for value, expected in zip(on_cpu(found), wanted, strict=True):
                torch.testing.assert_close(value, expected)


class Keeping(nn.Module):
    """Keeps its argument, and adds to what it kept."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.kept.clone()
        self.kept = x
        self.kept += 1
        return before


def test_an_argument_on_the_cpu_that_becomes_state(device: Device) -> None:
    program = program_of(Keeping(), device)
    arguments = [torch.full((2, 3), float(number)) for number in range(3)]
    found = [program.run_on_device("forward", [x]).tensor() for x in arguments]
    for number, value in enumerate(found):
        assert torch.equal(value, torch.full((2, 3), float(number)))  # that of the call before, plus one
    assert torch.equal(program.model_state.values["kept"], torch.full((2, 3), 3.0))


class Kinds(nn.Module):
    """A dtype that the device has no elements for, beside others."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x.double() + 1, x > 0, x.argmax()


@pytest.mark.parametrize("sizes", [(4,), (3, 5), (2, 1, 3, 5)])
def test_what_has_no_elements_stays_on_the_cpu(device: Device, sizes: tuple[int, ...]) -> None:
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(3))
    found = program_of(Kinds(), device).run_on_device("forward", [x])
    assert [isinstance(value, DeviceArray) for value in found] == [False, True, True]
    for value, expected in zip(on_cpu(found), Kinds()(x), strict=True):
        assert value.dtype == expected.dtype
        torch.testing.assert_close(value, expected)


class Looking(nn.Module):
    """Elements decide what is computed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if bool(x.sum() > 0) else x - 1


def test_a_look_at_an_array(device: Device) -> None:
    program = program_of(Looking(), device)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        array = DeviceArray.from_tensor(device, x)
        assert torch.equal(program.run_on_device("forward", [array]).tensor(), Looking()(x))


class Picking(nn.Module):
    """Indices that may be out of range."""

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, i)


def test_indices_in_an_array(device: Device) -> None:
    program = program_of(Picking(), device)
    x = torch.arange(12.0).reshape(4, 3)
    for index in ([0, 3], [2, 2]):
        i = torch.tensor(index)
        assert torch.equal(program.run_on_device("forward", [x, DeviceArray.from_tensor(device, i)]).tensor(), x[i])
    with pytest.raises(InputError, match="out of range"):
        program.run_on_device("forward", [x, DeviceArray.from_tensor(device, torch.tensor([4]))])


class Counting(nn.Module):
    """State that is assigned and written to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("last", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.total += x
        self.last = x[:1] * 2
        return self.total, self.last + self.total.sum()


@pytest.mark.parametrize("on_device", [False, True])
def test_submitted_calls_of_a_model_with_state_take_turns(device: Device, on_device: bool) -> None:
    eager, program = Counting(), program_of(Counting(), device)
    inputs = [torch.full((3,), float(number)) for number in range(8)]
    wanted = [(eager(x)[0].clone(), eager.last + eager.total.sum()) for x in inputs]
    futures = [program.submit("forward", [x], on_device) for x in inputs[:-1]]
    last = program.run_on_device("forward", [inputs[-1]]) if on_device else program.run("forward", [inputs[-1]])
    assert all(future.done() for future in futures)
    for found, expected in zip([*(future.result() for future in futures), last], wanted, strict=True):
        torch.testing.assert_close(on_cpu(found[1]), expected[1])
        if on_device:
            torch.testing.assert_close(on_cpu(found[0]), expected[0])  # what the state was then
    torch.testing.assert_close(program.model_state.values["total"], eager.total)
    torch.testing.assert_close(program.model_state.values["last"], eager.last)


def test_arrays_are_for_run_on_device(device: Device) -> None:
    array = DeviceArray.from_tensor(device, X)
    with pytest.raises(InputError, match="call run_on_device, or give its tensor"):
        program_of(Net(0), device).run("forward", [array])


@pytest.mark.parametrize("on_device", [False, True])
def test_many_futures(device: Device, on_device: bool) -> None:
    model = Net(4)
    program = program_of(model, device)
    inputs = [X * number for number in range(12)]
    futures = [program.submit("forward", [x], on_device) for x in inputs]
    done, late = concurrent.futures.wait(futures, 60)
    assert not late
    assert done == set(futures)
    with torch.no_grad():
        for x, future in zip(inputs, futures, strict=True):
            assert future.done()
            torch.testing.assert_close(on_cpu(future.result()), model(x), rtol=1e-4, atol=1e-5)
    (plan,) = program._plans
    assert plan.users == 0
    assert plan.executable is not None
    assert len(plan.executable._owned.lanes) <= 2


def test_errors_come_with_the_result(device: Device) -> None:
    program = program_of(Picking(), device)
    x = torch.arange(12.0).reshape(4, 3)
    futures = [program.submit("forward", [x, torch.tensor([index])]) for index in (3, 4, 0)]
    wrong = program.submit("forward", ["text", torch.tensor([0])])
    assert torch.equal(futures[0].result(60), x[3:])
    with pytest.raises(InputError, match="out of range"):
        futures[1].result(60)
    assert torch.equal(futures[2].result(60), x[:1])
    with pytest.raises(InputError):
        wrong.result(60)
    assert all(plan.users == 0 for plan in program._plans)


def test_threads_submit_and_call(device: Device) -> None:
    program = program_of(Net(5), device)
    with torch.no_grad():
        wanted = {number: program.run("forward", [X * number]) for number in range(4)}
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(8):
            how = (number + turn) % 3
            if how == 0:
                found = program.run("forward", [X * number])
            elif how == 1:
                found = program.submit("forward", [X * number]).result(60)
            else:
                found = program.run_on_device("forward", [X * number]).tensor()
            if not torch.equal(found, wanted[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong


def test_closing_while_calls_are_in_flight(device: Device) -> None:
    program = program_of(Net(6), device)
    wanted = program.run("forward", [X])
    futures = [program.submit("forward", [X]) for _ in range(2)]
    program.close()
    futures += [program.submit("forward", [X])]
    for future in futures:
        assert torch.equal(future.result(60), wanted)
    before = device.live_objects["Pipeline"]
    program.close()
    assert device.live_objects["Pipeline"] == before  # the last idle ones are kept
    assert not program._plans


def test_plans_that_are_given_up_while_a_call_has_them(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mobopt.runtimes.vulkan.program.MAX_PLANS", 1)
    model = Net(7)
    program = program_of(model, device)
    inputs = [torch.rand(1, 5, size, 4, generator=torch.Generator().manual_seed(size)) for size in (3, 4, 5, 3)]
    futures = [program.submit("forward", [x]) for x in inputs]
    with torch.no_grad():
        for x, future in zip(inputs, futures, strict=True):
            torch.testing.assert_close(future.result(60), model(x), rtol=1e-4, atol=1e-5)


def test_modules(device: Device) -> None:
    model = Net(8).eval()
    script = torch.jit.script(model)
    module = optimize_for_mobile(script, backend="vulkan", runtime="mobopt")
    with torch.no_grad():
        wanted = model(model(X))
    torch.testing.assert_close(module.run_on_device(module.run_on_device(x=X)).tensor(), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(module.submit(module(X)).result(60), wanted, rtol=1e-4, atol=1e-5)
    array = module.submit_on_device(module(X)).result(60)
    torch.testing.assert_close(array.tensor(), wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(module(X), module.run_on_device(X).tensor())
    on_host = optimize_for_mobile(script, backend="cpu")
    for call in (on_host.run_on_device, on_host.submit, on_host.submit_on_device):
        with pytest.raises(UnsupportedError, match="needs a Vulkan device"):
            call(X)


def test_an_array_outlives_its_device_only_to_say_so(device: Device) -> None:
    program = program_of(Net(9), device)
    array = program.run_on_device("forward", [X])
    device.close()
    with pytest.raises(DeviceError, match="is closed; copy arrays"):
        program.run_on_device("forward", [array])
    assert torch.equal(program.run_on_device("forward", [X]).tensor(), program.run("forward", [X]))
