"""Caches of a model's state that calls write to where they lie: numbers, and what must not be seen of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mobopt.errors import MoboptError
from mobopt.frontends.exported.exported_program import ExportedProgramSource
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.compile.in_place import NO_WRITES_IN_PLACE
from mobopt.runtimes.vulkan.engine import lane
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.runtimes.vulkan.state_arrays import StateArrays

HEADS, CACHED, SIZE = 3, 11, 8


class Cached(nn.Module):
    """A row for each of two caches, and what is read of them; an index of another table may be out of range."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(1, HEADS, CACHED, SIZE, generator=torch.Generator().manual_seed(2)))
        self.register_buffer("table", torch.arange(7.0))

    def forward(self, x: Tensor, place: Tensor, other: Tensor) -> Tensor:
        self.keys.index_copy_(2, place, x)
        self.values.index_copy_(2, place, x * 2.0)
        seen = (self.keys * self.values).sum(2)
        return seen + self.table.index_select(0, other)

    @torch.jit.export
    def caches(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values

    @torch.jit.export
    def set(self, keys: Tensor) -> None:
        self.keys = keys

    @torch.jit.export
    def doubled(self, x: Tensor, place: Tensor) -> Tensor:
        self.keys.index_copy_(2, place, x)
        return self.keys


def row(seed: int) -> Tensor:
    return torch.randn(1, HEADS, 1, SIZE, generator=torch.Generator().manual_seed(seed))


def at(number: int) -> Tensor:
    return torch.tensor([number])


def runner_of(device: Device, **options: Any) -> VulkanProgram:
    program = program_from_script_module(torch.jit.script(Cached().eval()), ["caches", "set", "doubled"])
    return VulkanProgram(program, device, **options)


def writes_in_place(runner: VulkanProgram) -> bool:
    plans = [plan for plan in runner._plans._plans.values() if plan.executable is not None]
    return any(plan.executable._staged.outputs_in_inputs for plan in plans)


def caches(runner: VulkanProgram) -> list[Tensor]:
    """What the state's arrays hold."""
    arrays = runner._state_arrays
    return [arrays.array(runner.model_state.forms[name]).tensor() for name in ("keys", "values")]


def close(found: Tensor, expected: Tensor) -> bool:
    return float((found.double() - expected.double()).abs().max()) <= 2e-6 * float(expected.abs().max())


@pytest.fixture(params=["cpu", "discrete", "emulated chains"])
def road(request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    info = device.info
    if request.param == "discrete":
        info = replace(info, kind="discrete")
    if request.param == "emulated chains":
        switches = frozenset({"emulated-chains", "no-texels", "shared-products"})
        info = replace(info, switches=info.switches | switches)
    monkeypatch.setattr(device, "info", info)
    yield request.param


def test_rows_are_written_where_they_lie(device: Device, road: str) -> None:
    runner, exact = runner_of(device), Cached().eval()
    try:
        memories = None
        for number, place in enumerate((4, 0, 10, 4)):
            found = runner(row(number), at(place), at(3))
            assert close(found, exact(row(number), at(place), at(3)))
            kept = {id(kept.array.memory) for kept in runner._state_arrays._kept.values()}
            assert memories in (None, kept)
            memories = kept
        assert writes_in_place(runner)
        assert all(map(close, caches(runner), (exact.keys, exact.values)))
    finally:
        runner.close()


def test_the_switch(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "info", replace(device.info, switches=device.info.switches | {NO_WRITES_IN_PLACE}))
    runner, exact = runner_of(device), Cached().eval()
    try:
        for place in (4, 0):
            assert close(runner(row(1), at(place), at(3)), exact(row(1), at(place), at(3)))
        assert not writes_in_place(runner)
    finally:
        runner.close()


@pytest.mark.parametrize(("place", "other"), [(4, 7), (11, 3), (-1, 3), (11, 7)])
def test_a_call_that_fails_leaves_the_caches(device: Device, road: str, place: int, other: int) -> None:
    """What is out of range is seen when rows have been written already."""
    runner = runner_of(device)
    try:
        runner(row(1), at(4), at(3))
        before = caches(runner)
        with pytest.raises(MoboptError, match="index"):
            runner(row(2), at(place), at(other))
        assert all(map(torch.equal, caches(runner), before))
        exact = Cached().eval()
        exact(row(1), at(4), at(3))
        assert close(runner(row(3), at(5), at(3)), exact(row(3), at(5), at(3)))
        assert writes_in_place(runner)
    finally:
        runner.close()


def test_a_profile_leaves_the_caches(device: Device) -> None:
    runner = runner_of(device)
    try:
        runner(row(1), at(4), at(3))
        before = caches(runner)
        for _ in range(2):
            runner.profile([row(2), at(4), at(3)])
        assert all(map(torch.equal, caches(runner), before))
        assert writes_in_place(runner)
    finally:
        runner.close()


def test_an_interrupted_call_leaves_the_caches(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of(device)
    try:
        runner(row(1), at(4), at(3))
        before = caches(runner)

        def interrupted(self: lane.Lane, arrays: Any) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(lane.Lane, "_with_read", interrupted)
            with pytest.raises(KeyboardInterrupt):
                runner(row(2), at(4), at(3))
        assert all(map(torch.equal, caches(runner), before))
    finally:
        runner.close()


@pytest.mark.parametrize("error", [lane._OverdueError, lane._LateError])
def test_a_run_that_is_begun_anew_undoes_the_first(
    device: Device, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """As where dispatches waited for others, or for the host, in vain."""
    runner, exact = runner_of(device), Cached().eval()
    try:
        assert close(runner(row(1), at(4), at(3)), exact(row(1), at(4), at(3)))
        begun: list[int] = []
        finish = lane.Lane._finish_steps

        def overdue(self: lane.Lane, polls: bool) -> None:
            begun.append(1)
            try:
                finish(self, polls)
            finally:
                if len(begun) == 1:
                    raise error

        with monkeypatch.context() as patch:
            patch.setattr(lane.Lane, "_finish_steps", overdue)
            patch.setattr(lane.Lane, "_unchain", lambda self: None)
            assert close(runner(row(2), at(6), at(3)), exact(row(2), at(6), at(3)))
            assert len(begun) == 2
            begun.clear()
            before = caches(runner)
            with pytest.raises(MoboptError, match="index"):
                runner(row(3), at(6), at(7))
            assert len(begun) == 2
            assert all(map(torch.equal, caches(runner), before))
    finally:
        runner.close()


def test_arrays_that_others_have_are_not_written_to(device: Device) -> None:
    runner, exact = runner_of(device), Cached().eval()
    try:
        runner(row(1), at(4), at(3))
        exact(row(1), at(4), at(3))
        given = runner.run_on_device("caches", ())
        before = [array.tensor().clone() for array in given]
        for place in (4, 5):
            assert close(runner(row(2), at(place), at(3)), exact(row(2), at(place), at(3)))
        assert all(torch.equal(array.tensor(), old) for array, old in zip(given, before, strict=True))
        assert writes_in_place(runner)
        assert all(map(close, caches(runner), (exact.keys, exact.values)))
    finally:
        runner.close()


def test_arrays_of_the_state_are_looked_for_once(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until somebody else has one of them: a decoder has two for each layer, and looks for none of them in a call."""
    looked: list[Tensor] = []
    bound: list[int] = []
    array, bindable = StateArrays.array, lane.Lane._bindable

    def counted_array(self: StateArrays, whole: Tensor) -> DeviceArray:
        looked.append(whole)
        return array(self, whole)

    def counted_bindable(self: lane.Lane, value: Any, number: int) -> DeviceArray:
        bound.append(number)
        return bindable(self, value, number)

    monkeypatch.setattr(StateArrays, "array", counted_array)
    monkeypatch.setattr(lane.Lane, "_bindable", counted_bindable)
    runner, exact = runner_of(device), Cached().eval()
    inputs = [DeviceArray.from_tensor(device, tensor) for tensor in (row(1), at(2), at(3))]
    expected = exact(row(1), at(2), at(3))
    try:
        for _ in range(2):
            runner.run_on_device("forward", inputs)
        looked.clear()
        bound.clear()
        assert close(runner.run_on_device("forward", inputs).tensor(), expected)
        assert not looked and not bound
        keys = runner.run_on_device("caches", ())[0]
        before = keys.tensor().clone()
        looked.clear()
        moved = [inputs[0], DeviceArray.from_tensor(device, at(5)), inputs[2]]
        assert close(runner.run_on_device("forward", moved).tensor(), exact(row(1), at(5), at(3)))
        assert looked and bound and torch.equal(keys.tensor(), before)
        assert all(map(close, caches(runner), (exact.keys, exact.values)))
    finally:
        runner.close()


def test_an_array_that_became_the_state_is_not_written_to(device: Device) -> None:
    runner, exact = runner_of(device), Cached().eval()
    keys = torch.randn(1, HEADS, CACHED, SIZE, generator=torch.Generator().manual_seed(9))
    try:
        array = DeviceArray.from_tensor(device, keys)
        runner.run_on_device("set", (array,))
        exact.keys = keys.clone()
        for place in (4, 5):
            found = runner.run_on_device("forward", (row(2), at(place), at(3)))
            assert close(found.tensor(), exact(row(2), at(place), at(3)))
        assert torch.equal(array.tensor(), keys)
        assert writes_in_place(runner)
        assert all(map(close, caches(runner), (exact.keys, exact.values)))
    finally:
        runner.close()


@pytest.mark.parametrize("on_device", [False, True])
def test_a_cache_that_is_returned_is_another_each_time(device: Device, on_device: bool) -> None:
    runner, exact = runner_of(device), Cached().eval()
    try:
        results, expected = [], []
        for place in (1, 2, 3):
            found = (runner.run_on_device if on_device else runner.run)("doubled", (row(place), at(place)))
            results.append(found)
            expected.append(exact.doubled(row(place), at(place)).clone())
        if on_device:
            assert all(close(array.tensor(), old) for array, old in zip(results, expected, strict=True))
        else:  # one memory, as in eager mode
            assert all(close(tensor, exact.keys) for tensor in results)
    finally:
        runner.close()


def test_halves_leave_caches_in_float32(device: Device) -> None:
    runner, exact = runner_of(device, precision=PrecisionChoice.of("fp16")), Cached().eval()
    try:
        for place in (4, 0):
            found, expected = runner(row(place), at(place), at(3)), exact(row(place), at(place), at(3))
            assert float((found - expected).abs().max()) <= 4e-3 * float(expected.abs().max())
        assert writes_in_place(runner)
        assert close(caches(runner)[0], exact.keys)
    finally:
        runner.close()


class Shared(nn.Module):
    """Caches that share memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("both", torch.zeros(2, HEADS, CACHED, SIZE))

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        self.both[0].index_copy_(1, place, x[0])
        self.both[1].index_copy_(1, place, x[0] * 3.0)
        return self.both.sum(2)


def test_caches_in_one_memory(device: Device) -> None:
    exact = Shared().eval()
    runner = VulkanProgram(program_from_script_module(torch.jit.script(Shared().eval())), device)
    try:
        for place in (4, 0, 4):
            assert close(runner(row(place), at(place)), exact(row(place), at(place)))
    finally:
        runner.close()


class Indexed(nn.Module):
    """Rows that are assigned by an index, of caches and of what they are views of."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, HEADS, CACHED, SIZE))

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        self.keys[:, :, place] = x
        self.values[:, :, place] = x[0] * 2.0
        return (self.keys * self.values).sum(2)


@pytest.mark.parametrize("way", ["script", "export"])
def test_rows_by_index(device: Device, road: str, way: str) -> None:
    """Also counted from the end, and out of range."""
    module = Indexed().eval()
    if way == "script":
        program = program_from_script_module(torch.jit.script(module))
    else:
        program = ExportedProgramSource(torch.export.export(module, (row(1), at(1)))).program
    runner, exact = VulkanProgram(program, device), Indexed().eval()
    try:
        for number, place in enumerate((4, 0, CACHED - 1, -1, -CACHED)):
            found = runner(row(number), at(place))
            assert close(found, exact(row(number), at(place)))
        assert writes_in_place(runner)
        for place in (CACHED, -CACHED - 1):
            with pytest.raises(MoboptError, match="index"):
                runner(row(9), at(place))
        assert all(map(close, caches(runner), (exact.keys, exact.values)))
    finally:
        runner.close()
