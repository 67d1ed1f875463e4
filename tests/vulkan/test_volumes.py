"""Convolutions of volumes: which become those of images, and that all are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from one_node import Constant, check, graph_of
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import print_graph
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

# input, filter, stride, padding, dilation, groups
OF_IMAGES = [
    ((2, 3, 5, 7, 11), (7, 3, 3, 3, 3), (1, 2, 2), (1, 1, 1), (1, 1, 1), 1),
    ((1, 5, 7, 6, 5), (3, 5, 2, 3, 1), (2, 1, 3), (0, 1, 0), (1, 2, 1), 1),
    ((2, 3, 9, 5, 4), (4, 3, 3, 2, 2), (3, 1, 1), (2, 0, 1), (2, 1, 1), 1),
    ((3, 4, 5, 3, 7), (6, 4, 1, 3, 3), (2, 1, 2), (0, 1, 1), (1, 1, 1), 1),
    ((2, 4, 3, 5, 7), (5, 4, 1, 1, 1), (2, 2, 2), (0, 0, 0), (1, 1, 1), 1),
    ((2, 6, 7, 3, 5), (5, 6, 3, 1, 1), (2, 1, 1), (1, 0, 0), (1, 1, 1), 1),
    ((2, 8, 5, 3, 5), (16, 4, 5, 1, 1), (1, 1, 1), (4, 0, 0), (2, 1, 1), 2),
    ((1, 8, 3, 4, 5), (8, 4, 3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 2),
    ((1, 5, 3, 7, 6), (5, 1, 1, 3, 3), (1, 2, 1), (0, 1, 1), (1, 1, 1), 5),
    ((2, 3, 5, 4, 7), (5, 3, 3, 1, 1), (1, 2, 1), (0, 1, 0), (1, 1, 1), 1),
    ((1, 5, 7, 4, 3), (5, 1, 3, 1, 1), (1, 1, 1), (1, 0, 0), (1, 1, 1), 5),
    ((1, 5, 3, 7, 6), (5, 1, 3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 5),
    ((2, 8, 7, 5, 6), (8, 1, 3, 2, 3), (2, 1, 2), (2, 0, 1), (2, 1, 1), 8),
    ((3, 1, 4, 5, 6), (1, 1, 3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1),
]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("case", OF_IMAGES)
@pytest.mark.parametrize("with_bias", [True, False])
def test_constant_weights(device: Device, case: Any, with_bias: bool) -> None:
    x, weight, bias = torch.randn(case[0]), torch.randn(case[1]), torch.randn(case[1][0])
    graph = check(device, "aten::conv3d", x, Constant(weight), Constant(bias) if with_bias else None, *case[2:])
    assert "aten::conv3d" not in print_graph(graph)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("taps", [(3, 3, 5), (2, 3, 3), (3, 2, 3)])
def test_named_padding(device: Device, padding: str, taps: tuple[int, ...]) -> None:
    x, weight = torch.randn(2, 3, 5, 7, 6), torch.randn(5, 3, *taps)
    check(device, "aten::conv3d.padding", x, Constant(weight), None, [1, 1, 1], padding)


def test_what_is_no_batch_of_floats_is_left_whole() -> None:
    weight = Constant(torch.randn(5, 3, 2, 2, 2))
    for x in (torch.randn(3, 4, 5, 6), torch.randn(0, 3, 4, 5, 6)):
        graph, _, _ = graph_of("aten::conv3d", x, weight, None)
        assert "aten::conv3d" in print_graph(graph)


class Video(nn.Module):
    """A block with all that may be fused into a convolution behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(3, 8, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2), bias=False)
        self.norm = nn.BatchNorm3d(8)
        self.second = nn.Conv3d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return torch.relu(self.second(x) + x).mean([2, 3, 4])


@pytest.mark.parametrize("sizes", [(1, 3, 7, 13, 11), (2, 3, 4, 10, 9)])
def test_a_block(device: Device, sizes: tuple[int, ...]) -> None:
    module, x = Video().eval(), torch.randn(sizes)
    program = VulkanProgram(
        program_from_script_module(torch.jit.trace(module, x)),  # type: ignore[no-untyped-call]
        device,
        fallback="error",
    )
    with torch.no_grad():
        torch.testing.assert_close(program.run("forward", [x]), module(x))
        longer = torch.randn(sizes[0], 3, 9, 17, 12)
        torch.testing.assert_close(program.run("forward", [longer]), module(longer))
