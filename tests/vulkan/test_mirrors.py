"""Programs that take each other's results: what stays on the device, and that nobody can tell."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan import mirrors as mirrors_module
from mobopt.runtimes.vulkan.engine.array_memory import ArrayPool
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.stream import Copy
from mobopt.runtimes.vulkan.mirrors import Mirrors
from mobopt.runtimes.vulkan.program import VulkanProgram


class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.convolution = nn.Conv2d(3, 5, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = torch.relu(self.convolution(x))
        return y, y.mean((2, 3)), (y * 100).long()


class Second(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2 + 1, x


class Pair:
    """A model, and another that takes what becomes of one of its results."""

    def __init__(self, device: Device, second: nn.Module | None = None) -> None:
        self.models = [First().eval(), (second or Second()).eval()]
        self.programs = [
            VulkanProgram(program_from_script_module(torch.jit.script(model)), device, mirrors=True)
            for model in self.models
        ]
        self.mirrors = device.shared(Mirrors)

    def call(self, between: Callable[[torch.Tensor], torch.Tensor], number: int = 0, rows: int = 2) -> int:
        """Call both, and compare; how many tensors came from the device."""
        x = torch.randn(rows, 3, 9, 7, generator=torch.Generator().manual_seed(rows))
        before = self.mirrors.found
        middle = self.programs[0].run("forward", [x])[number]
        found = self.programs[1].run("forward", [between(middle)])
        with torch.no_grad():
            expected = self.models[1](between(self.models[0](x)[number]))
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        return self.mirrors.found - before


@pytest.fixture
def pair(device_across_a_bus: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(mirrors_module, "LEAST_BYTES", 1)
    made = Pair(device_across_a_bus)
    yield made
    for program in made.programs:
        program.close()
    device_across_a_bus.shared(Mirrors).close()


def same(x: torch.Tensor) -> torch.Tensor:
    return x


def uploads(program: VulkanProgram) -> list[bool]:
    """For each plan of a program, whether it copies an input to the device, or takes one from the host."""
    executables = [plan.executable for plan in program._plans]
    return [not executable._staged.bound_inputs for executable in executables if executable is not None]


def test_results_that_are_taken_stay_on_the_device_from_the_next_call_on(pair: Pair) -> None:
    assert [pair.call(same) for _ in range(4)] == [0, 1, 1, 1]
    assert [pair.call(same, rows=3) for _ in range(2)] == [1, 1]
    assert uploads(pair.programs[1]) == [True, False, False]
    giver = list(pair.programs[0]._plans)[1].executable
    assert giver is not None and len(giver._staged.bound_outputs) == 1


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.view(y.shape[0], -1),
        lambda y: y.detach()[None],
        lambda y: y[1:],
        lambda y: y.squeeze(0).unflatten(1, (5, 1)),
        lambda y: y.as_strided((7,), (1,), 3),
    ],
)
def test_contiguous_views_are_on_the_device_too(pair: Pair, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert [pair.call(view) for _ in range(3)] == [0, 1, 1]


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.mT,
        lambda y: y[:, ::2],
        lambda y: y.view(torch.int32),
        lambda y: torch._neg_view(y),
        lambda y: y.clone(),
        lambda y: y.expand(2, *y.shape),
        lambda y: y.to(memory_format=torch.channels_last),
    ],
)
def test_others_are_copied(pair: Pair, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert [pair.call(view) for _ in range(3)] == [0, 0, 0]


def by_numpy(y: torch.Tensor) -> torch.Tensor:
    y.numpy()[0] = 7
    return y


def by_data(y: torch.Tensor) -> torch.Tensor:
    y.data.mul_(3)
    return y


def by_dlpack(y: torch.Tensor) -> torch.Tensor:
    torch.from_dlpack(y.__dlpack__()).zero_()
    return y


def by_storage(y: torch.Tensor) -> torch.Tensor:
    y.untyped_storage().fill_(0)
    return y


def by_set(y: torch.Tensor) -> torch.Tensor:
    return y.set_(torch.full_like(y, 3.0))


def by_resize(y: torch.Tensor) -> torch.Tensor:
    return y.resize_(5, 3).fill_(1.0)


def by_view(y: torch.Tensor) -> torch.Tensor:
    y.view(-1)[3:5].detach().copy_(torch.ones(2))
    return y


def as_out(y: torch.Tensor) -> torch.Tensor:
    return torch.sin(torch.ones_like(y), out=y)


@pytest.mark.parametrize(
    "write",
    [lambda y: y.add_(1), by_view, by_data, by_numpy, by_dlpack, by_storage, by_set, by_resize, as_out],
)
@pytest.mark.parametrize("is_last", [False, True])
def test_what_somebody_has_written_to_is_copied(
    pair: Pair, write: Callable[[torch.Tensor], torch.Tensor], is_last: bool
) -> None:
    if is_last:  # an array is kept already
        assert [pair.call(same) for _ in range(2)] == [0, 1]
    assert [pair.call(write) for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(("number", "found"), [(1, [0, 1, 1]), (2, [0, 0, 0])])
def test_of_several_results_those_that_are_taken(pair: Pair, number: int, found: list[int]) -> None:
    """Integers of 64 bits are looked at by the host."""
    assert [pair.call(same, number) for _ in range(3)] == found


def test_reading_leaves_it_there_and_a_later_write_reaches_no_array(pair: Pair) -> None:
    pair.call(same)
    x = torch.ones(2, 3, 9, 7)
    middle = pair.programs[0].run("forward", [x])[0]
    assert middle.sum() > 0 and middle.tolist() and torch.equal(middle, middle.clone())
    before = pair.mirrors.found
    found, itself = pair.programs[1].run("forward", [middle])
    assert pair.mirrors.found == before + 1
    assert itself.data_ptr() == middle.data_ptr()  # shares its memory, as in eager mode
    itself.zero_()
    assert not middle.any() and found.any()
    assert torch.equal(pair.programs[1].run("forward", [middle])[0], torch.ones_like(middle))
    assert pair.mirrors.found == before + 1


class Many(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x.sum()
        if bool(total > 0):  # a look at an element: two segments
            x = x * 2
        return x + total, x


def test_models_that_look_at_elements(pair: Pair) -> None:
    looking = Pair(pair.programs[0].device, Many())
    assert [looking.call(same) for _ in range(3)] == [0, 1, 1]


def test_arrays_go_with_their_results(pair: Pair) -> None:
    device = pair.programs[0].device
    for _ in range(3):
        pair.call(same)
    gc.collect()
    before = device.shared(ArrayPool).live_bytes
    kept = pair.programs[0].run("forward", [torch.ones(2, 3, 9, 7)])
    part = kept[0][0, 0]
    assert device.shared(ArrayPool).live_bytes > before
    del kept
    assert device.shared(ArrayPool).live_bytes > before  # a view has the memory
    del part
    assert device.shared(ArrayPool).live_bytes == before


@pytest.mark.parametrize(("name", "most"), [("MOST_ARRAYS", 3), ("MOST_BYTES", 3 * 4 * 2 * 5 * 7 * 5)])
def test_so_many_are_kept(pair: Pair, name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.call(same)
    monkeypatch.setattr(mirrors_module, name, most)
    results = [pair.programs[0].run("forward", [torch.full((2, 3, 9, 7), float(count))])[0] for count in range(5)]
    before = pair.mirrors.found
    for result in results:
        assert torch.equal(pair.programs[1].run("forward", [result])[0], result * 2 + 1)
    assert pair.mirrors.found == before + 3


def test_a_device_opened_anew_knows_none(pair: Pair) -> None:
    pair.call(same)
    middle = pair.programs[0].run("forward", [torch.ones(2, 3, 9, 7)])[0]
    pair.mirrors.close()
    before = pair.mirrors.found
    assert torch.equal(pair.programs[1].run("forward", [middle])[0], middle * 2 + 1)
    assert pair.mirrors.found == before


def test_programs_go_while_their_results_stay(pair: Pair) -> None:
    middle = pair.programs[0].run("forward", [torch.ones(2, 3, 9, 7)])[0]
    program = weakref.ref(pair.programs.pop(0))
    gc.collect()
    assert program() is None
    assert torch.equal(pair.programs[0].run("forward", [middle])[0], middle * 2 + 1)


def test_threads_with_results_of_their_own(pair: Pair) -> None:
    failures: list[Any] = []

    def work(rows: int) -> None:
        try:
            for _ in range(5):
                pair.call(same, rows=rows)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (1, 2, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_copies_of_kept_results_are_part_of_the_plan(pair: Pair) -> None:
    for _ in range(2):
        pair.call(same)
    giver = list(pair.programs[0]._plans)[-1].executable
    assert giver is not None
    copies = [operation.label for operation in giver._staged.operations if isinstance(operation, Copy)]
    assert copies == ["upload", "download"]  # nobody on the device reads the other results


def test_small_tensors_are_copied(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors_module, "LEAST_BYTES", 2 * 5 * 7 * 5 * 4)
    assert [pair.call(same) for _ in range(2)] == [0, 1]
    assert [pair.call(same, rows=1) for _ in range(2)] == [0, 0]
    assert [pair.call(lambda y: y[1:]) for _ in range(2)] == [0, 0]


def test_where_the_device_has_the_hosts_memory_all_are_copied(
    lavapipe: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors_module, "LEAST_BYTES", 1)
    assert lavapipe.info.has_unified_memory
    assert [Pair(lavapipe).call(same) for _ in range(3)] == [0, 0, 0]
