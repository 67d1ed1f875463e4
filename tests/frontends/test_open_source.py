"""What a caller has of a model: which source it becomes, and what is told of what is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mobopt.errors import ArgumentTypeError, BundleError
from mobopt.frontends.file_source import FileSource
from mobopt.frontends.open_source import read_program, source_of
from mobopt.frontends.script_module_source import ScriptModuleSource


def script() -> torch.jit.ScriptModule:
    return torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()).eval())


def test_a_script_module_and_its_file(tmp_path: Path) -> None:
    path = tmp_path / "model.of.any.name"
    torch.jit.save(script(), path)
    assert type(source_of(script())) is ScriptModuleSource
    for file in (path, str(path)):
        assert type(source_of(file)) is FileSource
        assert source_of(file).name == path.name


def test_a_source_stays_itself() -> None:
    source = source_of(script())
    assert source_of(source) is source


def test_extra_files_come_with_a_file_only(tmp_path: Path) -> None:
    torch.jit.save(script(), tmp_path / "m.pt", _extra_files={"labels.txt": "cat\ndog"})
    assert source_of(tmp_path / "m.pt").extra_files() == {"labels.txt": b"cat\ndog"}
    assert source_of(script()).extra_files() == {}


@pytest.mark.parametrize("model", [None, 3, b"model.pt", torch.zeros(2), {"weight": torch.zeros(2)}])
def test_what_is_no_model_is_named(model: object) -> None:
    with pytest.raises(ArgumentTypeError, match="or the path of a file is expected") as caught:
        source_of(model)
    assert str(type(model)) in str(caught.value)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"<html>")
    with pytest.raises(BundleError, match="HTML"):
        source_of(tmp_path / "model.pt")


def test_any_file_is_read_to_be_run_as_it_is(tmp_path: Path) -> None:
    torch.jit.save(script(), tmp_path / "m.pt")
    assert "aten::linear" in {node.op for node in read_program(tmp_path / "m.pt").methods["forward"].walk()}
    turns = read_program(Path(__file__).parent / "turns.pt2")
    assert "prim::Loop" in {node.op for node in turns.methods["forward"].walk()}
