"""Files whose classes are of Python modules with names that no identifier is: ``<run_path>`` of runpy."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import mobopt

SOURCE = """
import enum
from typing import NamedTuple

import torch


class Mode(enum.Enum):
    DOUBLE = 2
    HALF = 0.5


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


class Part(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Pair:
        return Pair(torch.relu(x), 3)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.part, self.linear = Part(), torch.nn.Linear(4, 3)
        self.text = "__torch__.<run_path>.Net"

    def forward(self, x: torch.Tensor):
        pair = self.part(x)
        if self.text == "__torch__._run_path_.Net":
            pair = Pair(x, 0)
        return self.linear(pair.first) * pair.second


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor):
        return self.linear(x)
"""


def net(tmp_path: Path, name: str = "Net") -> Any:
    path = tmp_path / "net.py"
    path.write_text(SOURCE)
    model = runpy.run_path(str(path))[name]().eval()
    script = torch.jit.script(model)
    assert ".<run_path>." in script._c._type().qualified_name()
    return model, script


X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("form", ["pt", "ptl", "flatbuffer"])
def test_they_are_read_and_written_with_names_that_torch_reads(form: str, tmp_path: Path) -> None:
    model, script = net(
        tmp_path, "Plain" if form == "flatbuffer" else "Net"
    )  # torch writes no tuples of such a name there
    path = tmp_path / "model.ptl"
    if form == "pt":
        torch.jit.save(script, path)
        with pytest.raises(RuntimeError, match="expected ident but found '<'"):
            torch.jit.load(path)
    elif form == "ptl":
        script._save_for_lite_interpreter(str(path))
    else:
        torch.jit.save_jit_module_to_flatbuffer(script, str(path))
    expected = model(X)
    torch.testing.assert_close(mobopt.load(path, device="cpu")(X), expected)
    mobopt.migrate(path, tmp_path / "plain.pt", example_inputs=[X])
    torch.testing.assert_close(torch.jit.load(tmp_path / "plain.pt")(X), expected)


def test_scripts_in_memory(tmp_path: Path) -> None:
    model, script = net(tmp_path)
    module = mobopt.optimize_for_mobile(script, backend="vulkan", example_inputs=[X])
    module._save_for_lite_interpreter(str(tmp_path / "model.ptl"))
    torch.testing.assert_close(mobopt.load(tmp_path / "model.ptl", device="cpu")(X), model(X))
    torch.jit.save(mobopt.optimize_for_mobile(script, backend="CPU"), tmp_path / "model.pt")
    torch.testing.assert_close(torch.jit.load(tmp_path / "model.pt")(X), model(X))
