"""Calls on the CPU that need more memory than there is."""

from pathlib import Path

import pytest
import torch
from torch import nn

from mobopt.errors import InputError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.cpu import memory_check
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram


class Widened(nn.Module):
    """A sum in float64, which the device has not, of 1.2 GB."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double().expand(150_000_000, 1) * 2


def test_a_result_that_does_not_fit_is_refused_by_name(
    device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = tmp_path / "meminfo"
    told.write_text("MemTotal:        9000000 kB\nMemAvailable:    1000000 kB\n")
    monkeypatch.setattr(memory_check, "_MEMORY", told)
    runtime = VulkanProgram(program_from_script_module(torch.jit.script(Widened())), device)
    with pytest.raises(InputError, match=r"aten::mul.* needs 1.2 GB .* \[150000000, 1\], and 1.0 GB are available"):
        runtime.run("forward", [torch.ones(1)])
    told.write_text("nothing of the kind")
    assert memory_check.available_bytes() is None
