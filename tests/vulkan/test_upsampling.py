"""Convolutions of single pixels that come before upsampling: as text, beside the CPU, and where not."""

from __future__ import annotations

import textwrap

import pytest
import torch
from straight_lines import line_of
from test_planar_inputs import scripted
from torch import Tensor, nn

from mobopt.ir import Graph, print_graph, verify_graph
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.compile.upsampling import convolve_before_upsampling
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram


def floats(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


TENSORS = {"w": floats(4, 8, 1, 1), "b": floats(4), "k": floats(4, 8, 3, 3), "more": floats(9, 8, 1, 1)}
UP = "%u : Float(1, 8, 14, 10) = aten::upsample_bilinear2d.vec(%x, None, True, [2., 2.])"
CONV = "%y : Float(1, 4, 14, 10) = aten::conv2d(%u, %w, %b, [1, 1], [0, 0], [1, 1], 1)"
PAD = "%z : Float(1, 4, 16, 12) = aten::constant_pad_nd(%y, [1, 1, 1, 1], 0)"


def exchanged(*lines: str, returned: str = "%z", given: str = "%x : Float(1, 8, 7, 5)") -> Graph:
    graph = line_of(lines, TENSORS, given, returned)
    convolve_before_upsampling(graph)
    verify_graph(graph)
    return graph


def operators(graph: Graph) -> list[str]:
    return [node.op.removeprefix("aten::") for node in graph.block.nodes if node.op != "prim::Constant"]


def test_the_text() -> None:
    text = print_graph(exchanged(UP, CONV, PAD), digests=False)
    used = [line for line in text.splitlines() if "prim::Constant" not in line]
    assert "\n".join(used) == textwrap.dedent(
        """\
        graph(%x : Float(1, 8, 7, 5)):
          %0 : Float(1, 4, 7, 5) = aten::conv2d(%x, %w, %b, [1, 1], [0, 0], [1, 1], 1)
          %y : Float(1, 4, 14, 10) = aten::upsample_bilinear2d.vec(%0, None, True, [2.0, 2.0])
          %z : Float(1, 4, 16, 12) = aten::constant_pad_nd(%y, [1, 1, 1, 1], 0)
          return (%z)"""
    )


def test_weights_that_are_made_after_the_upsampling() -> None:
    made = "%v : Float(4, 8, 1, 1) = aten::relu(%w)"
    graph = exchanged(UP, made, CONV.replace("%w", "%v"), PAD)
    assert operators(graph) == ["relu", "conv2d", "upsample_bilinear2d", "constant_pad_nd"]


@pytest.mark.parametrize(
    ("lines", "returned"),
    [
        ([UP, CONV, PAD], "%z, %u"),  # read elsewhere
        ([UP, CONV, "%z : Float(1, 4, 14, 10) = aten::relu(%y)"], "%z"),  # which a convolution takes in
        ([UP, "%y : Float(1, 4, 12, 8) = aten::conv2d(%u, %k, %b, [1, 1], [0, 0], [1, 1], 1)"], "%y"),
        ([UP, "%y : Float(1, 4, 7, 5) = aten::conv2d(%u, %w, %b, [2, 2], [0, 0], [1, 1], 1)"], "%y"),
        ([UP, "%y : Float(1, 4, 16, 12) = aten::conv2d(%u, %w, %b, [1, 1], [1, 1], [1, 1], 1)"], "%y"),
        ([UP, "%y : Float(1, 9, 14, 10) = aten::conv2d(%u, %more, None, [1, 1], [0, 0], [1, 1], 1)"], "%y"),
        ([UP.replace("14, 10", "4, 3").replace("2., 2.", "0.6, 0.6"), CONV.replace("14, 10", "4, 3")], "%y"),
    ],
    ids=["others", "activation", "taps", "stride", "padding", "channels", "smaller"],
)
def test_what_stays(lines: list[str], returned: str) -> None:
    before = [line.split("= aten::")[1].partition("(")[0].partition(".")[0] for line in lines]
    assert operators(exchanged(*lines, returned=returned)) == before


class Decoder(nn.Module):
    """Upsampling and a convolution of single pixels, as U-Nets have them, beside what is skipped."""

    def __init__(self, upsampling: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.up = nn.Sequential(upsampling, nn.Conv2d(12, 8, 1))
        self.merge = nn.Conv2d(16, 7, 3, padding=1)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.merge(torch.cat([torch.relu(skip), self.up(x)], 1))


UPSAMPLINGS = [
    nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True),
    nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=False),
    nn.Upsample(size=(22, 14), mode="bicubic"),
    nn.Upsample(scale_factor=2.0, mode="nearest"),
    nn.Upsample(size=(22, 14), mode="nearest-exact"),
    nn.Upsample(size=(22, 7), mode="nearest"),
]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("upsampling", UPSAMPLINGS, ids=str)
@torch.no_grad()
def test_beside_the_cpu(device: Device, upsampling: nn.Module, precision: str) -> None:
    model, x = Decoder(upsampling).eval(), floats(2, 12, 11, 7)
    skip = floats(2, 8, *upsampling(x).shape[2:])
    runner = VulkanProgram(scripted(model), device, precision=PrecisionChoice(precision))
    expected = model(x, skip)
    loss = 2e-6 if precision == "fp32" else 3e-3
    assert float((runner(x, skip) - expected).abs().max()) <= loss * float(expected.abs().max())
    labels = [item.label for item in runner.profile([x, skip])]
    resized = next(number for number, label in enumerate(labels) if "upsample" in label)
    assert "conv2d" in labels[resized - 1], labels
    assert not any("cat" in label for label in labels), "parts are made where the whole is"
