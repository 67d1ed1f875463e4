from typing import NamedTuple

import pytest
import torch
from torch import nn

from mobopt.errors import InputError, UnsupportedError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import verify
from mobopt.ir.types import INT, TENSOR, ListType, OptionalType, TupleType
from mobopt.runtimes.cpu import Interpreter


def run(module: torch.nn.Module, *inputs: object, method: str = "forward", preserved: tuple[str, ...] = ()) -> object:
    """Script, translate, verify, interpret."""
    program = program_from_script_module(torch.jit.script(module), preserved)
    verify(program)
    return Interpreter(program).run(method, list(inputs))


class Net(nn.Module):
    """A convolution with everything that evaluation mode changes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(self.conv(x)))


@pytest.mark.parametrize("how", ["script", "trace", "freeze"])
def test_modules_of_every_kind(how: str) -> None:
    module = Net().eval()
    x = torch.rand(2, 3, 7, 5)
    scripted = torch.jit.trace(module, x) if how == "trace" else torch.jit.script(module)
    if how == "freeze":
        scripted = torch.jit.freeze(scripted)
    program = program_from_script_module(scripted)
    verify(program)
    torch.testing.assert_close(Interpreter(program).run("forward", [x]), module(x).detach())


def test_training_mode_becomes_evaluation_and_the_original_stays() -> None:
    scripted = torch.jit.script(Net().train())
    before = {name: value.clone() for name, value in scripted.state_dict().items()}
    program = program_from_script_module(scripted)
    assert scripted.training and scripted.drop.training
    assert all(torch.equal(value, before[name]) for name, value in scripted.state_dict().items())
    assert all(value.requires_grad for value in scripted.parameters())
    norm = next(node for node in program.methods["forward"].walk() if node.op == "aten::batch_norm")
    assert norm.inputs[5].constant is False
    weight = next(node for node in program.methods["forward"].walk() if node.op == "aten::conv2d").inputs[1].constant
    assert not weight.requires_grad
    weight.zero_()
    assert scripted.conv.weight.abs().sum() > 0


def test_nodes_know_their_overload_and_place() -> None:
    program = program_from_script_module(torch.jit.script(Net()))
    nodes = {node.op: node for node in program.methods["forward"].walk()}
    assert nodes["aten::conv2d"].source.startswith("conv.py:")
    assert nodes["aten::conv2d"].source.endswith(" in conv")
    padded = program_from_script_module(torch.jit.script(nn.Sequential(nn.Conv2d(1, 1, 2, padding="same"))))
    (node,) = padded.methods["forward"].walk()
    assert node.qualified_op == "aten::conv2d.padding"


class Point(NamedTuple):
    """A named result."""

    near: torch.Tensor
    far: list[torch.Tensor]


class Containers(nn.Module):
    """Inputs and outputs in containers."""

    def forward(
        self, pair: tuple[torch.Tensor, int], named: dict[str, torch.Tensor], maybe: torch.Tensor | None = None
    ) -> tuple[Point, dict[str, torch.Tensor], torch.Tensor | None]:
        x, count = pair
        y = x * count if maybe is None else x + maybe
        assert x.dim() > 0, "no scalars"
        return Point(y, [x, y]), {key: value + y for key, value in named.items()}, maybe


@pytest.mark.parametrize("maybe", [None, torch.rand(3)])
def test_containers_go_in_and_out(maybe: torch.Tensor | None) -> None:
    module = Containers()
    inputs = ((torch.rand(3), 2), {"a": torch.rand(3), "b": torch.rand(3)}, maybe)
    expected = module(*inputs)
    result = run(module, *inputs)
    assert isinstance(result, tuple)
    torch.testing.assert_close(result[0].near, expected[0].near)
    torch.testing.assert_close(result[0].far, expected[0].far)
    assert list(result[1]) == ["a", "b"]
    torch.testing.assert_close(result[1], expected[1])
    assert (result[2] is None) is (maybe is None)


def test_types_are_torchscripts() -> None:
    program = program_from_script_module(torch.jit.script(Containers()))
    graph = program.methods["forward"]
    assert [value.type for value in graph.inputs[1::2]] == [TupleType((TENSOR, INT)), OptionalType(TENSOR)]
    result = graph.outputs[0].type
    assert isinstance(result, TupleType)
    point = result.elements[0]
    assert isinstance(point, TupleType)
    assert (point.fields, point.elements) == (("near", "far"), (TENSOR, ListType(TENSOR)))
    assert point.name.endswith(".Point")


class Counter(nn.Module):
    """State that methods change."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.count = 0
        self.register_buffer("total", torch.zeros(2))
        self.register_buffer("fixed", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        self.total.add_(x)
        return self.total * self.count + self.fixed


def test_changed_attributes_stay_attributes() -> None:
    scripted = torch.jit.script(Counter())
    program = program_from_script_module(scripted)
    verify(program)
    assert set(program.attributes) == {"count", "total"}
    x = torch.tensor([1.0, 2.0])
    assert torch.equal(Interpreter(program).run("forward", [x]), x + 1)
    assert scripted.count == 0 and not scripted.total.any()


class Outer(nn.Module):
    """A submodule with state of its own, and shared weights."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Sequential(Counter())
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.deep(x)))


def test_submodules_are_flat_and_shared_weights_one_value() -> None:
    module = Outer()
    program = program_from_script_module(torch.jit.script(module))
    verify(program)
    assert set(program.attributes) == {"deep.0.count", "deep.0.total"}
    first, second = (node for node in program.methods["forward"].walk() if node.op == "aten::linear")
    assert first.inputs[1] is second.inputs[1]
    assert first.inputs[2] is not second.inputs[2]
    x = torch.rand(2)
    torch.testing.assert_close(Interpreter(program).run("forward", [x]), module(x).detach())


class Methods(nn.Module):
    """Methods beside forward, and an attribute to keep."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.names = ["a", "b"]
        self.sizes: tuple[int, torch.Tensor] = (3, torch.ones(1))

    @torch.jit.export
    def encode(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        with torch.no_grad():
            return self.layer(x) * scale


def test_preserved_methods_without_forward() -> None:
    program = program_from_script_module(torch.jit.script(Methods()), ["encode", "names", "sizes"])
    verify(program)
    assert list(program.methods) == ["encode"]
    assert program.attributes["names"].value == ["a", "b"]
    assert str(program.attributes["sizes"].type) == "(int, Tensor)"
    assert Interpreter(program).run("encode", [torch.rand(1, 2), 1.0]).shape == (1, 2)


def test_no_method_at_all() -> None:
    with pytest.raises(InputError, match="no method 'forward'"):
        program_from_script_module(torch.jit.script(Methods()))


def test_preserved_name_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="no method or attribute 'decode' to preserve"):
        program_from_script_module(torch.jit.script(Net()), ["decode"])


def test_preserved_submodule_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="'conv' is a submodule"):
        program_from_script_module(torch.jit.script(Net()), ["conv"])


