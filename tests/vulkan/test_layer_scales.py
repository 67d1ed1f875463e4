"""Layer scales that become weights, and sums that move before permutations: as text, beside the CPU, and where not."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import pytest
import torch
from device_infos import known_device
from straight_lines import line_of
from test_recorded import Checked
from torch import Tensor, nn
from torch.nn import functional

from mobopt import optimize_for_mobile
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, print_graph, verify_graph
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.compile.layer_scales import fold_layer_scales
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.program import VulkanProgram

load_lowerings()

H200 = known_device("nvidia_h200")


def floats(*sizes: int, seed: int = 1) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


TENSORS = {
    "w": floats(8, 5), "b": floats(8), "g": floats(8), "gc": floats(8, 1, 1), "gr": floats(5, 7, 1), "one": floats(1),
    "k": floats(8, 3, 3, 3), "q": floats(7), "tiny": floats(8) * 1e-6, "tc": floats(8, 1, 1) * 1e-6,
}  # fmt: skip
H, Z, X = "Float(1, 5, 7, 5)", "Float(1, 5, 7, 8)", "Float(1, 8, 5, 7)"


def folded(
    *lines: str,
    returned: str = "%y",
    given: str = f"%h : {H}, %x : {X}, %r : {Z}, %i : Float(1, 3, 5, 7)",
    half: torch.dtype | None = None,
) -> Graph:
    graph = line_of(lines, TENSORS, given, returned)
    fold_layer_scales(graph, ConstantStore(), half)
    verify_graph(graph)
    return graph


LAYER = f"%z : {Z} = aten::linear(%h, %w, %b)"
PERMUTE = f"%p : {X} = aten::permute(%z, [0, 3, 1, 2])"
SCALE = f"%m : {X} = aten::mul.Tensor(%gc, %p)"
ADD = f"%s : {X} = aten::add.Tensor(%m, %x, 1)"
LAST = f"%y : {X} = aten::relu(%s)"


@pytest.mark.parametrize(
    ("half", "is_folded"),
    [(None, True), (torch.bfloat16, True), (torch.float16, False)],
    ids=["floats", "bf16", "fp16"],
)
@pytest.mark.parametrize(
    "layer",
    [LAYER, f"%z : {X} = aten::conv2d(%i, %k, None, [1, 1], [1, 1], [1, 1], 1)"],
    ids=["linear", "convolution"],
)
def test_scales_that_would_make_weights_vanish(layer: str, half: torch.dtype | None, is_folded: bool) -> None:
    """Those of networks that were not trained, in halves that hold no such numbers."""
    kind, scale = (Z, "%tiny") if layer is LAYER else (X, "%tc")
    graph = folded(layer, f"%m : {kind} = aten::mul.Tensor({scale}, %z)", f"%y : {kind} = aten::relu(%m)", half=half)
    assert any(node.op == "aten::mul" for node in graph.block.nodes) is not is_folded


def test_the_text() -> None:
    graph = folded(LAYER, PERMUTE, SCALE, ADD, LAST, given=f"%h : {H}, %x : {X}")
    used = [line for line in print_graph(graph, digests=False).splitlines() if "prim::Constant" not in line]
    assert "\n".join(used) == textwrap.dedent(
        """\
        graph(%h : Float(1, 5, 7, 5),
              %x : Float(1, 8, 5, 7)):
          %2 : Float(1, 5, 7, 8) = aten::linear(%h, %0, %1)
          %3 : Float(1, 5, 7, 8) = aten::permute(%x, [0, 2, 3, 1])
          %4 : Float(1, 5, 7, 8) = aten::add.Tensor(%2, %3, 1)
          %s : Float(1, 8, 5, 7) = aten::permute(%4, [0, 3, 1, 2])
          %y : Float(1, 8, 5, 7) = aten::relu(%s)
          return (%y)"""
    )
    layer = next(node for node in graph.block.nodes if node.op == "aten::linear")
    assert layer["weight"].elements is not None and layer["bias"].elements is not None
    expected = (TENSORS["w"].double() * TENSORS["gc"].double().reshape(-1, 1)).float()
    assert torch.equal(layer["weight"].elements, expected)


def _operators(graph: Graph) -> list[str]:
    return [node.op.removeprefix("aten::") for node in graph.block.nodes if node.op != "prim::Constant"]


CONV = f"%z : {X} = aten::conv2d(%i, %k, None, [1, 1], [1, 1], [1, 1], 1)"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([LAYER, f"%s : {Z} = aten::mul.Tensor(%z, %g)", f"%y : {Z} = aten::relu(%s)"], ["linear", "relu"]),
        ([CONV, f"%s : {X} = aten::mul.Tensor(%z, %gc)", f"%y : {X} = aten::relu(%s)"], ["conv2d", "relu"]),
        ([LAYER, PERMUTE, SCALE, f"%y : {X} = aten::relu(%m)"], ["linear", "permute", "relu"]),
        ([LAYER, PERMUTE, f"%s : {X} = aten::add.Tensor(%x, %p, 1)", LAST],
         ["linear", "permute", "add", "permute", "relu"]),
        ([LAYER, PERMUTE, PERMUTE.replace("%p", "%u").replace("%z", "%r"), ADD.replace("%m", "%p").replace("%x", "%u"),
          LAST],
         ["linear", "permute", "add", "permute", "relu"]),  # what a sum before was permuted from is added as it is
    ],
)  # fmt: skip
def test_what_is_folded(lines: list[str], expected: list[str]) -> None:
    assert _operators(folded(*lines)) == expected


@pytest.mark.parametrize(
    ("lines", "returned"),
    [
        ([LAYER, f"%y : {Z} = aten::mul.Tensor(%z, %g)"], "%y"),  # returned
        ([LAYER, f"%s : {Z} = aten::mul.Tensor(%z, %g)", f"%y : {Z} = aten::relu(%s)"], "%y, %z"),  # read elsewhere
        ([LAYER, f"%s : {Z} = aten::mul.Tensor(%z, %gr)", f"%y : {Z} = aten::relu(%s)"], "%y"),  # of each pixel
        ([LAYER, f"%s : {Z} = aten::mul.Tensor(%z, %one)", f"%y : {Z} = aten::relu(%s)"], "%y"),
        ([LAYER, f"%s : {Z} = aten::mul.Tensor(%z, %r)", f"%y : {Z} = aten::relu(%s)"], "%y"),  # no constant
        ([CONV, f"%s : {X} = aten::mul.Tensor(%z, %q)", f"%y : {X} = aten::relu(%s)"], "%y"),  # of each column
        ([LAYER, PERMUTE, f"%s : {X} = aten::add.Tensor(%p, %x, 2)", LAST], "%y"),
        ([LAYER, PERMUTE, f"%s : {X} = aten::add.Tensor(%p, %x, 1)", LAST], "%y, %p"),
        ([LAYER, PERMUTE, f"%y : {X} = aten::add.Tensor(%p, %x, 1)"], "%y"),
        ([f"%p : {X} = aten::permute(%r, [0, 3, 1, 2])", f"%s : {X} = aten::add.Tensor(%p, %x, 1)", LAST], "%y"),
    ],
)  # fmt: skip
def test_what_is_not(lines: list[str], returned: str) -> None:
    before = [line.split("= aten::")[1].partition("(")[0].partition(".")[0] for line in lines]
    assert _operators(folded(*lines, returned=returned)) == before


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.filter = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.first, self.second = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.filter(x).permute(0, 2, 3, 1))
        return x + self.scale * self.second(functional.gelu(self.first(y))).permute(0, 3, 1, 2)


class ScaledTransformerBlock(nn.Module):
    """As in CaiT and DINOv2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(width)
        self.norm, self.first, self.second = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(3 * width, width),
        )
        self.scale = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(functional.gelu(self.first(self.norm(x)))) * self.scale


