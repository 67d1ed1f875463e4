"""A depthwise convolution with the squeeze-and-excitation of what it makes: as text, beside the CPU on odd sizes, by
tiles of all kinds, and where it is left apart."""

from __future__ import annotations

import random
import textwrap
from dataclasses import replace

import pytest
import torch
from device_infos import known_device
from steps import stepped
from straight_lines import line_of
from test_recorded import Checked
from torch import Tensor, nn
from torch.nn import functional

from mobopt import optimize_for_mobile
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, print_graph, verify_graph
from mobopt.ir.rewriting import dissolve
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.compile.fusion import fold_epilogues
from mobopt.runtimes.vulkan.compile.fusion_depthwise import fold_expansions
from mobopt.runtimes.vulkan.compile.fusion_excitation import fold_excitations
from mobopt.runtimes.vulkan.compile.fusion_row_layers import fold_row_layers
from mobopt.runtimes.vulkan.compile.fusion_scaling import fold_scalings
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels import excited_depthwise as excited_module
from mobopt.runtimes.vulkan.kernels.expanded_depthwise import NO_EXPANDED_DEPTHWISE, FilterWalk, expanded_kernels
from mobopt.runtimes.vulkan.kernels.row_layers import MOST_ADDENDS, NO_ROW_LAYERS, RowLayersShape, row_layers_kernels
from mobopt.runtimes.vulkan.lowerings.expanded_depthwise import EXCITED_DEPTHWISE, EXPANDED_DEPTHWISE
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.lowerings.row_layers import ROW_LAYERS
from mobopt.runtimes.vulkan.program import VulkanProgram

load_lowerings()

H200 = known_device("nvidia_h200")
DEPTHWISE, LAYERS = "product_shared_depthwise", "product_row_layers"


