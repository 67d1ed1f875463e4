"""A convolution and the depthwise one that reads it in one dispatch: as text, beside the CPU on odd sizes, by every
kind of kernel, and where it isn't worth it."""

from __future__ import annotations

import math
import random
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

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
from mobopt.ir import Graph, Node, Value, print_graph, verify_graph
from mobopt.ir.rewriting import dissolve
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.compile.fusion import fold_epilogues
from mobopt.runtimes.vulkan.compile.fusion_depthwise import fold_expansions
from mobopt.runtimes.vulkan.compile.fusion_scaling import fold_scalings
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels import expanded_depthwise as kernels
from mobopt.runtimes.vulkan.kernels.convolution_parameters import convolution_of
from mobopt.runtimes.vulkan.kernels.device_costs import device_costs
from mobopt.runtimes.vulkan.kernels.expanded_depthwise import (
    NO_EXPANDED_DEPTHWISE,
    FilterWalk,
    Means,
    choose_expanded_kernel,
    expanded_kernels,
    expanded_nanoseconds,
    most_pixels_of_means,
)
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.lowerings.expanded_depthwise import EXPANDED_DEPTHWISE
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.program import VulkanProgram

load_lowerings()

H200 = known_device("nvidia_h200")
SHADER = "product_shared_depthwise"
Activate = Callable[[Tensor], Tensor]


