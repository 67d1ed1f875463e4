"""Convolutions that are computed as others: which, and that all are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from one_node import Constant, check, graph_of
from torch import nn

import mobopt
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Node
from mobopt.ops.records import Trait, record_of
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.kernels.convolution_parameters import convolution_of
from mobopt.runtimes.vulkan.kernels.convolution_roads import Road, road_of
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported
from mobopt.runtimes.vulkan.program import VulkanProgram

# road, dimensions, input, filter, stride, padding, dilation, groups
ORDINARY: list[Any] = [
    (Road.REPEATED, 2, (2, 3, 7, 5), (6, 1, 3, 3), (1, 2), (1, 0), (1, 1), 3),
    (Road.REPEATED, 1, (2, 5, 11), (15, 1, 4), (2,), (3,), (2,), 5),
    (Road.REPEATED, 3, (2, 3, 5, 4, 3), (6, 1, 3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 3),
    (Road.PADDED_GROUPS, 2, (2, 6, 7, 5), (9, 2, 3, 2), (2, 1), (1, 1), (1, 2), 3),
    (Road.PADDED_GROUPS, 2, (1, 6, 7, 5), (8, 3, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    (Road.PADDED_GROUPS, 2, (3, 8, 4, 4), (6, 4, 1, 1), (1, 1), (0, 0), (1, 1), 2),
    (Road.PADDED_GROUPS, 1, (2, 9, 13), (6, 3, 5), (1,), (2,), (1,), 3),
    (Road.PADDED_GROUPS, 3, (2, 6, 5, 4, 3), (9, 2, 3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 3),
    (None, 2, (1, 5, 40, 37), (5, 1, 3, 3), (1, 1), (16, 16), (16, 16), 5),
    (Road.BANDS, 2, (1, 5, 20, 17), (5, 1, 13, 12), (1, 1), (6, 6), (1, 1), 5),
    (Road.BANDS, 2, (2, 3, 45, 9), (3, 1, 19, 9), (2, 1), (3, 5), (2, 1), 3),
    (Road.BANDS, 1, (2, 3, 401), (3, 1, 171), (2,), (30,), (1,), 3),
]
# road, dimensions, input, filter, stride, padding, output padding, groups, dilation
TRANSPOSED: list[Any] = [
    (Road.SPACED, 2, (2, 5, 4, 7), (5, 1, 3, 3), (2, 2), (1, 1), (1, 0), 5, (1, 1)),
    (Road.SPACED, 2, (1, 3, 4, 5), (3, 1, 2, 3), (3, 2), (2, 0), (0, 1), 3, (1, 2)),
    (Road.SPACED, 1, (2, 6, 9), (6, 1, 4), (2,), (1,), (0,), 6, (1,)),
    (Road.SPACED, 3, (1, 3, 4, 3, 5), (3, 1, 3, 2, 3), (2, 2, 1), (1, 0, 1), (1, 0, 0), 3, (1, 1, 1)),
    (Road.REPEATED, 2, (2, 3, 4, 5), (3, 2, 3, 3), (2, 2), (1, 1), (0, 1), 3, (1, 1)),
    (Road.PADDED_GROUPS, 2, (2, 6, 4, 5), (6, 3, 4, 3), (2, 1), (1, 1), (0, 0), 3, (1, 1)),
    (Road.PADDED_GROUPS, 3, (1, 6, 3, 4, 2), (6, 3, 3, 3, 2), (2, 1, 2), (1, 1, 0), (1, 0, 0), 2, (1, 1, 1)),
    (Road.PHASES, 3, (2, 5, 3, 4, 7), (5, 3, 2, 2, 2), (2, 2, 2), (0, 0, 0), (0, 0, 0), 1, (1, 1, 1)),
    (Road.PHASES, 3, (1, 5, 4, 3, 5), (5, 6, 3, 3, 3), (2, 2, 1), (1, 1, 1), (1, 1, 0), 1, (1, 1, 1)),
    (Road.PHASES, 3, (2, 8, 5, 3, 4), (8, 4, 5, 2, 3), (3, 1, 2), (2, 0, 1), (1, 0, 1), 2, (2, 1, 1)),
    (Road.PHASES, 3, (1, 3, 6, 3, 4), (3, 2, 3, 3, 3), (1, 2, 1), (2, 0, 1), (0, 1, 0), 1, (2, 1, 1)),
    (None, 3, (1, 3, 4, 3, 4), (3, 2, 1, 3, 3), (2, 2, 1), (0, 0, 1), (0, 1, 0), 1, (1, 1, 1)),
]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("case", ORDINARY)
def test_ordinary(device: Device, case: Any, with_bias: bool) -> None:
    road, dimensions, sizes, filters, *along = case
    bias = Constant(torch.randn(filters[0])) if with_bias else None
    _follows(device, road, f"aten::conv{dimensions}d", torch.randn(sizes), Constant(torch.randn(filters)), bias, *along)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed(device: Device, case: Any, with_bias: bool) -> None:
    road, dimensions, sizes, filters, *along = case
    operator = "aten::conv_transpose1d" if dimensions == 1 else f"aten::conv_transpose{dimensions}d.input"
    bias = Constant(torch.randn(filters[1] * along[3])) if with_bias else None
    _follows(device, road, operator, torch.randn(sizes), Constant(torch.randn(filters)), bias, *along)


def _follows(device: Device, road: Road | None, operator: str, *args: Any) -> None:
    """A road is taken, the result is right, and there is a fast kernel for what is left, unless there is no road."""
    graph, _, _ = graph_of(operator, *args)
    (node,) = graph.block.nodes
    assert road_of(convolution_of(node), node.output.sizes) == road
    assert (why_unsupported(node) is None) == (road is None)
    graph = check(device, operator, *args)
    if road is not None:
        assert all(map(_is_fast, graph.block.nodes))


def _is_fast(node: Node) -> bool:
    if Trait.CONVOLUTION not in record_of(node.qualified_op).traits:
        return True
    left = convolution_of(node)
    whole = left.group_inputs % 4 == 0 and left.group_outputs % 4 == 0
    return len(left.taps) < 3 and (left.groups == 1 or left.is_depthwise or whole)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("filters", [(9, 2, 2, 3), (6, 1, 3, 4)])
def test_named_padding(device: Device, padding: str, filters: tuple[int, ...]) -> None:
    """Of an even number of taps there is more padding behind than before."""
    channels = 6
    args = (torch.randn(2, channels, 7, 5), Constant(torch.randn(filters)), None, [1, 1], padding)
    check(device, "aten::conv2d.padding", *args, [1, 1], channels // filters[1])


@pytest.mark.parametrize(
    ("filters", "stride", "padding", "groups"),
    [((7, 4, 3, 2), 2, 1, 1), ((6, 2, 1, 1), 1, 0, 2), ((4, 1, 3, 3), 1, 1, 4), ((4, 4, 5, 3), 3, 4, 1)],
)
def test_computed_weights(device: Device, filters: tuple[int, ...], stride: int, padding: int, groups: int) -> None:
    args = (torch.randn(filters), torch.randn(filters[0]), [stride] * 2, [padding] * 2, [1, 1], groups)
    _follows(device, Road.PRODUCT, "aten::conv2d", torch.randn(3, 4, 9, 8), *args)


def test_what_is_not_finite_stays_in_its_group(device: Device) -> None:
    x = torch.randn(1, 6, 5, 4)
    x[0, 0, 2, 2], x[0, 3, 1, 1] = float("nan"), float("inf")
    args = (Constant(torch.randn(9, 2, 3, 3)), None, [1, 1], [1, 1], [1, 1], 3)
    check(device, "aten::conv2d", x, *args)


class Mixed(nn.Module):
    """Every road, with what may be fused behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.odd = nn.Conv2d(6, 9, 3, padding=1, groups=3)
        self.many = nn.Conv2d(9, 18, 3, groups=9)
        self.up = nn.ConvTranspose2d(18, 18, 4, stride=2, padding=1, groups=18)
        self.narrow = nn.ConvTranspose2d(18, 6, 3, groups=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.relu6(self.odd(x))
        return torch.relu(self.narrow(nn.functional.hardtanh(self.up(self.many(y)), -0.3, 0.4)))


SIZES = ((1, 6, 8, 9), (2, 6, 11, 7), (2, 6, 12, 9), (1, 6, 5, 16), (3, 6, 13, 13))


def test_a_net_of_several_sizes(device: Device) -> None:
    module = Mixed().eval()
    program = VulkanProgram(program_from_script_module(torch.jit.script(module)), device, fallback="error")
    for x in map(torch.randn, SIZES):
        with torch.no_grad():
            torch.testing.assert_close(program.run("forward", [x]), module(x), rtol=1e-4, atol=1e-5)


def test_packed_contexts(device: Device) -> None:
    """They may hold a clamp, too."""
    module = Mixed().eval()
    packed = mobopt.optimize_for_mobile(
        torch.jit.script(module), backend="vulkan", runtime="mobopt", example_inputs=[torch.randn(SIZES[0])]
    )
    with torch.no_grad():
        for x in map(torch.randn, SIZES):
            torch.testing.assert_close(packed(x), module(x), rtol=1e-4, atol=1e-5)
            assert not packed.plan_report(x).fallbacks


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_halves(device: Device, precision: str) -> None:
    module, x = Mixed().eval(), torch.randn(SIZES[0])
    halves = mobopt.optimize_for_mobile(
        torch.jit.script(module), backend="vulkan", runtime="mobopt", example_inputs=[x], precision=precision
    )
    with torch.no_grad():
        expected = module(x)
        error = float((halves(x) - expected).abs().max() / expected.abs().max())
    assert error < {"fp16": 2e-3, "bf16": 1.6e-2}[precision]
