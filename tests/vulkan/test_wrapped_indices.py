"""Indices from the end, which what reads them takes as they are: as text, where not, and the numbers."""

from __future__ import annotations

import pytest
import torch
from straight_lines import line_of
from torch import Tensor, nn

from mobopt.errors import InputError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import print_graph, verify_graph
from mobopt.runtimes.vulkan.compile.wrapped_indices import read_from_end
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

NEGATIVE = "%l : Bool(13) = aten::lt.Scalar(%i, 0)"
MOVED = "%s : Long(13) = aten::add.Scalar(%i, 97, 1)"
WHERE = "%f : Long(13) = aten::where.self(%l, %s, %i)"
READ = "%y : Float(13, 8) = aten::embedding(%w, %f, -1, False, False)"
CHOOSE = "%y : Float(97, 13) = aten::index_select(%o, 1, %f)"


def found(*lines: str) -> list[str]:
    given = "%i : Long(13), %j : Long(13), %w : Float(97, 8), %o : Float(97, 97)"
    graph = line_of(lines, {}, given, "%y")
    read_from_end(graph)
    verify_graph(graph)
    return [line.strip() for line in print_graph(graph).splitlines() if " = aten::" in line]


def test_what_is_found() -> None:
    assert found(NEGATIVE, MOVED, WHERE, READ) == ["%y : Float(13, 8) = aten::index.Tensor(%w, [%i])"]
    assert found(NEGATIVE, MOVED, WHERE, CHOOSE) == ["%y : Float(97, 13) = aten::index.Tensor(%o, [None, %i])"]


@pytest.mark.parametrize(
    "lines",
    [
        [NEGATIVE, MOVED.replace("97", "96"), WHERE, READ],
        [NEGATIVE, MOVED.replace("97, 1)", "97, 2)"), WHERE, READ],
        [NEGATIVE.replace("%i, 0", "%i, 1"), MOVED, WHERE, READ],
        [NEGATIVE.replace("%i", "%j"), MOVED, WHERE, READ],
        [NEGATIVE, MOVED.replace("%i", "%j"), WHERE, READ],
        [NEGATIVE, MOVED, "%f : Long(13) = aten::where.self(%l, %i, %s)", READ],
        ["%v : Float(97, 8) = aten::neg(%w)", NEGATIVE, MOVED, WHERE, READ.replace("%w", "%v")],
    ],
    ids=["another size", "alpha", "another bound", "another's sign", "another's", "the other way round", "made"],
)
def test_others_stay(lines: list[str]) -> None:
    assert len(found(*lines)) == len(lines)


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(97, 8))

    def forward(self, i: Tensor) -> Tensor:
        return torch.embedding(self.table, torch.where(i < 0, i + 97, i))


def test_rows_from_both_ends(device: Device) -> None:
    torch.manual_seed(0)
    model, indices = Rows().eval(), torch.randint(-97, 97, (3, 13))
    program = VulkanProgram(program_from_script_module(torch.jit.script(model)), device)
    assert torch.equal(program.run("forward", [indices]), model(indices))
    assert program.plan_report([indices]).dispatches == 1
    for beyond in (97, -98):
        with pytest.raises(InputError, match="out of range"):
            program.run("forward", [torch.full((3, 13), beyond)])