class ScaledConvolutions(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.first, self.second = nn.Conv2d(channels, 24, 3, padding=1), nn.Conv2d(24, channels, 1, bias=False)
        self.scale = nn.Parameter(torch.randn(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(functional.relu(self.first(x))) * self.scale


MODELS = {
    "ConvNeXt": (lambda: [ConvNeXtBlock(20), ConvNeXtBlock(20)], (2, 20, 7, 11)),
    "ConvNeXt, odd channels": (lambda: [ConvNeXtBlock(13), ConvNeXtBlock(13)], (1, 13, 7, 5)),
    "transformer": (lambda: [ScaledTransformerBlock(36), ScaledTransformerBlock(36)], (2, 17, 36)),
    "convolutions": (lambda: [ScaledConvolutions(19), ScaledConvolutions(19)], (2, 19, 11, 7)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("switches", [frozenset(), frozenset({"shared-products"})], ids=["cpu", "gpu"])
def test_results(device: Device, monkeypatch: pytest.MonkeyPatch, name: str, switches: frozenset[str]) -> None:
    make, sizes = MODELS[name]
    model, x = nn.Sequential(*make()).eval(), floats(*sizes)
    info: DeviceInfo = device.info
    monkeypatch.setattr(device, "info", replace(info, switches=switches))
    program = VulkanProgram(program_from_script_module(torch.jit.trace(model, x)), device)
    found = program(x)
    program.close()
    with torch.no_grad():
        torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)


def test_dispatches_of_a_block() -> None:
    """A filter and two layers each, and copies of what is given (for the filter, and the sum) and returned."""
    model, x = nn.Sequential(ConvNeXtBlock(96), ConvNeXtBlock(96), nn.Conv2d(96, 8, 1)).eval(), floats(1, 96, 56, 56)
    segment = specialize(program_from_script_module(torch.jit.trace(model, x)), "forward", [x])
    stream = build_stream(segment, H200, ConstantStore()).stream
    shaders = [step.shader for step in stream.operations if isinstance(step, Dispatch)]
    assert sum(shader.startswith("product") for shader in shaders) == 5
    assert shaders.count("depthwise") == 2
    assert sum(shader.startswith("pointwise") for shader in shaders) <= 3


def test_recordings_are_what_lowering_gives() -> None:
    model = nn.Sequential(ConvNeXtBlock(20), nn.ReLU()).eval()
    checked = Checked(program_from_script_module(torch.jit.trace(model, floats(1, 20, 9, 11))), H200)
    for sizes in ((9, 11), (13, 7), (12, 12), (40, 31)):
        checked.check([floats(1, 20, *sizes)])
    assert checked.hits >= 1


def test_the_optimised_model(device: Device) -> None:
    model, x = nn.Sequential(ConvNeXtBlock(20), ConvNeXtBlock(20)).eval(), floats(1, 20, 9, 7)
    module = optimize_for_mobile(torch.jit.trace(model, x), backend="vulkan", runtime="mobopt")
    with torch.no_grad():
        torch.testing.assert_close(module(x), model(x), rtol=1e-4, atol=1e-5)
