"""What ``inspect`` says of models before conversion."""

import json
import zipfile
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from mobopt.commands import main
from mobopt.errors import BundleError
from mobopt.tools.describe_model import describe_model


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 5, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor, y: dict[str, Tensor], name: str) -> tuple[Tensor, int]:
        self.calls.add_(1)
        gate = torch.cond(y["b"].sum() > 0, lambda z: z.relu(), lambda z: z.sigmoid(), (self.layer.bias,))
        return self.layer(x) * gate[:, None, None] + self.calls, x.shape[2] * 2


@pytest.fixture
def file(tmp_path: Path) -> Path:
    height, length = torch.export.Dim("height", min=5, max=97), torch.export.Dim("length", min=3)
    inputs = (torch.ones(2, 3, 7, 11), {"b": torch.ones(13, dtype=torch.int32)}, "a")
    with torch.no_grad():
        program = torch.export.export(Counting(), inputs, dynamic_shapes=({2: height}, {"b": {0: length}}, None))
    torch.export.save(program, tmp_path / "net.pt2")
    return tmp_path / "net.pt2"


def test_a_program_of_torch_export(file: Path) -> None:
    found = describe_model(file)
    assert found is not None
    told = found.description
    first, second, third = told.inputs
    assert first.startswith("x: float32[2, 3, s")
    assert first.endswith(" in 5..97, 11]")
    assert second.startswith("y_b: int32[s")
    assert second.endswith(" from 3]")
    assert third == "name: always 'a'"
    assert told.producer == f"PyTorch {torch.__version__}"
    assert told.opsets == (f"aten {torch._C._get_max_operator_version()}",)
    assert told.operators["aten.conv2d.default"] == told.operators["aten.sigmoid.default"] == 1
    assert len(told.outputs) == 2
    assert (found.state, found.refusal, found.size) == (("calls",), "", file.stat().st_size)
    assert found.nodes > 5


def test_the_command(file: Path) -> None:
    shown = CliRunner().invoke(main, ["inspect", str(file)])
    assert shown.exit_code == 0, shown.output
    assert "state     calls" in shown.output
    assert "translates it" in shown.output
    data = json.loads(CliRunner().invoke(main, ["inspect", str(file), "--json"]).output)
    assert data["state"] == ["calls"]
    assert data["inputs"][2] == "name: always 'a'"


def test_what_is_not_translated_is_described(tmp_path: Path) -> None:
    class Training(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x, 0.5, training=True)

    torch.export.save(torch.export.export(Training(), (torch.ones(3),)), tmp_path / "net.pt2")
    found = describe_model(tmp_path / "net.pt2")
    assert found is not None
    assert found.description.inputs == ("x: float32[3]",)
    assert "training" in found.refusal


def test_damaged_records_are_one_error(file: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.pt2"
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(damaged, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, data.replace(b'"input_specs"', b'"other_specs"'))
    with pytest.raises(BundleError, match="damaged model record: KeyError"):
        describe_model(damaged)


def test_other_files_are_none(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("hello")
    assert describe_model(tmp_path / "text.txt") is None
