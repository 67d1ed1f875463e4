"""Sequences of calls of models with state give what eager mode gives: in results, in earlier results, in the state."""

import copy
import pickle
import random
import threading
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from sampling import sampled
from state_programs import Program, random_program
from torch import nn

import mobopt
from mobopt import optimize_for_mobile
from mobopt.errors import MoboptError
from mobopt.module import MobileModule

# Files are made without examples.
pytestmark = [
    pytest.mark.filterwarnings("ignore:no inputs are known that the model takes"),
    pytest.mark.filterwarnings("ignore:.* operators? runs? on the phone's CPU"),
]

TARGETS = (
    {"backend": "vulkan", "runtime": "mobopt"},
    {"backend": "cpu"},
    {"backend": "vulkan", "runtime": "2.6"},
    {"backend": "metal", "runtime": "2.6"},
    {"backend": "vulkan", "runtime": "1.13"},
)


def in_script(program: Program) -> tuple[Program, torch.jit.ScriptModule]:
    """A model and its script."""
    return program, torch.jit.script(program.make())


def traceable(seed: int, folder: Path) -> tuple[Program, torch.jit.ScriptModule]:
    """The first model that torch can trace, of a seed and those that follow from it, and its trace."""
    x = torch.ones(4)
    while True:
        program = random_program(seed, folder, True)
        try:
            return program, torch.jit.trace_module(program.make(), {"forward": x, "step": x}, check_trace=False)
        except RuntimeError as error:
            assert "INTERNAL ASSERT" in str(error)  # of torch's own tracer
            seed += 1000


def same(actual: Any, expected: Any) -> None:
    """Compare nests of tensors and plain values."""
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected)
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for left, right in zip(actual, expected, strict=True):
            same(left, right)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key, right in expected.items():
            same(actual[key], right)
    else:
        assert type(actual) is type(expected) and actual == expected


def check_state(mobile: MobileModule, eager: nn.Module) -> None:
    """The values that the module owns are eager mode's."""
    for name, value in mobile.model_state.values.items():
        if name.startswith("_changed_constant"):
            continue  # a buffer that lies in a list
        expected: Any = eager
        for part in name.replace("inner_", "inner.").split("."):  # files have no dots in what is assigned to
            expected = getattr(expected, part)
        same(value, expected)


def restored(mobile: MobileModule, how: str, path: Path) -> MobileModule:
    """The module after a way out and back."""
    if how == "pickle":
        return pickle.loads(pickle.dumps(mobile))
    if how == "deepcopy":
        return copy.deepcopy(mobile)
    path = path.with_suffix(f".{how}")
    if how == "pt":
        torch.jit.save(mobile, path)
    else:
        mobile._save_for_lite_interpreter(path)
    return mobopt.load(path, mobile.device)


def refused(mobile: MobileModule, eager: nn.Module, method: str, x: torch.Tensor) -> None:
    """A call that fails half way leaves the state as it was."""
    twin = copy.deepcopy(mobile)  # what refuses may be dead code, and gone
    try:
        getattr(twin, method)(x)
    except MoboptError:
        check_state(twin, eager)


def check_sequence(seed: int, folder: Path, is_traced: bool) -> None:
    """Calls of a model written at random, with ways out and back and calls that fail between them."""
    draw = random.Random(-seed - 1)
    program, script = traceable(seed, folder) if is_traced else in_script(random_program(seed, folder, False))
    eager = program.make()
    eager.load_state_dict(script.state_dict())  # tracing has run the model
    with torch.no_grad():
        examples = [torch.linspace(-1.0, 2.0, 4)] if draw.random() < 0.6 else None
        target = TARGETS[seed % len(TARGETS)]
        mobile = optimize_for_mobile(script, preserved_methods=["step"], example_inputs=examples, **target)
        given: list[tuple[Any, Any]] = []
        for call in range(5):
            x = torch.tensor([draw.uniform(-2.0, 2.0) for _ in range(4)])
            method = draw.choice(["forward", "forward", "step"])
            if draw.random() < 0.3:
                refused(mobile, eager, method, torch.ones(3))
            given.append((getattr(mobile, method)(x.clone()), getattr(eager, method)(x.clone())))
            for actual, expected in given:  # earlier results too: they may share memory with the state
                same(actual, expected)
            check_state(mobile, eager)
            if draw.random() < 0.3:
                mobile = restored(mobile, draw.choice(["pt", "ptl", "pickle", "deepcopy"]), folder / f"{call}")
                given = []


@pytest.mark.parametrize(("seed", "is_traced"), sampled(product(range(10), [False, True]), one_in=2))
def test_sequences_of_calls(seed: int, is_traced: bool, tmp_path: Path, device: object) -> None:
    check_sequence(seed, tmp_path, is_traced)


@pytest.mark.sweep
@pytest.mark.parametrize("is_traced", [False, True])
@pytest.mark.parametrize("seed", range(10, 300))
def test_more_sequences_of_calls(seed: int, is_traced: bool, tmp_path: Path, device: object) -> None:
    check_sequence(seed, tmp_path, is_traced)


