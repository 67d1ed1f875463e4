"""What went wrong where several tables said different things of one operator: each with the numbers of eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program, Value
from mobopt.ir.types import TENSOR
from mobopt.passes.dead_code_elimination import DeadCodeElimination
from mobopt.passes.facts import Examples
from mobopt.passes.fix_channels import FixChannels
from mobopt.passes.functionalize import Functionalize
from mobopt.passes.manager import run_passes
from mobopt.passes.rank_bounds import rank_bounds
from mobopt.passes.ranks import known_rank
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram


def _scripted(forward: Callable[..., object], **modules: nn.Module) -> Program:
    """A program of a module with this method."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, module in modules.items():
                setattr(self, name, module)

    Model.forward = forward  # type: ignore[assignment]
    return program_from_script_module(torch.jit.freeze(torch.jit.script(Model().eval()), optimize_numerics=False))


def _unsafe_chunk(self: nn.Module, x: Tensor) -> Tensor:
    y = x * 2
    part = torch.unsafe_chunk(y, 2, 0)[0]
    part.add_(1.0)
    return y


def _meshgrid(self: nn.Module, x: Tensor) -> Tensor:
    y = x * 2
    part = torch.meshgrid([y], indexing="ij")[0]
    part.add_(1.0)
    return y


@pytest.mark.parametrize("forward", [_unsafe_chunk, _meshgrid])
def test_writes_through_views_that_schemas_hide_are_kept(forward: Callable[..., Tensor]) -> None:
    program = _scripted(forward)
    run_passes(program, [Functionalize(), DeadCodeElimination()], check=True)
    x = torch.arange(5.0)
    assert torch.equal(Interpreter(program).run("forward", [x]), forward(None, x))  # type: ignore[arg-type]


def _result(program: Program) -> Value:
    (value,) = program.methods["forward"].outputs
    assert value.type == TENSOR
    return value


def _clamped_by_tensor(self: nn.Module, x: Tensor, low: Tensor) -> Tensor:
    return torch.clamp(torch.zeros([3]), low)


def _maximum(self: nn.Module, x: Tensor, low: Tensor) -> Tensor:
    return torch.where(low > 0, torch.zeros([3]), low)


_VECTOR = torch.ones(3)


def _linear_by_vector(self: nn.Module, x: Tensor) -> Tensor:
    return F.linear(torch.zeros([2, 3]), _VECTOR)


@pytest.mark.parametrize("forward", [_clamped_by_tensor, _maximum])
def test_operands_that_are_broadcast_decide_about_ranks(forward: Callable[..., Tensor]) -> None:
    value = _result(_scripted(forward))
    assert known_rank(value) is None  # 2, if the second input is a matrix
    assert rank_bounds(value) == (1, None)


def test_a_layer_whose_weight_is_a_vector_drops_a_dimension() -> None:
    forward = _linear_by_vector
    program = program_from_script_module(torch.jit.trace(_Module(forward), (torch.zeros(1),)))
    assert known_rank(_result(program)) != 2 and forward(None, torch.zeros(1)).dim() == 1  # type: ignore[arg-type]


class _Module(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def _channels_of_clamped(self: nn.Module, x: Tensor, low: Tensor) -> int:
    return torch.clamp(self.layer(x), low).size(1)


def _channels_without_batch(self: nn.Module, x: Tensor) -> int:
    return F.avg_pool2d(self.layer(x), 2).size(1)


@pytest.mark.parametrize(
    ("forward", "layer", "inputs"),
    [
        (_channels_of_clamped, nn.Conv2d(3, 1, 1), (torch.ones(1, 3, 5, 4), torch.ones(1, 7, 1, 1))),
        (_channels_without_batch, nn.Conv1d(3, 8, 1), (torch.ones(1, 3, 6),)),
    ],
)
def test_channels_are_those_of_eager(forward: Callable[..., int], layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    program = _scripted(forward, layer=layer)
    run_passes(program, [FixChannels(Examples({"forward": inputs}))], check=True)
    holder = nn.Module()
    holder.layer = layer
    assert Interpreter(program).run("forward", list(inputs)) == forward(holder, *inputs)


def _alpha_dropout(self: nn.Module, x: Tensor) -> Tensor:
    return torch.relu(F.feature_alpha_dropout(x * 2, 0.5, False))


def test_every_dropout_is_nothing_in_evaluation(device: Device) -> None:
    x = torch.linspace(-1, 1, 30).reshape(1, 5, 3, 2)
    program = VulkanProgram(program_from_script_module(torch.jit.trace(_Module(_alpha_dropout), (x,))), device)
    torch.testing.assert_close(program(x), torch.relu(x * 2))
    assert not program.plan_report([x]).fallbacks
