"""Inputs of sizes that were declared beside the example's, as options and as what a conversion is compared on."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from mobopt import optimize_for_mobile
from mobopt.errors import InputError, PassError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program
from mobopt.ir.node_list import InsertionPoint
from mobopt.ir.types import FLOAT, INT, TENSOR
from mobopt.passes.manager import Pass
from mobopt.passes.notes import NoteBook
from mobopt.passes.pipelines import PassPipeline
from mobopt.samples.inputs import read_bounds
from mobopt.samples.other_sizes import inputs_of_other_sizes


class Rows(nn.Module):
    """Looks rows up, and adds."""

    def forward(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return torch.relu(rows) + rows[places]


ROWS, PLACES = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)), torch.tensor([2, 0, 1])


def test_the_least_sizes_and_one_more_with_elements_of_the_example() -> None:
    program = program_from_script_module(torch.jit.script(Rows()), [])
    found = inputs_of_other_sizes(program, "forward", [ROWS, PLACES], {"forward": [[None, (2, 6)], [None]]})
    least, larger = found
    assert torch.equal(least[0], ROWS[:, :2])
    assert torch.equal(larger[0], torch.cat([ROWS, ROWS[:, :1]], 1))
    assert least[1] is PLACES
    assert not list(inputs_of_other_sizes(program, "forward", [ROWS, PLACES], {}))


@dataclass(frozen=True)
class ScaleByWidth(Pass):
    """Multiplies by a fifth of the width, which changes nothing for the example alone."""

    name = "scale_by_width"

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        graph = program.methods["forward"]
        relu = next(node for node in graph.walk() if node.op == "aten::relu")
        if any(user.op == "aten::mul" for user, _ in relu.output.uses):
            return False
        width = graph.create("aten::size", [relu.inputs[0], graph.constant(1)], [INT], overload="int")
        factor = graph.create("aten::div", [width.output, graph.constant(5)], [FLOAT], overload="int")
        scaled = graph.create("aten::mul", [relu.output, factor.output], [TENSOR], overload="Scalar")
        relu.output.replace_all_uses_with(scaled.output)
        scaled.replace_input(0, relu.output)
        for node in (scaled, factor, width):
            InsertionPoint.after(relu).insert(node)
        return True


@pytest.mark.parametrize("backend", ["cpu", "vulkan"])
def test_a_result_that_is_right_for_the_example_alone_is_refused(backend: str) -> None:
    script = torch.jit.script(Rows())
    passes = PassPipeline.default(backend)
    passes = passes.insert_before(passes.names[0], ScaleByWidth(), number=1)
    arguments = {"backend": backend, "example_inputs": [ROWS, PLACES], "passes": passes}
    optimize_for_mobile(script, **arguments)
    with pytest.raises(PassError, match="differs from the original"):
        optimize_for_mobile(script, **arguments, bounds={"forward": [[None, (2, 6)]]})


def test_ranges_are_read() -> None:
    assert read_bounds(["0=1..16", "1.2=32..512", "encode:0=1..4"]) == {
        "forward": [[(1, 16)], [None, None, (32, 512)]],
        "encode": [[(1, 4)]],
    }


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["0=2"], "can't read the bound '0=2'; write the dimension and its sizes"),
        (["x=1..2"], "can't read the bound 'x=1..2'"),
        (["0=1..2", "0.0=1..3"], "another bound of the same dimension as '0.0=1..3'"),
        (["256=1..2"], "'256=1..2' is of an input or a dimension beyond 255"),
    ],
)
def test_other_texts_are_one_clear_error(texts: list[str], message: str) -> None:
    with pytest.raises(InputError) as raised:
        read_bounds(texts)
    assert message in str(raised.value)
