"""The plain form of files of every backend and release: stock torch loads it, and its weights have names."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from golden_files import FILES, GOLDEN, arrays, assert_expected, golden_id
from torch import nn

from mobopt.bundle import write_torchscript
from mobopt.exporters.plain import plain_model
from mobopt.frontends.file_source import FileSource
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import verify
from mobopt.stand_in import is_stock


def _written(program: object) -> torch.jit.ScriptModule:
    buffer = io.BytesIO()
    write_torchscript(program, buffer)  # type: ignore[arg-type]
    buffer.seek(0)
    return torch.jit.load(buffer)  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize("path", FILES, ids=golden_id)
def test_stock_torch_runs_the_plain_form_of_every_file(path: Path) -> None:
    plain = plain_model(FileSource(path, None, takes_optimized=True).program)
    verify(plain.program)
    assert is_stock(plain.program)
    loaded = _written(plain.program)
    assert_expected(loaded(*arrays(path, "input")), path)
    assert set(loaded.state_dict()) == set(plain.program.attributes)


def test_weights_keep_their_names_and_kinds() -> None:
    model = GOLDEN / "pt2.13.0/convbnrelu6/model.ptl"
    loaded = _written(plain_model(FileSource(model, None).program).program)
    assert {"c1.weight", "b1.weight", "b1.bias"} <= {name for name, _ in loaded.named_parameters()}
    assert {"b1.running_mean", "b1.running_var"} <= {name for name, _ in loaded.named_buffers()}


def test_weights_without_names_are_named_after_their_layers() -> None:
    names = list(plain_model(FileSource(GOLDEN / "pt1.13.1/lstm/vulkan.pt", None, True).program).program.attributes)
    assert names == [f"lstm_0.params.{number}" for number in range(len(names))] and names


class Odd(nn.Module):
    """A scalar parameter, a tied weight, a list of weights, a buffer, an empty tensor, and state."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.5))
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.cell = nn.RNN(3, 2)
        self.register_buffer("offset", torch.arange(3.0))
        self.register_buffer("nothing", torch.zeros(0, 3))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        y = self.second(self.first(x)) * self.scale + self.offset
        return self.cell(torch.cat([y, self.nothing]))[0] + self.count

    @torch.jit.export
    def halved(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) / 2


def test_odd_tensors_and_several_methods() -> None:
    module = Odd().eval()
    script = torch.jit.script(module)
    plain = plain_model(program_from_script_module(script, ["halved"])).program
    kinds = {name: item.is_parameter for name, item in plain.attributes.items()}
    assert kinds["scale"] and kinds["first.weight"] and not kinds["offset"] and not kinds["count"]
    assert "second.weight" not in kinds, "a weight that two layers share is one"
    assert {"cell.weight_ih_l0", "cell.bias_hh_l0"} <= set(kinds)
    loaded = _written(plain)
    x = torch.randn(4, 3)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(loaded(x), module(x))
        torch.testing.assert_close(loaded.halved(x), module.halved(x))
