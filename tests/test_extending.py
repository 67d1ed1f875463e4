"""The examples of docs/extending.md run, and do what the page says."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


def example(section: str) -> str:
    """The first Python block of a section."""
    text = PAGE.read_text().split(f"## {section}\n", 1)[1]
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


class Exported(nn.Module):
    """A normalisation behind an addition of zero; and one of one, which stays."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.convolution(x) + 0) + 1


def test_write_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    script, x = torch.jit.script(Exported().eval()), torch.rand(1, 3, 9, 7)
    names = {"script": script, "x": x}
    exec(example("Write a pass"), names)
    printed = capsys.readouterr().out.splitlines()
    assert any(line.startswith("remove_zeros: aten::add") and line.endswith("removed: it adds 0") for line in printed)
    assert any(line.startswith("remove_zeros: aten::add") and line.endswith("stays: it adds 1") for line in printed)
    module = names["module"]
    assert "aten::batch_norm" not in {node.op for node in module.program.methods["forward"].walk()}
    torch.testing.assert_close(module(x), script(x), rtol=1e-4, atol=1e-5)
    assert names["pipeline"].names.index("remove_zeros") == names["pipeline"].names.index("fold_batch_norm") - 1