class Steps(nn.Module):
    """Changes state of every kind before it may fail."""

    items: list[torch.Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("weight", torch.eye(3))
        self.items = []
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(1.0)
        self.count += 1
        self.items.append(x)
        self.total[1:].mul_(2.0)
        self.items[0] = self.items[0] + 1.0
        return x @ self.weight + self.total


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_call_that_fails_half_way_changes_nothing(target: dict[str, str], device: object) -> None:
    mobile, eager = optimize_for_mobile(torch.jit.script(Steps()), **target), Steps()
    for size in (2, 3, 5, 3):
        if size == 3:
            torch.testing.assert_close(mobile(torch.ones(size)), eager(torch.ones(size)))
        else:
            with pytest.raises(MoboptError):
                mobile(torch.ones(size))
        check_state(mobile, eager)


@pytest.mark.parametrize("target", TARGETS[:2], ids=str)
def test_no_update_of_a_thread_is_lost(target: dict[str, str], device: object) -> None:
    mobile = optimize_for_mobile(torch.jit.script(Adds()), **target)
    threads = [threading.Thread(target=lambda: [mobile(torch.ones(2)) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mobile.total.tolist() == [80.0, 80.0]


class Parts(nn.Module):
    """Buffers that are parts of memories of which nothing else is read."""

    def __init__(self, is_assigned: bool) -> None:
        super().__init__()
        self.register_buffer("row", torch.arange(15.0).view(3, 5)[1])
        self.register_buffer("column", torch.arange(14.0).view(7, 2)[1:4, 1])
        self.register_buffer("block", torch.arange(24.0).view(4, 6)[1:, :3])
        self.register_buffer("last", torch.zeros(()))
        self.is_assigned = is_assigned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_assigned:
            self.last = x.sum()
        self.row.sub_(0.25)
        self.column[1:].mul_(2.0)
        self.block.add_(self.column)
        return x * self.block.sum() + self.row.sum() + self.last


@pytest.mark.parametrize("is_assigned", [False, True])
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_buffers_that_are_parts_of_memories(
    target: dict[str, str], is_assigned: bool, tmp_path: Path, device: object
) -> None:
    eager = Parts(is_assigned)
    mobile = optimize_for_mobile(torch.jit.script(Parts(is_assigned)), **target)
    for call in range(4):
        same(mobile(torch.ones(3) * call), eager(torch.ones(3) * call))
        check_state(mobile, eager)
        if call == 1:
            mobile = restored(mobile, "pt", tmp_path / "parts")


class GivesState(nn.Module):
    """Gives what equals the state, but is no part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.tensor([0.5, -1.0, 2.0]))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.a + 0.0, self.a * 1.0, self.a.pow(1), self.a - 0, self.a / 1, x + 0]

    @torch.jit.export
    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.a[1:] = x[1:]
        return x


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_results_stay_what_they_were(target: dict[str, str], device: object) -> None:
    x = torch.tensor([4.0, 5.0, 6.0])
    mobile = optimize_for_mobile(
        torch.jit.script(GivesState()), example_inputs=[x], preserved_methods=["step"], **target
    )
    given, kept = mobile(x), x.clone()
    mobile.step(x)
    for result in given[:5]:
        assert result.tolist() == [0.5, -1.0, 2.0]
    given[5].zero_()
    assert torch.equal(x, kept)


class Adds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 1.0


@pytest.mark.parametrize("target", TARGETS[:2], ids=str)
def test_torch_sees_and_sets_the_state(target: dict[str, str], device: object) -> None:
    mobile = optimize_for_mobile(torch.jit.script(Steps()), **target)
    assert [name for name, _ in mobile.named_buffers()] == ["total"]
    for calls in (1, 2):
        result = mobile(torch.zeros(3))
        assert mobile.count == calls and len(mobile.items) == calls
        torch.testing.assert_close(mobile.state_dict()["total"], result)
    mobile.load_state_dict({"total": torch.full((3,), 10.0)})
    mobile.count = 7
    torch.testing.assert_close(mobile(torch.zeros(3)), torch.tensor([11.0, 22.0, 22.0]))
    assert mobile.count == 8


def test_copies_share_what_torchs_do(device: object) -> None:
    script = torch.jit.script(Steps())
    mobile = optimize_for_mobile(script, backend="vulkan", runtime="mobopt")
    seen = []
    for module in (mobile, script):
        shallow, deep = copy.copy(module), copy.deepcopy(module)
        module(torch.ones(3))
        shallow(torch.ones(3))
        modules = (module, shallow, deep)
        seen.append([(part.total.tolist(), part.count) for part in modules])
    assert seen[0] == seen[1]


TABLE = torch.zeros(3)


def test_a_constant_that_a_trace_writes_to_is_state(device: object, tmp_path: Path) -> None:
    class Keeps(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            TABLE.add_(x)
            return TABLE * 2.0

    traced = torch.jit.trace(Keeps(), torch.ones(3), check_trace=False)
    TABLE.zero_()
    for target in TARGETS:
        mobile = optimize_for_mobile(traced, **target)
        assert [mobile(torch.ones(3))[0].item() for _ in range(2)] == [2.0, 4.0]
        assert restored(mobile, "ptl", tmp_path / "keeps")(torch.ones(3))[0].item() == 6.0
    torch.jit.save(traced, tmp_path / "traced.pt")
    for device_name in ("cpu", None):
        loaded = mobopt.load(tmp_path / "traced.pt", device_name)
        assert [loaded(torch.ones(3))[0].item() for _ in range(2)] == [2.0, 4.0]
    assert TABLE.tolist() == [0.0] * 3


@pytest.mark.parametrize("backend", ["vulkan", "cpu", "metal"])
def test_comparing_leaves_the_module_as_it_was(backend: str) -> None:
    script = torch.jit.script(Steps())
    optimize_for_mobile(script, backend=backend, example_inputs=[torch.ones(3)])
    assert script.count == 0 and script.total.tolist() == [0.0] * 3
