"""Repeats that are a tensor: one for all entries, as traces have it of sizes, or one for each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import mobopt
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

torch.manual_seed(0)


class BySize(nn.Module):
    """Each row for each of the choices that another tensor has room for."""

    def forward(self, x: Tensor, choices: Tensor) -> Tensor:
        rows = x.repeat_interleave(choices.size(-1), dim=0)
        return torch.bmm(rows.unsqueeze(1), choices.reshape(-1, 1, 1).expand(-1, 5, 3)).squeeze(1)


class ByElements(nn.Module):
    """So many of each entry as a tensor says; of one element, of all."""

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        return x.repeat_interleave(counts, dim=1) * 2


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (BySize(), (torch.randn(7, 5), torch.randn(7, 2))),
        (ByElements(), (torch.randn(3, 5), torch.tensor([2]))),
        (ByElements(), (torch.randn(3, 5), torch.tensor(3))),
        (ByElements(), (torch.randn(3, 5), torch.tensor([0, 2, 1, 0, 3]))),
        (ByElements(), (torch.randn(3, 1), torch.tensor([2]))),
    ],
)
def test_as_in_torch(model: nn.Module, inputs: tuple[Tensor, Tensor], device: Device) -> None:
    traced = torch.jit.trace(model, inputs)
    program = mobopt.optimize_for_mobile(traced, backend="vulkan", runtime="mobopt", example_inputs=inputs).program
    runtime = VulkanProgram(program, device)
    torch.testing.assert_close(runtime.run("forward", inputs), model(*inputs), rtol=1e-5, atol=1e-5)
    assert not runtime.plan_report(inputs).fallbacks
