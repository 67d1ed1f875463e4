"""Views that come before norms: as text, where not, and that a norm is part of the product then."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import pytest
import torch
from straight_lines import line_of
from test_planar_inputs import scripted
from torch import Tensor, nn

from mobopt.ir import Graph, print_graph, verify_graph
from mobopt.runtimes.vulkan.compile.norm_views import view_before_norms
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

NORM = "%n : Float(2, 1, 1, 8) = aten::layer_norm(%x, [8], None, None, 1e-05, True)"
PERMUTE = "%p : Float(2, 8, 1, 1) = aten::permute(%n, [0, 3, 1, 2])"
FLATTEN = "%y : Float(2, 8) = aten::flatten.using_ints(%p, 1, -1)"


def exchanged(*lines: str, returned: str = "%y", given: str = "%x : Float(2, 1, 1, 8)") -> Graph:
    graph = line_of(lines, {}, given, returned)
    view_before_norms(graph)
    verify_graph(graph)
    return graph


def operators(graph: Graph) -> list[str]:
    return [node.op.removeprefix("aten::") for node in graph.block.nodes if node.op != "prim::Constant"]


def test_the_text() -> None:
    text = print_graph(exchanged(NORM, PERMUTE, FLATTEN), digests=False)
    assert text.rstrip() == textwrap.dedent(
        """\
        graph(%x : Float(2, 1, 1, 8)):
          %0 : Float(2, 8) = aten::reshape(%x, [2, 8])
          %y : Float(2, 8) = aten::layer_norm(%0, [8], None, None, 1e-05, True)
          return (%y)"""
    )


def test_rows_that_are_chosen() -> None:
    lines = [
        "%n : Float(2, 5, 3, 8) = aten::rms_norm(%x, [8], None, 1e-05)",
        "%s : Float(2, 3, 8) = aten::select.int(%n, 1, -1)",
        "%y : Float(3, 8) = aten::select.int(%s, 0, 1)",
    ]
    graph = exchanged(*lines, given="%x : Float(2, 5, 3, 8)")
    assert operators(graph) == ["select", "select", "rms_norm"]
    assert "%0 : Float(2, 3, 8) = aten::select.int(%x, 1, -1)" in print_graph(graph)


@pytest.mark.parametrize(
    ("lines", "given", "returned"),
    [
        ([NORM, PERMUTE, FLATTEN], "%x : Float(2, 1, 1, 8)", "%y, %n"),
        ([NORM, PERMUTE], "%x : Float(2, 1, 1, 8)", "%p"),
        (["%y : Float(2, 1, 8) = aten::rms_norm(%x, [8], None, 1e-05)"], "%x : Float(2, 1, 8)", "%y"),
        (
            [
                "%n : Float(2, 3, 8) = aten::rms_norm(%x, [8], None, 1e-05)",
                "%y : Float(2, 3) = aten::select.int(%n, 2, 0)",
            ],
            "%x : Float(2, 3, 8)",
            "%y",
        ),
        (
            [
                "%n : Float(2, 3, 5, 8) = aten::rms_norm(%x, [8], None, 1e-05)",
                "%y : Float(2, 15, 8) = aten::flatten.using_ints(%n, 1, 2)",
            ],
            "%x : Float(2, 3, 5, 8)",
            "%y",
        ),
        (
            [
                "%n : Float(2, 3, 1, 8) = aten::rms_norm(%x, [8], None, 1e-05)",
                "%y : Float(3, 2, 1, 8) = aten::permute(%n, [1, 0, 2, 3])",
            ],
            "%x : Float(2, 3, 1, 8)",
            "%y",
        ),
    ],
    ids=["returned", "no rows", "alone", "of a row", "merged", "turned"],
)
def test_what_stays(lines: list[str], given: str, returned: str) -> None:
    before = [line.split("= aten::")[1].partition("(")[0].partition(".")[0] for line in lines]
    assert operators(exchanged(*lines, given=given, returned=returned)) == before


class Head(nn.Module):
    """As ConvNeXt ends."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.norm, self.layer = nn.LayerNorm(12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.nn.functional.adaptive_avg_pool2d(x, 1).permute(0, 2, 3, 1)
        return self.layer(self.norm(y).permute(0, 3, 1, 2).flatten(1))


@pytest.mark.parametrize("batch", [1, 3])
@torch.no_grad()
def test_a_product_takes_the_norm_in(device: Device, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    monkeypatch.setattr(device, "info", replace(device.info, switches=frozenset({"shared-products"})))
    model, x = Head().eval(), torch.randn(batch, 12, 5, 3, generator=torch.Generator().manual_seed(batch))
    runner = VulkanProgram(scripted(model), device)
    torch.testing.assert_close(runner(x), model(x), atol=1e-5, rtol=1e-5)
    labels = [item.label for item in runner.profile([x])]
    assert len(labels) == 2 and not any("norm" in label for label in labels), labels
