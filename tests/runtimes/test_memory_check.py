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
from mobopt.samples.agreement import compare
from mobopt.samples.example_inputs import choose_inputs
from mobopt.samples.inputs import random_inputs


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


def test_views_that_no_memory_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where systems promise any memory, and kill who takes it."""
    (tmp_path / "meminfo").write_text("MemAvailable:    1000000 kB\n")
    monkeypatch.setattr(memory_check, "_MEMORY", tmp_path / "meminfo")
    wide = torch.ones(3).expand(100_000_000, 3)
    with pytest.raises(
        InputError, match=r"a tensor of \[100000000, 3\] takes 1.2 GB of memory, and 1.0 GB are available"
    ):
        memory_check.check_dense(wide)
    with pytest.raises(InputError, match=r"takes 1\.2 GB"):
        compare(wide, wide)
    memory_check.check_dense(wide[:80_000_000])
    (tmp_path / "meminfo").write_text("MemAvailable:    0 kB\n")
    memory_check.check_dense(torch.ones(3))  # what is small was made, whatever is said
    (tmp_path / "meminfo").write_text("nothing of the kind")
    memory_check.check_dense(wide)


@pytest.mark.parametrize("shape", ["1,3,10000,10000", "1,3,10000,5000:int64", "1,3,10000,10000:float16"])
def test_random_inputs_that_no_memory_holds(shape: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable:    1000000 kB\n")
    monkeypatch.setattr(memory_check, "_MEMORY", tmp_path / "meminfo")
    with pytest.raises(InputError, match=f"can't make '{shape}': it has [0-9,]* elements; use smaller sizes"):
        random_inputs([shape])