@pytest.fixture
def gpu(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device with the kernels of GPUs, and as many cores as an H200."""
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete", cores=132))
    return device


def floats(*sizes: int, seed: int = 1) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


# As text.

TENSORS = {
    "w": floats(6, 5, 1, 1), "b": floats(6), "k": floats(6, 1, 3, 3), "c": floats(6), "even": floats(6, 1, 2, 2),
    "pairs": floats(6, 2, 3, 3), "wide": floats(6, 5, 3, 3), "p": floats(4, 6, 1, 1), "g": floats(6, 1, 1, 1),
}  # fmt: skip
X, E, M = "Float(2, 5, 3, 7)", "Float(2, 6, 3, 7)", "Float(2, 6, 1, 1)"
ONE = "[1, 1], [0, 0], [1, 1]"


def folded(
    *lines: str, returned: str = "%y", given: str = f"%x : {X}, %u : {E}", device: DeviceInfo = H200, apart: str = ""
) -> Graph:
    graph = line_of(lines, TENSORS, given, returned)
    fold_epilogues(graph)
    fold_scalings(graph)
    fold_expansions(graph, device, is_apart=lambda node: node.qualified_op == apart)
    verify_graph(graph)
    return graph


EXPAND = f"%e : {E} = aten::conv2d(%x, %w, %b, {ONE}, 1)"
FILTER = f"%y : {E} = aten::conv2d(%e, %k, None, [1, 1], [1, 1], [1, 1], 6)"
RELU, SILU = f"%r : {E} = aten::relu(%e)", f"%s : {E} = aten::silu(%y)"
FILTER_RELU = FILTER.replace("%e", "%r")
MEAN = f"%m : {M} = aten::adaptive_avg_pool2d(%s, [1, 1])"
GATE = f"%q : {E} = aten::mul.Tensor(%s, %m)"
PROJECT = f"%z : Float(2, 4, 3, 7) = aten::conv2d(%q, %p, None, {ONE}, 1)"


def test_the_text() -> None:
    graph = folded(EXPAND, RELU, FILTER_RELU, SILU, MEAN, returned="%s, %m", given=f"%x : {X}")
    used = [line for line in print_graph(graph, digests=False).splitlines() if "prim::Constant" not in line]
    assert "\n".join(used) == textwrap.dedent(
        """\
        graph(%x : Float(2, 5, 3, 7)):
          %s : Float(2, 6, 3, 7), %m : Float(2, 6, 1, 1) = mobopt::expanded_depthwise()
            block0():
              %e : Float(2, 6, 3, 7) = aten::conv2d(%x, %w, %b, [1, 1], [0, 0], [1, 1], 1)
              %r : Float(2, 6, 3, 7) = aten::relu(%e)
              %y : Float(2, 6, 3, 7) = aten::conv2d(%r, %k, None, [1, 1], [1, 1], [1, 1], 6)
              %0 : Float(2, 6, 3, 7) = aten::silu(%y)
              %1 : Float(2, 6, 1, 1) = aten::adaptive_avg_pool2d(%0, [1, 1])
              -> (%0, %1)
          return (%s, %m)"""
    )
    whole = next(node for node in graph.block.nodes if node.op == EXPANDED_DEPTHWISE)
    dissolve(whole)
    verify_graph(graph)
    assert [node.op for node in graph.block.nodes if node.op != "prim::Constant"] == [
        *("aten::conv2d", "aten::relu", "aten::conv2d", "aten::silu", "aten::adaptive_avg_pool2d"),
    ]


def _parts(graph: Graph) -> list[list[str]]:
    nodes = [node for node in graph.block.nodes if node.op == EXPANDED_DEPTHWISE]
    return [[part.op.removeprefix("aten::") for part in node.blocks[0].nodes] for node in nodes]


@pytest.mark.parametrize(
    ("lines", "returned", "expected"),
    [
        ([EXPAND, FILTER], "%y", ["conv2d", "conv2d"]),
        ([EXPAND, FILTER, SILU], "%s", ["conv2d", "conv2d", "silu"]),
        ([EXPAND, RELU, FILTER_RELU], "%y", ["conv2d", "relu", "conv2d"]),
        ([EXPAND, FILTER, SILU, MEAN, GATE, PROJECT], "%z", ["conv2d", "conv2d", "silu", "adaptive_avg_pool2d"]),
        ([EXPAND, FILTER, SILU, f"%m : {M} = aten::mean.dim(%s, [-1, 2], True, None)"], "%s, %m",
         ["conv2d", "conv2d", "silu", "mean"]),
        ([EXPAND, FILTER, f"%o : {E} = aten::relu(%y)", f"%m : {M} = aten::adaptive_avg_pool2d(%y, [1, 1])"], "%o, %m",
         ["conv2d", "conv2d"]),  # something reads the result before the mean does
        ([EXPAND, FILTER, SILU, "%m : Float(2, 6) = aten::mean.dim(%s, [2, 3], False, None)"], "%s, %m",
         ["conv2d", "conv2d", "silu"]),
        ([f"%e : {E} = aten::conv2d(%x, %wide, None, [1, 1], [1, 1], [1, 1], 1)", FILTER], "%y", ["conv2d", "conv2d"]),
    ],
)  # fmt: skip
def test_what_is_folded(lines: list[str], returned: str, expected: list[str]) -> None:
    assert _parts(folded(*lines, returned=returned)) == [expected]


@pytest.mark.parametrize(
    ("lines", "returned"),
    [
        ([EXPAND, FILTER], "%y, %e"),  # the expanded image is returned
        ([EXPAND, FILTER, f"%o : {E} = aten::tanh(%e)"], "%y, %o"),  # something else reads it
        ([EXPAND, f"%r : {E} = aten::add.Tensor(%e, %u, 1)", FILTER_RELU], "%y"),  # a residual before
        ([EXPAND, FILTER, f"%o : {E} = aten::add.Tensor(%y, %u, 1)"], "%o"),  # and after
        ([EXPAND, f"%y : {E} = aten::conv2d(%e, %pairs, None, [1, 1], [1, 1], [1, 1], 3)"], "%y"),
        ([EXPAND, f'%y : {E} = aten::conv2d.padding(%e, %even, None, [1, 1], "same", [1, 1], 6)'], "%y"),
        ([f"%e : {E} = aten::conv2d(%u, %g, None, {ONE}, 6)", FILTER], "%y"),  # what it reads is depthwise itself
        ([f"%e : {E} = aten::tanh(%u)", FILTER], "%y"),
    ],
)
def test_what_is_not(lines: list[str], returned: str) -> None:
    assert _parts(folded(*lines, returned=returned)) == []


def test_where_it_is_not() -> None:
    assert _parts(folded(EXPAND, FILTER, apart="aten::conv2d")) == []
    without_mean = folded(EXPAND, FILTER, SILU, MEAN, returned="%s, %m", apart="aten::adaptive_avg_pool2d")
    assert _parts(without_mean) == [["conv2d", "conv2d", "silu"]]
    assert _parts(folded(EXPAND, FILTER, device=replace(H200, switches=frozenset({NO_EXPANDED_DEPTHWISE})))) == []


@pytest.mark.parametrize(("batch", "does"), [(1, True), (32, False)])
def test_what_pays(batch: int, does: bool) -> None:
    """A layer of MobileNetV2: many images keep all cores busy by products of their own."""
    x, e = f"Float({batch}, 96, 14, 14)", f"Float({batch}, 576, 14, 14)"
    tensors = {"w": floats(576, 96, 1, 1), "k": floats(576, 1, 3, 3)}
    lines = [
        f"%e : {e} = aten::conv2d(%x, %w, None, {ONE}, 1)",
        f"%y : {e} = aten::conv2d(%e, %k, None, [1, 1], [1, 1], [1, 1], 576)",
    ]
    graph = line_of(lines, tensors, f"%x : {x}", "%y")
    fold_expansions(graph, H200)
    assert bool(_parts(graph)) is does


# By numbers.


class Block(nn.Module):
    """The first half of an inverted residual, and the mean of what it makes if that is asked for."""

    def __init__(
        self,
        inputs: int,
        channels: int,
        taps: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | None = None,
        dilation: int = 1,
        first: Sequence[int] = (1, 1, 0),
        bias: bool = True,
        activations: tuple[Activate, Activate] = (functional.relu6, functional.hardswish),
        mean: str = "",
    ) -> None:
        super().__init__()
        torch.manual_seed(inputs + channels)
        taps = (taps, taps) if isinstance(taps, int) else tuple(taps)
        around = tuple(dilation * (size // 2) for size in taps) if padding is None else padding
        self.expand = nn.Conv2d(inputs, channels, *first, bias=bias)
        self.filter = nn.Conv2d(channels, channels, taps, stride, around, dilation, channels, bias=bias)
        self.before, self.after = activations
        self.mean = mean
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.after(self.filter(self.before(self.expand(x))))
        if self.mean == "pool":
            return y, functional.adaptive_avg_pool2d(y, 1)
        return y, y.mean((2, 3), keepdim=True) if self.mean == "mean" else y


def run(model: nn.Module, x: Tensor, device: Device, **options: object) -> tuple[tuple[Tensor, Tensor], list[str]]:
    """What a model gives on the device, and the shaders by which it did."""
    program = VulkanProgram(program_from_script_module(torch.jit.trace(model, x)), device, **options)
    found = program(x)
    shaders = [step.operation.shader for step in program.profile([x]) if isinstance(step.operation, Dispatch)]
    program.close()
    return found, [shader for shader in shaders if not shader.startswith("pointwise")]


def check(model: nn.Module, x: Tensor, device: Device, shader: str = SHADER) -> list[str]:
    found, shaders = run(model, x, device)
    with torch.no_grad():
        expected = model(x)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
    assert shader in shaders, shaders
    return shaders


CASES = {
    "odd": (Block(7, 22), (2, 7, 13, 11)),
    "no biases": (Block(13, 18, bias=False), (1, 13, 17, 5)),
    "stride": (Block(8, 36, stride=2), (1, 8, 19, 23)),
    "stride of one dimension": (Block(8, 36, stride=(1, 2)), (1, 8, 9, 23)),
    "5x5": (Block(6, 20, 5), (1, 6, 11, 17)),
    "5x5, stride": (Block(6, 20, 5, 2), (3, 6, 29, 31)),
    "oblong filter": (Block(6, 20, (1, 5)), (1, 6, 11, 17)),
    "even filter": (Block(6, 20, 2, padding=1), (1, 6, 11, 17)),
    "no padding": (Block(6, 20, padding=0), (1, 6, 11, 17)),
    "much padding": (Block(6, 20, padding=4), (1, 6, 5, 7)),
    "dilation": (Block(6, 20, dilation=2), (2, 6, 23, 19)),
    "one pixel": (Block(5, 9), (1, 5, 1, 1)),
    "3x3 first": (Block(5, 24, first=(3, 1, 1)), (1, 5, 13, 17)),
    "3x3 first, stride": (Block(5, 24, first=(3, 2, 1)), (2, 5, 31, 27)),
    "7x7 first, unpadded": (Block(9, 12, first=(7, 3, 0)), (1, 9, 31, 37)),
    "mean by pooling": (Block(12, 40, mean="pool"), (2, 12, 11, 13)),
    "mean": (Block(12, 40, 5, 2, mean="mean"), (1, 12, 16, 15)),
    "large mean": (Block(12, 40, mean="pool"), (1, 12, 17, 19)),
}


@pytest.mark.parametrize("name", CASES)
def test_results(gpu: Device, name: str) -> None:
    model, sizes = CASES[name]
    shaders = check(model, floats(*sizes), gpu)
    assert len(shaders) == (2 if name == "large mean" else 1)


@pytest.mark.parametrize(
    "activations",
    [
        (functional.hardswish, functional.relu),
        (functional.silu, functional.silu),
        (functional.gelu, torch.tanh),
        (partial(functional.leaky_relu, negative_slope=0.3), functional.mish),
        (torch.sigmoid, partial(functional.hardtanh, min_val=-0.5, max_val=0.25)),
        (lambda x: torch.sigmoid(functional.silu(x)), lambda x: torch.tanh(functional.gelu(x))),
        (lambda x: stepped(functional.silu(stepped(x, 0.05)), 0.03), lambda x: functional.silu(stepped(x, 0.04))),
    ],
)
def test_activations(gpu: Device, activations: tuple[Activate, Activate]) -> None:
    """What is outside of the image is zero, whatever an activation makes of the bias."""
    check(Block(7, 22, activations=activations), floats(1, 7, 9, 11), gpu)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_that_lie_in_planes(gpu: Device, channels: int) -> None:
    shaders = check(Block(channels, 24, first=(3, 2, 1)), floats(2, channels, 31, 27), gpu, f"{SHADER}_planar")
    assert len(shaders) == 1
    check(Block(channels, 24), floats(1, channels, 7, 11), gpu, f"{SHADER}_planar")


def test_an_image_with_a_pitch(gpu: Device) -> None:
    """What a concatenation makes has more channels than one of its parts."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = Block(8, 20), Block(8, 12)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = torch.cat([self.one(x)[0], self.other(x)[0]], 1)
            return y, y[:, 5:9]

    shaders = check(Both().eval(), floats(2, 8, 9, 7), gpu)
    assert shaders.count(SHADER) == 2


def test_what_is_not_finite_stays_where_it_is(gpu: Device) -> None:
    model, x = Block(8, 20, activations=(functional.relu, functional.relu)), floats(1, 8, 23, 19)
    x[0, :, 0, 0], x[0, :, 22, 18] = torch.inf, torch.nan
    (found, _), shaders = run(model, x, gpu)
    with torch.no_grad():
        expected, _ = model(x)
    assert SHADER in shaders
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert torch.isfinite(found[0, :, 2:21, 2:17]).all()


WALKS = [
    (Block(7, 22, mean="pool"), (2, 7, 13, 11), FilterWalk(13, 11, (3, 3), (1, 1), (1, 1), (1, 1)), True),
    (Block(7, 36), (1, 7, 19, 23), FilterWalk(19, 23, (3, 3), (1, 1), (1, 1), (1, 1)), False),
    (Block(5, 20, 5, 2), (1, 5, 31, 29), FilterWalk(31, 29, (5, 5), (2, 2), (2, 2), (1, 1)), False),
    (Block(5, 24, first=(3, 2, 1)), (1, 5, 37, 41), FilterWalk(19, 21, (3, 3), (1, 1), (1, 1), (1, 1)), False),
]


def _check_kernels(gpu: Device, monkeypatch: pytest.MonkeyPatch, number: int, count: int) -> None:
    model, sizes, walk, means = WALKS[number]
    found = expanded_kernels(gpu.info, walk, means)
    for kernel in random.Random(number).sample(found, min(count, len(found))):
        monkeypatch.setattr(kernels, "choose_expanded_kernel", lambda *_, kernel=kernel: kernel)
        check(model, floats(*sizes), gpu)


@pytest.mark.parametrize("number", range(len(WALKS)))
def test_kernels(gpu: Device, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    _check_kernels(gpu, monkeypatch, number, 5)


@pytest.mark.sweep
@pytest.mark.parametrize("number", range(len(WALKS)))
def test_more_kernels(gpu: Device, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    _check_kernels(gpu, monkeypatch, number, 60)


@pytest.mark.sweep
@pytest.mark.long
@pytest.mark.parametrize("number", range(len(WALKS)))
def test_every_kernel(gpu: Device, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    _check_kernels(gpu, monkeypatch, number, 1000)


@pytest.mark.parametrize("name", ["nvidia_h200", "arm_mali_g78", "qualcomm_adreno_650", "least_vulkan_1_1"])
@pytest.mark.parametrize("sizes", [(1, 1), (7, 7), (2, 97), (17, 17), (28, 31), (112, 112), (1000, 1), (1000, 1000)])
def test_some_kernel_fits(name: str, sizes: tuple[int, int]) -> None:
    info = known_device(name)
    for taps, stride in ((3, 1), (3, 2), (5, 1), (5, 2)):
        depthwise = convolution_of(depthwise_call(taps, stride))
        walk = FilterWalk(*sizes, (taps, taps), (stride, stride), (taps // 2, taps // 2), (1, 1))
        most = most_pixels_of_means(info, depthwise)
        assert most >= 64
        for means in (False, *([True] if math.prod(sizes) <= most else [])):
            found = expanded_kernels(info, walk, means)
            assert found
            assert all(kernel.is_whole or not means for kernel in found)
            assert all(kernel.invocations % kernel.inner_block == 0 for kernel in found)
            assert all(kernel.block_rows >= math.prod(kernel.region) for kernel in found)


def test_costs_know_for_how_many_workgroups_a_core_has_room() -> None:
    """192 channels at 28 x 28: what was chosen once took 9.9 us on an H200, the best 7.2."""
    walk = FilterWalk(28, 28, (3, 3), (1, 1), (1, 1), (1, 1))
    shape = ProductShape(rows=784, inner=8, columns=48, group_columns=48, batches=1, taps=1, ahead=0)
    found = {
        (kernel.tile, kernel.block_rows, kernel.block_columns, kernel.rows, kernel.inner_block, kernel.teams): kernel
        for kernel in expanded_kernels(H200, walk)
    }
    slow, fast = found[(4, 7), 56, 4, 2, 8, 1], found[(4, 7), 56, 4, 4, 4, 2]
    assert slow.groups(shape) == fast.groups(shape) == (12, 28, 1)
    slow_time, fast_time = (expanded_nanoseconds(each, shape, device_costs(H200), 132) for each in (slow, fast))
    assert slow_time > 1.2 * fast_time
    assert choose_expanded_kernel(H200, shape, walk, Means.NONE).shared_bytes <= fast.shared_bytes < slow.shared_bytes


def depthwise_call(taps: int, stride: int) -> Node:
    image = Value.of_tensor(torch.float32, (1, 8, 16, 16))
    weight = Value.of_elements(floats(8, 1, taps, taps))
    padding = [taps // 2] * 2
    result = Value.of_tensor(torch.float32, (1, 8, 16 // stride, 16 // stride))
    return Node.call("aten::conv2d", (image, weight, None, [stride] * 2, padding, [1, 1], 8), (result,))


def test_what_no_kernel_fits_stays_as_it_is(gpu: Device) -> None:
    """A filter that reads from afar, whose regions would be too large."""
    model, x = Block(6, 20, dilation=12), floats(1, 6, 29, 31)
    (found, _), shaders = run(model, x, gpu)
    assert SHADER not in shaders
    with torch.no_grad():
        torch.testing.assert_close(found, model(x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("mean", ["", "pool"])
def test_what_lies_as_halves(gpu: Device, precision: str, mean: str) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 16, 1), Block(16, 64, mean=mean)).eval(), floats(1, 3, 13, 11)
    found, shaders = run(model, x, gpu, precision=PrecisionChoice(precision))
    with torch.no_grad():
        expected = model(x)
    assert SHADER in shaders
    step = 2.0**-10 if precision == "fp16" else 2.0**-7
    for own, other in zip(found, expected, strict=True):
        assert (own - other).abs().max() <= 4 * step * other.abs().max()


def test_what_is_too_large_for_halves_stays_float32(gpu: Device) -> None:
    """The image, although its mean is small."""

    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block(8, 16, activations=(functional.relu, torch.nn.Identity()))
            self.last = nn.Conv2d(16, 4, 1)
            self.block.filter.weight.data *= 2e6

        def forward(self, x: Tensor) -> Tensor:
            y = self.block.filter(functional.relu(self.block.expand(x)))
            return self.last(y * 1e-6) * (functional.adaptive_avg_pool2d(y, 1)[:, :4] * 1e-6)

    model, x = Large().eval(), floats(1, 8, 9, 7)
    program = VulkanProgram(
        program_from_script_module(torch.jit.trace(model, x)), gpu, precision=PrecisionChoice("fp16")
    )
    found = program(x)
    program.close()
    with torch.no_grad():
        expected = model(x)
    assert torch.isfinite(found).all()
    assert (found - expected).abs().max() <= 4e-3 * expected.abs().max()


def test_the_optimised_model(gpu: Device) -> None:
    """Packed contexts, with their clamps."""
    first = nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU6()
    second = nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.BatchNorm2d(16), nn.ReLU6()
    model = nn.Sequential(*first, *second, nn.Conv2d(16, 8, 1))
    model.eval()
    x = floats(1, 3, 21, 17)
    module = optimize_for_mobile(torch.jit.trace(model, x), backend="vulkan", runtime="mobopt")
    with torch.no_grad():
        torch.testing.assert_close(module(x), model(x), rtol=1e-4, atol=1e-5)


def test_recordings_are_what_lowering_gives() -> None:
    model = Block(8, 36, mean="pool")
    sizes = [(1, 8, 9, 11), (1, 8, 13, 7), (2, 8, 12, 12), (1, 8, 40, 31), (1, 8, 21, 23), (1, 8, 10, 15)]
    checked = Checked(program_from_script_module(torch.jit.trace(model, floats(*sizes[0]))), H200)
    for own in sizes:
        checked.check([floats(*own)])
    assert checked.hits >= 2


def test_a_switch_leaves_it_out(gpu: Device) -> None:
    gpu.info = replace(gpu.info, switches=gpu.info.switches | {NO_EXPANDED_DEPTHWISE})
    model, x = Block(8, 36), floats(1, 8, 13, 11)
    (found, _), shaders = run(model, x, gpu)
    assert SHADER not in shaders and "depthwise" in "".join(shaders)
    with torch.no_grad():
        torch.testing.assert_close(found, model(x)[0], rtol=1e-4, atol=1e-5)
