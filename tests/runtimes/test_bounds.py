"""Declared bounds: sizes within them are right and take no further trace, others are refused by name."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mobopt
from mobopt.errors import InputError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.module import MobileModule
from mobopt.runtimes import specializations
from mobopt.runtimes.bounds import InputBounds
from mobopt.runtimes.vulkan.program import VulkanProgram

BOUNDS = {"forward": [[(1, 3), None, (6, 20), (5, 23)]]}


class Net(nn.Module):
    """Convolutions, a skip connection that is cut to size, and a head for any size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, stride=2, padding=1)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        y = nn.functional.interpolate(self.down(x), scale_factor=2.0, mode="nearest")
        y = x + y[:, :, : x.size(2), : x.size(3)]
        return self.head(y.flatten(2).transpose(1, 2)).reshape(x.size(0), -1, x.size(3)).mean(1)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(5)
    return Net().eval()


def check_random_sizes(program: VulkanProgram, net: nn.Module, count: int) -> None:
    draw = random.Random(6)
    for _ in range(count):
        size = (
            draw.randint(1, 3),
            3,
            draw.choice([6, 20, draw.randint(6, 20)]),
            draw.choice([5, 23, draw.randint(5, 23)]),
        )
        x = torch.rand(size)
        with torch.no_grad():
            torch.testing.assert_close(program(x), net(x), rtol=1e-4, atol=1e-5)
        dim, beyond = draw.choice([(0, 4), (2, draw.randint(21, 99)), (3, 24), (2, 5), (3, draw.randint(1, 4))])
        wrong = list(size)
        wrong[dim] = beyond
        side, bound = ("upper", BOUNDS["forward"][0][dim][1]) if beyond > size[dim] else ("lower", {2: 6, 3: 5}[dim])
        with pytest.raises(
            InputError, match=f"dimension {dim} of input 0 is {beyond}, and its {side} bound is {bound}$"
        ):
            program(torch.rand(wrong))


def bounded(net: nn.Module, device: Any) -> VulkanProgram:
    return VulkanProgram(program_from_script_module(torch.jit.script(net)), device, bounds=InputBounds(BOUNDS))


def test_sizes_below_at_and_above_the_bounds(net: nn.Module, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []
    monkeypatch.setattr(specializations, "specialize", lambda *args, **kwargs: traces.append(args))
    monkeypatch.setattr(specializations, "MAX_TEMPLATES", 3)
    program = bounded(net, device)
    check_random_sizes(program, net, 10)
    program.close()
    assert not traces, "a trace with symbols for one sample and one for several serve all sizes"


def test_new_sizes_take_the_memory_of_those_given_up(
    net: nn.Module, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mobopt.runtimes.vulkan.program.MAX_PLANS", 4)
    program, draw = bounded(net, device), random.Random(8)
    sizes = [(draw.randint(1, 3), 3, draw.randint(6, 20), draw.randint(5, 23)) for _ in range(60)]
    for size in sizes[:30]:
        program(torch.rand(size))
    before = device.live_objects["Memory"]
    for size in sizes[30:]:
        program(torch.rand(size))
    assert device.live_objects["Memory"] <= before + 2
    program.close()


@pytest.mark.sweep
def test_a_thousand_sizes(net: nn.Module, device: Any) -> None:
    program = bounded(net, device)
    check_random_sizes(program, net, 1000)
    program.close()


def test_arrays_are_bounded_too(net: nn.Module, device: Any) -> None:
    program = bounded(net, device)
    assert program.run_on_device("forward", [torch.rand(1, 3, 6, 23)]).shape == (1, 23)
    with pytest.raises(InputError, match="dimension 3 of input 0 is 24, and its upper bound is 23"):
        program.run_on_device("forward", [torch.rand(1, 3, 6, 24)])
    program.close()


def test_other_inputs_than_declared() -> None:
    bounds = InputBounds({"forward": [[(1, 3)], [None, (2, 2)]]})
    bounds.check("forward", [torch.rand(3), torch.rand(9, 2), torch.rand(7)])
    bounds.check("encode", [torch.rand(99)])
    with pytest.raises(InputError, match="bounds are declared for 2 inputs of forward, and 1 were given"):
        bounds.check("forward", [torch.rand(3)])
    with pytest.raises(InputError, match="for 2 dimensions of input 1 of forward, and a tensor of 1 was given"):
        bounds.check("forward", [torch.rand(3), torch.rand(2)])
    with pytest.raises(InputError, match="dimension 0 of input 1 of forward, 4 to 3, have no size in them"):
        InputBounds({"forward": [[None], [(4, 3)]]})


@pytest.mark.parametrize(
    "bounds",
    [{0: {0: (1, 3)}}, {"forward": {2: (1, 3)}}, {"forward": [(1, 3)]}, {"forward": [[(1, 2, 3)]]}, [(1, 3)], "1..3"],
)
def test_another_form_is_told_with_an_example(bounds: Any) -> None:
    with pytest.raises(InputError, match=r'such as \{"forward": \[\[\(1, 16\), None, None, None\]\]\}$'):
        InputBounds(bounds)


def test_modules_keep_their_bounds(net: nn.Module) -> None:
    module = MobileModule(program_from_script_module(torch.jit.script(net)), "cpu", bounds=BOUNDS)
    for twin in (module, copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert twin(torch.rand(1, 3, 20, 5)).shape == (1, 5)
        with pytest.raises(InputError, match="dimension 2 of input 0 is 21, and its upper bound is 20"):
            twin(torch.rand(1, 3, 21, 5))


def test_files_are_loaded_with_bounds(net: nn.Module, tmp_path: Any) -> None:
    module = mobopt.optimize_for_mobile(torch.jit.script(net), example_inputs=[torch.rand(1, 3, 8, 8)])
    module.save(tmp_path / "net.pt")
    loaded = mobopt.load(tmp_path / "net.pt", "cpu", bounds=BOUNDS)
    with pytest.raises(InputError, match="dimension 0 of input 0 is 4, and its upper bound is 3"):
        loaded(torch.rand(4, 3, 8, 8))
