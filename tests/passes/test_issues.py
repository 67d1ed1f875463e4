"""What users of ``torch.utils.mobile_optimizer`` reported, each by the number of its issue at pytorch/pytorch."""

import pytest
import torch
from pass_harness import assert_close, operators, optimise, randomize_norms
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.passes.manager import Pass, run_passes
from mobopt.passes.pipelines import CPU, OPTIMIZER_TYPES, VULKAN, without
from mobopt.runtimes.cpu import Interpreter

PIPELINES = pytest.mark.parametrize("pipeline", [VULKAN, CPU], ids=["vulkan", "cpu"])


@PIPELINES
@pytest.mark.parametrize("groups", [1, 2])
def test_issue_76431_conv_without_bias(pipeline: tuple[Pass, ...], groups: int) -> None:
    """Silently wrong numbers where a batch norm follows a convolution without bias."""
    module = randomize_norms(nn.Sequential(nn.Conv2d(4, 6, 3, bias=False, groups=groups), nn.BatchNorm2d(6)))
    optimise(module, [torch.rand(2, 4, 7, 9)], pipeline)


@PIPELINES
def test_issue_76807_conv1d_without_bias(pipeline: tuple[Pass, ...]) -> None:
    """The same with one dimension."""
    module = randomize_norms(nn.Sequential(nn.Conv1d(4, 6, 3, bias=False), nn.BatchNorm1d(6), nn.ReLU()))
    optimise(module, [torch.rand(2, 4, 9)], pipeline)


@PIPELINES
def test_issue_116515_conv3d_and_transposed_without_bias(pipeline: tuple[Pass, ...]) -> None:
    """The same with three dimensions, and transposed."""
    volume = nn.Sequential(nn.Conv3d(2, 4, 3, bias=False), nn.BatchNorm3d(4, affine=False))
    optimise(randomize_norms(volume), [torch.rand(1, 2, 5, 6, 7)], pipeline)
    transposed = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, bias=False, groups=2), nn.BatchNorm2d(6))
    optimise(randomize_norms(transposed), [torch.rand(1, 4, 5, 6)], pipeline)


class Mixed(nn.Module):
    """Something for every pass to do."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU6(), nn.Dropout())
        self.second = nn.Conv1d(4, 4, 3)
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).flatten(2)
        y = torch.relu(self.second(y) + y[:, :, 1:-1])
        return self.last(y.mean(2))


@PIPELINES
@pytest.mark.parametrize("name", list(OPTIMIZER_TYPES))
def test_issue_97047_right_numbers_whatever_is_blocked(pipeline: tuple[Pass, ...], name: str) -> None:
    """Wrong output until one optimisation was put on the blocklist."""
    optimise(randomize_norms(Mixed()), [torch.rand(2, 3, 7, 6)], without(pipeline, {name}))


class ExtraLinear(nn.Module):
    """A linear layer that only a preserved method uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 3)
        self.extra = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)

    @torch.jit.export
    def other(self, x: torch.Tensor) -> torch.Tensor:
        return self.extra(x)


def test_issue_86667_extra_linear() -> None:
    """A linear layer more made the optimiser fail."""
    module = ExtraLinear().eval()
    program = program_from_script_module(torch.jit.script(module), ["other"])
    run_passes(program, VULKAN, check=True)
    x = torch.rand(2, 4)
    assert_close(Interpreter(program).run("other", [x]), module.other(x).detach())
    assert operators(program, "other").count("vulkan_prepack::run_linear_context") == 1


def test_issue_47269_module_in_training_mode() -> None:
    """Freezing asserted on a module that trained; here it is optimised as in evaluation mode, and left as it was."""
    module = randomize_norms(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout())).train()
    scripted = torch.jit.script(module)
    program = program_from_script_module(scripted)
    run_passes(program, VULKAN, check=True)
    assert scripted.training
    x = torch.rand(2, 3, 6, 5)
    with torch.no_grad():
        assert_close(Interpreter(program).run("forward", [x]), module.eval()(x))


class Inception(nn.Module):
    """Branches that are concatenated and normalised, as in GoogLeNet."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(6, 2, 1, bias=False), nn.BatchNorm2d(2, eps=0.001))
        self.two = nn.Sequential(nn.Conv2d(6, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, eps=0.001))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.cat([torch.relu(self.one(x)), nn.functional.relu(self.two(x), inplace=True)], 1)
        return x


@PIPELINES
def test_issue_40228_googlenet_branches(pipeline: tuple[Pass, ...]) -> None:
    """A crash on GoogLeNet."""
    optimise(randomize_norms(Inception()), [torch.rand(1, 6, 5, 7)], pipeline)