@pytest.fixture
def gpu(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device with the kernels of GPUs, without matrix units, and as many cores as an H200."""
    info = replace(device.info, kind="discrete", cores=132, switches=frozenset({"no-matrix-units"}))
    monkeypatch.setattr(device, "info", info)
    return device


def floats(*sizes: int, seed: int = 1) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


# As text.

TENSORS = {
    "w": floats(6, 5, 1, 1), "k": floats(6, 1, 3, 3), "s": floats(3, 6, 1, 1), "t": floats(6, 3, 1, 1),
    "p": floats(4, 6, 1, 1),
}  # fmt: skip
X, E, M, H = "Float(2, 5, 3, 7)", "Float(2, 6, 3, 7)", "Float(2, 6, 1, 1)", "Float(2, 3, 1, 1)"
ONE = "[1, 1], [0, 0], [1, 1]"
EXPAND = f"%e : {E} = aten::conv2d(%x, %w, None, {ONE}, 1)"
FILTER = f"%y : {E} = aten::conv2d(%e, %k, None, [1, 1], [1, 1], [1, 1], 6)"
MEAN = f"%m : {M} = aten::adaptive_avg_pool2d(%y, [1, 1])"
SQUEEZE, RELU = f"%z : {H} = aten::conv2d(%m, %s, None, {ONE}, 1)", f"%h : {H} = aten::relu(%z)"
EXCITE, SIGMOID = f"%o : {M} = aten::conv2d(%h, %t, None, {ONE}, 1)", f"%g : {M} = aten::sigmoid(%o)"
GATE = f"%q : {E} = aten::mul.Tensor(%y, %g)"
PROJECT = f"%r : Float(2, 4, 3, 7) = aten::conv2d(%q, %p, None, {ONE}, 1)"
LINES = [EXPAND, FILTER, MEAN, SQUEEZE, RELU, EXCITE, SIGMOID]


def folded(*lines: str, returned: str = "%y, %g", device: DeviceInfo = H200, apart: str = "") -> Graph:
    graph = line_of(lines, TENSORS, f"%x : {X}", returned)
    fold_epilogues(graph)
    fold_scalings(graph)

    def is_apart(node: object) -> bool:
        return getattr(node, "qualified_op", None) == apart

    fold_expansions(graph, device, is_apart=is_apart)
    fold_row_layers(graph, device, is_apart=is_apart)
    fold_excitations(graph, device, is_apart=is_apart)
    verify_graph(graph)
    return graph


def operators(graph: Graph) -> list[str]:
    return [node.op for node in graph.block.nodes if node.op != "prim::Constant"]


def test_the_text() -> None:
    graph = folded(*LINES)
    used = [line for line in print_graph(graph, digests=False).splitlines() if "prim::Constant" not in line]
    assert "\n".join(used) == textwrap.dedent(
        """\
        graph(%x : Float(2, 5, 3, 7)):
          %y : Float(2, 6, 3, 7), %g : Float(2, 6, 1, 1) = mobopt::excited_depthwise()
            block0():
              %e : Float(2, 6, 3, 7) = aten::conv2d(%x, %w, None, [1, 1], [0, 0], [1, 1], 1)
              %0 : Float(2, 6, 3, 7) = aten::conv2d(%e, %k, None, [1, 1], [1, 1], [1, 1], 6)
              %m : Float(2, 6, 1, 1) = aten::adaptive_avg_pool2d(%0, [1, 1])
              %z : Float(2, 3, 1, 1) = aten::conv2d(%m, %s, None, [1, 1], [0, 0], [1, 1], 1)
              %h : Float(2, 3, 1, 1) = aten::relu(%z)
              %o : Float(2, 6, 1, 1) = aten::conv2d(%h, %t, None, [1, 1], [0, 0], [1, 1], 1)
              %1 : Float(2, 6, 1, 1) = aten::sigmoid(%o)
              -> (%0, %1)
          return (%y, %g)"""
    )
    dissolve(next(node for node in graph.block.nodes if node.op == EXCITED_DEPTHWISE))
    verify_graph(graph)
    assert operators(graph) == [
        *("aten::conv2d", "aten::conv2d", "aten::adaptive_avg_pool2d"),
        *("aten::conv2d", "aten::relu", "aten::conv2d", "aten::sigmoid"),
    ]


@pytest.mark.parametrize("mean", [MEAN, f"%m : {M} = aten::mean.dim(%y, [2, -1], True, None)"])
def test_the_image_that_is_scaled(mean: str) -> None:
    """What reads the image comes after the layers, and scales it as it reads it."""
    graph = folded(EXPAND, FILTER, mean, SQUEEZE, RELU, EXCITE, SIGMOID, GATE, PROJECT, returned="%r")
    assert operators(graph) == [EXCITED_DEPTHWISE, "mobopt::product"]


@pytest.mark.parametrize(
    ("lines", "returned"),
    [
        (LINES, "%y, %g, %m"),  # the mean is returned
        ([*LINES, f"%u : {M} = aten::tanh(%m)"], "%y, %g, %u"),  # something else reads it
        ([*LINES[:3], f"%u : {E} = aten::tanh(%y)", *LINES[3:]], "%u, %g"),  # something reads the image before
        ([EXPAND, FILTER, MEAN.replace("%m", "%n"), *LINES[2:]], "%y, %g, %n"),  # another mean is a part already
    ],
)
def test_what_is_not(lines: list[str], returned: str) -> None:
    found = operators(folded(*lines, returned=returned))
    assert EXCITED_DEPTHWISE not in found
    assert EXPANDED_DEPTHWISE in found and ROW_LAYERS in found


def test_where_it_is_not() -> None:
    assert EXCITED_DEPTHWISE not in operators(folded(*LINES, apart="aten::adaptive_avg_pool2d"))
    for switch in (NO_EXPANDED_DEPTHWISE, NO_ROW_LAYERS):
        device = replace(H200, switches=frozenset({switch}))
        assert EXCITED_DEPTHWISE not in operators(folded(*LINES, device=device))


@pytest.mark.parametrize("name", ["arm_mali_g78", "qualcomm_adreno_650", "nvidia_h200"])
@pytest.mark.parametrize("addends", [1, 2, 49, MOST_ADDENDS])
def test_kernels_of_layers_fit(name: str, addends: int) -> None:
    device, shape = known_device(name), RowLayersShape.of(1, 480, 20, 480, addends)
    found = [*row_layers_kernels(device, shape)]
    assert found and all(kernel.fits(device, shape) for kernel in found)
    for kernel in found:
        assert kernel.summing(shape) * shape.inner <= kernel.invocations < 2 * kernel.summing(shape) * shape.inner


def test_rows_that_are_too_wide_are_not_added_up() -> None:
    """An invocation adds up one vec4 of them."""
    assert not [*row_layers_kernels(H200, RowLayersShape.of(1, 4 * 513, 8, 64, 2))]
    assert [*row_layers_kernels(H200, RowLayersShape.of(1, 4 * 513, 8, 64))]


# By numbers.


class Block(nn.Module):
    """An inverted residual."""

    def __init__(
        self,
        inputs: int,
        channels: int,
        squeezed: int,
        taps: int = 3,
        stride: int = 1,
        first: tuple[int, int, int] = (1, 1, 0),
        pool: bool = True,
    ) -> None:
        super().__init__()
        torch.manual_seed(inputs + channels)
        self.expand = nn.Conv2d(inputs, channels, *first)
        self.filter = nn.Conv2d(channels, channels, taps, stride, taps // 2, groups=channels)
        self.squeeze, self.excite = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.project = nn.Conv2d(channels, 11, 1)
        self.pool = pool
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = functional.hardswish(self.filter(functional.relu6(self.expand(x))))
        mean = functional.adaptive_avg_pool2d(y, 1) if self.pool else y.mean((2, 3), keepdim=True)
        gate = torch.sigmoid(self.excite(functional.silu(self.squeeze(mean))))
        return self.project(gate * y), gate


class InSteps(Block):
    """The same with roundings, as in quantised models."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = stepped(functional.hardswish(stepped(self.expand(x), 0.06)), 0.0317)  # at 0.03 some lie between two steps
        y = functional.silu(stepped(self.filter(y), 0.04))
        mean = stepped(functional.adaptive_avg_pool2d(y, 1), 0.0123)
        h = stepped(functional.silu(stepped(self.squeeze(mean), 0.0107)), 0.0071)
        gate = torch.sigmoid(stepped(self.excite(h), 0.0113))
        return self.project(stepped(gate * y, 0.02)), gate


def program_of(model: nn.Module, x: Tensor, device: Device, precision: str = "fp32") -> VulkanProgram:
    program = program_from_script_module(torch.jit.trace(model, x))
    return VulkanProgram(program, device, precision=PrecisionChoice(precision))


def run(
    model: nn.Module, x: Tensor, device: Device, precision: str = "fp32"
) -> tuple[tuple[Tensor, Tensor], list[Dispatch]]:
    """What a model gives, and its dispatches but for copies."""
    program = program_of(model, x, device, precision)
    found = program(x)
    steps = [step.operation for step in program.profile([x]) if isinstance(step.operation, Dispatch)]
    program.close()
    return found, [step for step in steps if not step.shader.startswith("pointwise")]


def check(model: nn.Module, x: Tensor, device: Device) -> list[Dispatch]:
    found, dispatches = run(model, x, device)
    with torch.no_grad():
        expected = model(x)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
    shaders = [step.shader for step in dispatches]
    assert shaders[0].startswith(DEPTHWISE) and shaders[1] == LAYERS and "reduce" not in shaders, shaders
    return dispatches


CASES = {
    "odd": (Block(7, 22, 5), (1, 7, 13, 11)),
    "tiles": (Block(12, 40, 10), (1, 12, 29, 31)),
    "images": (Block(12, 44, 7, pool=False), (4, 12, 37, 23)),
    "stride": (Block(8, 36, 4, 5, 2), (3, 8, 43, 37)),
    "many tiles": (Block(5, 18, 3), (1, 5, 127, 113)),
    "one channel squeezed": (Block(5, 9, 1), (2, 5, 41, 3)),
    "one pixel": (Block(5, 9, 2), (1, 5, 1, 1)),
    "planes": (Block(3, 20, 6, first=(3, 2, 1)), (2, 3, 61, 53)),
}


@pytest.mark.parametrize("name", CASES)
def test_results(gpu: Device, name: str) -> None:
    model, sizes = CASES[name]
    dispatches = check(model, floats(*sizes), gpu)
    assert len(dispatches) == 3
    if name in ("tiles", "many tiles", "stride"):
        assert dispatches[0].groups[1] > 1


@pytest.mark.parametrize("sizes", [(1, 7, 13, 11), (2, 7, 29, 31)], ids=str)
def test_results_in_steps(gpu: Device, sizes: tuple[int, ...]) -> None:
    dispatches = check(InSteps(7, 22, 5), floats(*sizes), gpu)
    assert len(dispatches) == 3


WALKS = [
    (Block(7, 22, 5), (2, 7, 13, 11), FilterWalk(13, 11, (3, 3), (1, 1), (1, 1), (1, 1))),
    (Block(5, 21, 3, 5, 2), (3, 5, 31, 29), FilterWalk(31, 29, (5, 5), (2, 2), (2, 2), (1, 1))),
]


def _check_kernels(gpu: Device, monkeypatch: pytest.MonkeyPatch, number: int, count: int) -> None:
    model, sizes, walk = WALKS[number]
    found = expanded_kernels(gpu.info, walk)
    for kernel in random.Random(number).sample(found, min(count, len(found))):
        monkeypatch.setattr(excited_module, "choose_expanded_kernel", lambda *_, kernel=kernel: kernel)
        check(model, floats(*sizes), gpu)


@pytest.mark.parametrize("number", range(len(WALKS)))
def test_kernels(gpu: Device, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    _check_kernels(gpu, monkeypatch, number, 4)


@pytest.mark.sweep
@pytest.mark.parametrize("number", range(len(WALKS)))
def test_more_kernels(gpu: Device, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The others differ in nothing that test_expanded_depthwise.py doesn't try."""
    _check_kernels(gpu, monkeypatch, number, 40)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_what_lies_as_halves(gpu: Device, precision: str) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 16, 1), Block(16, 64, 8)).eval(), floats(1, 3, 29, 31)
    found, dispatches = run(model, x, gpu, precision)
    with torch.no_grad():
        expected = model(x)
    assert [step.shader for step in dispatches].count(LAYERS) == 1 and "reduce" not in str(dispatches)
    step = 2.0**-10 if precision == "fp16" else 2.0**-7
    for own, other in zip(found, expected, strict=True):
        assert (own - other).abs().max() <= 4 * step * other.abs().max()


def test_an_image_with_too_many_tiles_has_a_mean_of_its_own(gpu: Device) -> None:
    model, x = Block(3, 8, 2), floats(1, 3, 3, 12007)
    (found, _), dispatches = run(model, x, gpu)
    assert "reduce" in [step.shader for step in dispatches]
    with torch.no_grad():
        torch.testing.assert_close(found, model(x)[0], rtol=1e-4, atol=1e-5)


def test_the_optimised_model(gpu: Device) -> None:
    model, x = Block(8, 24, 6).eval(), floats(1, 8, 33, 27)
    module = optimize_for_mobile(torch.jit.trace(model, x), backend="vulkan", runtime="mobopt")
    with torch.no_grad():
        for own, other in zip(module(x), model(x), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def test_recordings_are_what_lowering_gives() -> None:
    sizes = [(1, 8, 19, 11), (1, 8, 43, 37), (2, 8, 12, 12), (1, 8, 40, 31), (1, 8, 21, 23), (1, 8, 10, 15)]
    checked = Checked(program_from_script_module(torch.jit.trace(Block(8, 36, 5), floats(*sizes[0]))), H200)
    for own in sizes:
        checked.check([floats(*own)])
    assert checked.hits >= 2
