"""Concatenations of channels: parts made in place, and the cases where they can't be."""

import pytest
import torch
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.program import VulkanProgram


def run(module: nn.Module, device, x: torch.Tensor) -> list[str]:
    """Compare with eager; returns the labels of the copies that concatenations made."""
    program = VulkanProgram(program_from_script_module(torch.jit.trace(module, x)), device)
    found, expected = program(x), module(x)
    pairs = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    return [item.label for item in program.profile([x]) if "cat" in item.label]


class Dense(nn.Module):
    """Every layer reads all before it, as in a DenseNet; the sum of channels is returned as well."""

    def __init__(self, first: int, growth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, first, 1)
        self.layers = nn.ModuleList(nn.Conv2d(first + growth * i, growth, 3, padding=1) for i in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        whole = torch.cat(features, 1)
        return whole, whole.relu()


def test_layers_of_a_dense_block_share_one_buffer(device):
    assert not run(Dense(8, 4).eval(), device, torch.randn(2, 3, 7, 5))


def test_channels_in_part_vec4s_are_copied(device):
    assert len(run(Dense(6, 5).eval(), device, torch.randn(1, 3, 7, 5))) > 1


class Mixed(nn.Module):
    """Parts that are the input, a constant, a pooled tensor, twice the same, and in two concatenations."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 1)
        self.constant = nn.Parameter(torch.randn(1, 4, 6, 6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = self.conv(x)
        z = nn.functional.max_pool2d(y, 3, 1, 1)
        one = torch.cat([x, y, z[:, 1:]], 1)
        two = torch.cat([y, y, self.constant], 1)
        three = torch.cat([z, y], 1)
        return one, two, three * 2.0


def test_parts_of_every_origin(device):
    assert run(Mixed().eval(), device, torch.randn(1, 4, 6, 6))


@pytest.mark.parametrize("relu", [False, True])
def test_branches_of_a_fire_module(device, relu):
    class Fire(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Conv2d(4, 8, 1), nn.Conv2d(4, 7, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            left, right = self.left(x), self.right(x)
            if relu:
                left, right = left.relu(), right.relu()
            return torch.cat([left, right], 1).mean([2, 3])

    assert not run(Fire().eval(), device, torch.randn(1, 4, 6, 6))
