"""Matrix units that are emulated go round loops far more often than real ones, and drivers on the CPU end loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram


class Attention(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value)


def assert_right(model: nn.Module, device: Device, *args: Tensor) -> None:
    program = VulkanProgram(program_from_script_module(torch.jit.script(model.eval())), device)
    with torch.no_grad():
        torch.testing.assert_close(program.run("forward", list(args)), model(*args), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inner", [1536, 4099])
@pytest.mark.parametrize("rows", [7, 196])
def test_long_products(units: Device, rows: int, inner: int) -> None:
    torch.manual_seed(0)
    assert_right(nn.Linear(inner, 384), units, torch.randn(rows, inner))


def test_many_keys(units: Device) -> None:
    torch.manual_seed(0)
    assert_right(Attention(), units, *(torch.randn(1, 1, length, 64) for length in (67, 4099, 4099)))
