"""Calls on the CPU that need more memory than there is."""

from pathlib import Path

import pytest
import torch
from torch import nn

from mobopt.errors import InputError
from mobopt.frontends.script_module_source import ScriptModuleSource
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.cpu import memory_check
from mobopt.runtimes.cpu.interpreter import Interpreter
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.samples.example_inputs import choose_inputs


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


class Product(nn.Module):
    """Every element of a tensor times every element of another."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.kron(x, y).sum()


def test_results_that_nobody_asked_for_stay_small() -> None:
    program = program_from_script_module(torch.jit.script(Product()))
    x = torch.ones(1, 3, 96, 96)
    message = r"aten::kron .*makes \[1, 9, 9216, 9216\] of inputs that nobody gave, 3.1 GB; give smaller ones"
    with pytest.raises(InputError, match=message):
        Interpreter(program).bounded().run("forward", [x, x])
    chosen = choose_inputs(ScriptModuleSource(torch.jit.script(Product()))).arguments
    assert chosen is not None and chosen[0].shape[-1] < 96


def test_results_of_given_inputs_that_do_not_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable:    1000000 kB\n")
    monkeypatch.setattr(memory_check, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(memory_check, "_LEAST", 2**10)
    program = program_from_script_module(torch.jit.script(Product()))
    with pytest.raises(InputError, match=r"aten::kron .*needs 4.0 GB .* and 1.0 GB are available"):
        Interpreter(program).run("forward", [torch.ones(31250), torch.ones(32000)])