class Forks(nn.Module):
    """What no mobile GPU runtime does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        future = torch.jit.fork(torch.relu, x)
        return torch.jit.wait(future)


@torch.jit.script
class Holder:
    """An object of a class."""

    def __init__(self, x: torch.Tensor, factor: float) -> None:
        self.x = x * factor
        self.sizes = [(int(x.shape[0]), 2)]
        self.total = self.x.sum()

    def plus(self, other: torch.Tensor) -> torch.Tensor:
        return self.x + other * self.sizes[0][0]


class Objects(nn.Module):
    """Makes objects in branches and loops, calls their methods, and holds one that it sets later."""

    kept: Holder | None

    def __init__(self) -> None:
        super().__init__()
        self.kept = None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        holder = Holder(x, 2.0)
        if x.sum() > 0:
            holder = Holder(x + 1, 3.0)
        for number in range(3):
            holder = Holder(holder.plus(x), 0.5 + number)
        if self.kept is None:
            self.kept = holder
        kept = self.kept
        assert kept is not None
        return kept.x, holder.total


class Asks(nn.Module):
    """Asks what a value of several types is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + self.first([x * 2, x])

    def first(self, x: torch.Tensor | list[torch.Tensor]) -> torch.Tensor:
        if isinstance(x, (list, tuple)):
            return x[0]
        return x


def test_lists_are_told_from_tensors() -> None:
    script, x = torch.jit.script(Asks()), torch.randn(3, 5)
    found = Interpreter(program_from_script_module(script)).run("forward", [x])
    torch.testing.assert_close(found, script(x), rtol=0, atol=0)


class Changes(nn.Module):
    """Changes an object after it was made."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        holder = Holder(x, 2.0)
        holder.x = x
        return holder.x


@pytest.mark.parametrize("calls_before", [0, 1])
def test_objects_of_classes(calls_before: int) -> None:
    script = torch.jit.script(Objects())
    first, second = torch.randn(3, 5), -torch.rand(3, 5)
    for _ in range(calls_before):
        script(first)
    interpreter = Interpreter(program_from_script_module(script))
    for x in (first, second, first):
        for found, expected in zip(interpreter.run("forward", [x]), script(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Forks(), r"\(test_torchscript.py:\d+\): it forks a function \(prim::fork\).*instead of forking it"),
        (Changes(), r"it changes 'x' of an object of the class .*Holder that is made already"),
    ],
)
def test_what_a_program_cant_hold(module: nn.Module, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        program_from_script_module(torch.jit.script(module))


class Control(nn.Module):
    """Loops, branches, casts and strings."""

    def forward(self, x: torch.Tensor, steps: int, mode: str) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        for i in range(steps):
            if mode == "up":
                x = x + i
            elif i % 2 == 0:
                x = -x
            else:
                continue
            results.append(x.clone())
        while len(results) > 3:
            results.pop()
        return results


@pytest.mark.parametrize(("steps", "mode"), [(0, "up"), (2, "up"), (7, "down")])
def test_control_flow(steps: int, mode: str) -> None:
    module = Control()
    x = torch.rand(3)
    torch.testing.assert_close(run(module, x, steps, mode), module(x, steps, mode))
