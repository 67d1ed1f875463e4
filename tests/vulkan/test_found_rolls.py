"""Slices that change places, which are a roll: as text, where not, and the numbers of windows that are moved."""

from __future__ import annotations

import pytest
import torch
from straight_lines import line_of
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import print_graph, verify_graph
from mobopt.runtimes.vulkan.compile.rolls import find_rolls
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

END = "%e : Float(2, 5, 8) = aten::slice.Tensor(%x, 1, 2, 9223372036854775807, 1)"
BEGIN = "%b : Float(2, 2, 8) = aten::slice.Tensor(%x, 1, 0, 2, 1)"
JOIN = "%y : Float(2, 7, 8) = aten::cat([%e, %b], 1)"


def found(*lines: str) -> list[str]:
    graph = line_of(lines, {}, "%x : Float(2, 7, 8), %o : Float(2, 7, 8)", "%y")
    find_rolls(graph)
    verify_graph(graph)
    return [line.strip() for line in print_graph(graph).splitlines() if " = aten::" in line]


@pytest.mark.parametrize(
    ("lines", "shift"),
    [
        ([END, BEGIN, JOIN], -2),
        ([END.replace("%x, 1, 2", "%x, -2, 2"), BEGIN.replace(" 0, 2, 1)", " None, 2, 1)"), JOIN], -2),
        ([END.replace(" 2, 9223372036854775807,", " -5, 7,"), BEGIN.replace(" 0, 2, 1)", " 0, -5, 1)"), JOIN], 5),
    ],
    ids=["from the front", "no start", "from the end"],
)
def test_what_is_found(lines: list[str], shift: int) -> None:
    assert found(*lines) == [f"%y : Float(2, 7, 8) = aten::roll(%x, [{shift}], [1])"]


@pytest.mark.parametrize(
    "lines",
    [
        [END, BEGIN, JOIN.replace("[%e, %b]", "[%b, %e]")],  # what it was
        [END, BEGIN.replace("%x", "%o"), JOIN],
        [END.replace("2, 9223372036854775807, 1)", "1, 6, 1)"), BEGIN, JOIN],
        [END.replace("2, 9223372036854775807, 1)", "2, 6, 1)").replace("5", "4"), BEGIN, JOIN.replace("7", "6")],
        [END, BEGIN.replace("0, 2, 1)", "1, 3, 1)"), JOIN],
        [
            "%e : Float(2, 7, 4) = aten::slice.Tensor(%x, 2, 4, 8, 1)",
            "%b : Float(2, 7, 4) = aten::slice.Tensor(%x, 2, 0, 4, 1)",
            "%y : Float(2, 14, 4) = aten::cat([%e, %b], 1)",
        ],
        [
            "%e : Float(2, 0, 8) = aten::slice.Tensor(%x, 1, 9, 20, 1)",
            "%b : Float(2, 7, 8) = aten::slice.Tensor(%x, 1, 0, 9, 1)",
            JOIN,
        ],
    ],
    ids=["in order", "another's", "another place", "not all", "another start", "along another dimension", "beyond"],
)
def test_other_parts_stay(lines: list[str]) -> None:
    assert len(found(*lines)) == 3


class Windows(nn.Module):
    """Tokens of an image, rolled and cut into windows, and back again."""

    def __init__(self, by_slices: bool) -> None:
        super().__init__()
        self.norm, self.layer, self.by_slices = nn.LayerNorm(8), nn.Linear(8, 8), by_slices

    def rolled(self, y: Tensor, high: int, wide: int) -> Tensor:
        if not self.by_slices:
            return torch.roll(y, (-high, -wide), (1, 2))
        y = torch.cat([y[:, high:], y[:, :high]], 1)
        return torch.cat([y[:, :, wide:], y[:, :, :wide]], 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.rolled(self.norm(x), 1, 2)
        y = self.layer(y.view(1, 2, 3, 2, 5, 8).permute(0, 1, 3, 2, 4, 5).reshape(4, 15, 8))
        y = torch.softmax(y, 1).view(1, 2, 2, 3, 5, 8).permute(0, 1, 3, 2, 4, 5).reshape(1, 6, 10, 8)
        return x + self.rolled(y, -1, -2)


def test_windows_are_moved_once(device: Device) -> None:
    torch.manual_seed(0)
    models, x = [Windows(by_slices).eval() for by_slices in (True, False)], torch.randn(1, 6, 10, 8)
    programs = [VulkanProgram(program_from_script_module(torch.jit.script(model)), device) for model in models]
    with torch.no_grad():
        torch.testing.assert_close(programs[0].run("forward", [x]), models[0](x), rtol=1e-5, atol=1e-5)
    by_slices, by_rolls = (program.plan_report([x]).dispatches for program in programs)
    assert by_slices == by_rolls
