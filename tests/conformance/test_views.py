"""Tensors that share memory, changed through each other, are what eager makes of them."""

import pytest
import torch
from sampling import sampled
from torch import nn
from view_programs import ViewProgram, random_views

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram


class _Module(nn.Module):
    def __init__(self, program: ViewProgram) -> None:
        super().__init__()
        self.program = program

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.program(x)


def check(seed: int, device: Device) -> None:
    """Every tensor at the end is eager's, and the input is as it was."""
    program = random_views(seed)
    traced = torch.jit.trace(_Module(program), program.input.clone(), check_trace=False)
    runtime = VulkanProgram(program_from_script_module(traced), device)
    given_input = program.input.clone()
    found, expected = runtime.run("forward", [given_input]), program(program.input)
    runtime.close()
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), f"v{number} of seed {seed}:\n{program}"
        assert torch.equal(ours, theirs), (
            f"v{number} of seed {seed} is {ours.tolist()}, not {theirs.tolist()}:\n{program}"
        )
    assert torch.equal(given_input, program.input)


@pytest.mark.parametrize("first", sampled(range(0, 60, 20), one_in=2))
def test_views_and_writes(first: int, device: Device) -> None:
    for seed in range(first, first + 20):
        check(seed, device)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_many_views_and_writes(first: int, device: Device) -> None:
    for seed in range(first, first + 100):
        check(seed, device)


class _Refilled(nn.Module):
    """Writes a broadcast constant to memory that is seen as one row too."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = x + 1
        row = whole.view(-1)
        whole.zero_()
        whole.copy_(torch.tensor([-2.0, -1.0, 3.0]))
        row[1::2] = torch.tensor([7.0])
        return whole, row


def test_a_broadcast_constant_lies_as_its_memory(device: Device) -> None:
    x = torch.ones(2, 3)
    runtime = VulkanProgram(program_from_script_module(torch.jit.script(_Refilled())), device)
    found, expected = runtime.run("forward", [x]), _Refilled()(x)
    assert [ours.tolist() for ours in found] == [theirs.tolist() for theirs in expected]
