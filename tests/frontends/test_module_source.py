"""nn.Modules as sources: exported, or traced with a warning that says why."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import mobopt
from mobopt.errors import ArgumentTypeError, InputError, UnsupportedError
from mobopt.frontends.module_source import ModuleSource
from mobopt.frontends.open_source import source_of
from mobopt.ir.arguments import bind_arguments
from mobopt.module import MobileModule
from mobopt.runtimes.bounds import bounds_of
from mobopt.runtimes.cpu import Interpreter
from mobopt.samples.agreement import agreement_of, compare
from mobopt.samples.example_inputs import GIVEN, ChosenInputs


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.drop = torch.nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor, gain: float = 1.5) -> dict[str, torch.Tensor]:
        self.calls += 1
        y = self.drop(torch.relu(self.norm(self.conv(x)))) * gain
        return {"y": y, "mean": y.mean((2, 3)), "calls": self.calls.clone()}


class Looks(torch.nn.Module):
    """Asks an element, which torch.export can't decide."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().train()


@pytest.fixture(scope="module")
def source(net: Net) -> ModuleSource:
    return ModuleSource(net, (), [torch.ones(2, 3, 8, 8)])


def test_a_module_is_exported_in_evaluation_mode_and_stays_as_it_is(net: Net, source: ModuleSource) -> None:
    assert source.fallback == "" and source.name == "Net"
    assert net.training and net.drop.training and net.calls.item() == 0
    ops = {node.op for node in source.program.methods["forward"].walk()}
    assert {"aten::conv2d", "aten::batch_norm"} <= ops
    assert source.program.attributes.keys() == {"calls"}


def test_it_agrees_with_the_module_over_calls(net: Net, source: ModuleSource) -> None:
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    assert agreement_of(source, source.program, ChosenInputs((x,), GIVEN)).relative <= 1e-6
    assert net.calls.item() == 0
    results = [source.caller()([x]) for _ in range(2)]
    assert [result["calls"].item() for result in results] == [1, 1]  # each caller has a state of its own


def test_optimize_for_mobile_takes_it(net: Net) -> None:
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    module = mobopt.optimize_for_mobile(net, backend="cpu", example_inputs=[x])
    expected = net.eval()(x)
    net.train()
    result = module(x)
    assert {name: compare(result[name], value).relative <= 1e-5 for name, value in expected.items()} == dict.fromkeys(
        ("y", "mean", "calls"), True
    )
    with pytest.raises(InputError, match="dimension 2 of the input 'x' is 9"):
        module(torch.ones(1, 3, 9, 8))
    net.calls.zero_()


def test_dynamic_shapes(net: Net) -> None:
    sizes = {0: torch.export.Dim("rows", max=6)}
    source = source_of(net, (), [torch.ones(2, 3, 8, 8)], {"x": sizes})
    program, twin = source.program, Net()
    twin.load_state_dict(net.state_dict())
    x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    result = Interpreter(program).run("forward", bind_arguments(program, "forward", [x], {}))
    assert compare(result["y"], twin.eval()(x)["y"]).relative <= 1e-6
    with pytest.raises(InputError, match="takes 0 to 6"):
        bind_arguments(program, "forward", [torch.ones(7, 3, 8, 8)], {})


def test_ranges_of_sizes_are_the_bounds_of_the_module() -> None:
    height = torch.export.Dim("height", min=4, max=40)
    sizes = {0: torch.export.Dim("rows", max=6), 2: height, 3: torch.export.Dim.DYNAMIC}
    module = mobopt.optimize_for_mobile(
        torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval(),
        backend="vulkan",
        runtime="mobopt",
        example_inputs=[torch.ones(2, 3, 8, 8)],
        dynamic_shapes={"input": sizes},
    )
    assert bounds_of(module.program) == {"forward": [[(0, 6), None, (4, 40), None]]}
    for size in ((2, 3, 8, 8), (6, 3, 40, 5), (1, 3, 4, 9), (5, 3, 11, 4)):
        x = torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))
        call = MobileModule(module.program, "cpu")
        assert compare(module(x), call(x)).relative <= 1e-5
    with pytest.raises(InputError, match="41, and the model takes 4 to 40"):
        module(torch.ones(1, 3, 41, 8))


def test_what_cannot_be_exported_is_traced_with_a_reason() -> None:
    with pytest.warns(UserWarning, match="can't take Looks, so it was traced.*The reason: .*data-dependent|guard"):
        source = source_of(Looks(), (), [torch.ones(3)])
    assert isinstance(source, ModuleSource) and source.fallback
    assert torch.equal(source.caller()([torch.ones(3)]), torch.full((3,), 2.0))


def test_dynamic_shapes_are_never_dropped_by_a_trace() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnsupportedError, match=r"torch\.export can't take Looks"):
            source_of(Looks(), (), [torch.ones(3)], {"x": {0: torch.export.Dim.DYNAMIC}})


def test_what_can_be_neither_exported_nor_traced() -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return object() if x.sum() > 0 else x

    with pytest.raises(UnsupportedError, match=r"Odd can't be exported .*, nor traced"):
        source_of(Odd(), (), [torch.ones(3)])


@pytest.mark.parametrize(
    ("examples", "preserved", "error", "message"),
    [
        (None, (), ArgumentTypeError, "but ScriptModule is expected. Give example_inputs"),
        (torch.ones(1, 3, 8, 8), (), ArgumentTypeError, "example_inputs is a Tensor; give a list or tuple"),
        ("x", (), ArgumentTypeError, "example_inputs is a str"),
        ([torch.ones(1, 2, 8, 8)], (), InputError, "can't be run on the example inputs: RuntimeError"),
        ([], (), InputError, "can't be run on the example inputs: TypeError"),
        ({"encode": [torch.ones(1)]}, (), InputError, "has the method forward only, and encode is given"),
        ([torch.ones(1, 3, 8, 8)], ("encode",), InputError, "has the method forward only, and encode is given"),
    ],
)
def test_bad_examples(
    net: Net, examples: Any, preserved: tuple[str, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        source_of(net, preserved, examples)


def test_dynamic_shapes_are_for_modules_only() -> None:
    with pytest.raises(InputError, match=r"dynamic_shapes are for an nn\.Module"):
        source_of("model.pt", (), None, {"x": None})
