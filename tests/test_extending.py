"""The examples of docs/extending.md run, and do what the page says."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mobopt.errors import TableError
from mobopt.ops.shapes import rules
from mobopt.ops.targets.row import RELEASES
from mobopt.ops.targets.table import checked_rows
from mobopt.runtimes.vulkan.lowerings import registry
from mobopt.runtimes.vulkan.program import VulkanProgram

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


@pytest.fixture
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an example registers goes with it."""
    monkeypatch.setattr(registry, "_LOWERINGS", dict(registry._LOWERINGS))
    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))


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


class Gated(nn.Module):
    """An operator of another library, on slices of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.convolution(x)
        return torch.ops.pixels.gate(x[:, :5], x[:, 5:6]).mean(1)


def test_add_an_operator(own_registries: None) -> None:
    torch.manual_seed(0)
    module, x = Gated().eval(), torch.rand(1, 3, 11, 7)
    names = {"__name__": __name__, "make_script": lambda: torch.jit.script(module), "x": x}
    exec(example("Add an operator"), names)
    program = VulkanProgram(names["module"].program, fallback="error")
    torch.testing.assert_close(program(x), module(x), rtol=1e-4, atol=1e-5)
    program.close()


def test_add_a_target_row() -> None:
    names: dict[str, Any] = {}
    exec(example("Add a target row"), names)
    assert (names["wrong"].verdict, names["native"].verdict) == ("wrong", "native")
    assert names["wrong"].condition is not None and not names["wrong"].covers(RELEASES.index("1.13"))
    with pytest.raises(TableError, match=r"my\.toml, row 1.*ceil_modus"):
        checked_rows({"my.toml": names["ROWS"].replace("ceil_mode", "ceil_modus")})
    first, second = names["ROWS"].split("\n\n")
    with pytest.raises(TableError, match=r"row 2.*earlier rows"):
        checked_rows({"my.toml": f"{second}\n\n{first}"})
