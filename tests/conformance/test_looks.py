"""Random models that look at elements give what eager mode gives: results, what shares memory with them, the state."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir.nests import map_leaves
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

SETUP = """
import torch
from typing import List
from torch import nn


class Model(nn.Module):
    row: torch.Tensor
    calls: int

    def __init__(self):
        super().__init__()
        self.register_buffer("row", torch.zeros(4))
        self.calls = 0

    def forward(self, x: torch.Tensor):
        y = x * 2.0
        z = y.t()
        v = y.view(-1)[1:5]
        s = 0.5
        n = 2
        c = 0
        items: List[torch.Tensor] = []
"""

STATEMENTS = (
    "y = y * 0.5 + x",
    "y[1].add_(1.0)",
    "z = y.t()",
    "z[0].mul_(2.0)",
    "v = y.view(-1)[2:6]",
    "v.add_(0.25)",
    "if bool(y.sum() > 1.0):\n    y = y - 0.5\nelse:\n    y = y + x",
    "while bool(v.sum() < 2.0):\n    v.add_(0.5)",
    "n = int(y.abs().sum())\ny = y + n",
    "n = n % 3",
    "s = y.max().item()\ny = y / (abs(s) + 1.0)",
    "s = s * 0.5 + 0.25",
    "k = torch.nonzero(y > 0.2)[:, 0]\nif k.size(0) > 0:\n    y[0] = y[k].mean(0)",
    "items.append(y.clone())",
    "items.append(v)",
    "if len(items) > 1 and bool(items[0].sum() > items[1].sum()):\n    items[0] = items[0] + 1.0",
    "for i in range(3):\n    if bool(y[i].sum() > 0.5):\n        y[i] = y[i] * 0.5\n        break",
    "self.row.add_(y[0])",
    "self.row = y[1] + 1.0",
    "if bool(self.row.sum() > 2.0):\n    self.row.mul_(0.25)",
    "self.calls = self.calls + n",
    "y = torch.where(y > s, y, -y)",
    "y = y * float(n)",
    "c += 1\nif c > 2 and bool(y.mean() > 0):\n    y = y - c",
    "y = y + x[x > 0.1].sum()",
    "y.clamp_(-3.0, 3.0)",
)
RESULTS = ("y", "v", "z", "s", "n", "self.row", "items", "y.clone()", "x", "c", "self.calls")
CALLS = 4


def random_model(seed: int, folder: Path) -> Any:
    """A class of models, whose source is in a file that torch can read."""
    chance = random.Random(seed)
    lines = [line for _ in range(chance.randint(4, 14)) for line in chance.choice(STATEMENTS).split("\n")]
    lines.append("return " + ", ".join(chance.sample(RESULTS, 3)))
    path = folder / f"looks_{seed}.py"
    path.write_text(SETUP + "".join(f"        {line}\n" for line in lines), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Model


def check(seed: int, folder: Path, device: Device) -> None:
    """Calls of one model, as tensors or as arrays; earlier results too, for later calls may write to them."""
    make = random_model(seed, folder)
    eager: nn.Module = make()
    program = VulkanProgram(program_from_script_module(torch.jit.script(make())), device)
    generator = torch.Generator().manual_seed(seed)
    earlier: list[tuple[Any, Any]] = []
    for _ in range(CALLS):
        x = torch.randn(3, 4, generator=generator)
        expected = eager(x.clone())
        if seed % 3:
            earlier.append((program(x), expected))
        else:
            found = program.run_on_device("forward", [x])
            earlier = [(map_leaves(found, DeviceArray, DeviceArray.tensor), expected)]
        for one, other in earlier:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        if "row" in program.model_state.names:
            torch.testing.assert_close(program.model_state.values["row"], eager.row, rtol=1e-4, atol=1e-4)
    program.close()


@pytest.mark.parametrize("seed", range(4))
def test_models_that_look(seed: int, tmp_path: Path, device: Device) -> None:
    check(seed, tmp_path, device)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(100, 220))
def test_more_models_that_look(seed: int, tmp_path: Path, device: Device) -> None:
    check(seed, tmp_path, device)


class _Places(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        places = x.cummin(0)[1]
        number = int(places.sum())
        return places * 1, places.split(1, 0)[0], number


def test_what_is_constant_once_it_is_lowered_is_carried(device: Device) -> None:
    """Places along a dimension of size 1 are zeros."""
    x = torch.rand(1, 3)
    program = VulkanProgram(program_from_script_module(torch.jit.script(_Places())), device)
    found, expected = program(x), _Places()(x)
    program.close()
    assert found[2] == expected[2]
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
