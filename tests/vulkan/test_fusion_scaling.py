"""What scales a convolution's input, folded into the convolution: as text, and that the result is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from device_infos import known_device
from steps import stepped
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, parse_graph, print_graph, verify_graph
from mobopt.ir.rewriting import dissolve
from mobopt.ops.fake_quantize import FAKE_QUANTIZE
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.compile.fusion import fold_epilogues
from mobopt.runtimes.vulkan.compile.fusion_scaling import fold_scalings
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels import product_kernels
from mobopt.runtimes.vulkan.kernels.epilogue import PRODUCT, parts_of
from mobopt.runtimes.vulkan.kernels.gpu_kernels import BLOCKS
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.program import VulkanProgram

load_lowerings()

X, Y, V = "Float(2, 5, 3, 7)", "Float(2, 6, 3, 7)", "Float(2, 5, 1, 1)"
TAIL = ", None, [1, 1], [0, 0], [1, 1], 1)"
TENSORS = {"w": torch.randn(6, 5, 1, 1), "a": torch.randn(5, 1, 1), "k": torch.randn(6, 5, 3, 3)}


def folded(*lines: str, returned: str = "%y") -> Graph:
    constants = "".join(
        f"  %{name} : Float{tuple(value.shape)} = prim::Constant[value=<Tensor>]()\n" for name, value in TENSORS.items()
    )
    text = f"graph(%x : {X}, %s : {V}):\n{constants}" + "".join(f"  {line}\n" for line in lines)
    graph = parse_graph(f"{text}  return ({returned})\n", TENSORS)
    fold_epilogues(graph)
    fold_scalings(graph)
    verify_graph(graph)
    return graph


MUL = f"%m : {X} = aten::mul.Tensor(%s, %x)"
ADD = f"%n : {X} = aten::add.Tensor(%m, %a, 1)"
ROUND = "%q : " + X + " = mobopt::fake_quantize({}, 0.05, -100, 120, None)"
SILU = f"%y : {Y} = aten::silu(%c)"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([MUL, f"%y : {Y} = aten::conv2d(%m, %w{TAIL}"], ["mul", "conv2d"]),
        ([MUL, ADD, f"%y : {Y} = aten::conv2d(%n, %w{TAIL}"], ["mul", "add", "conv2d"]),
        ([f"%m : {X} = aten::addcmul(%a, %x, %s, 1)", f"%y : {Y} = aten::conv2d(%m, %w{TAIL}"], ["addcmul", "conv2d"]),
        (
            [MUL, ADD, f"%r : {X} = aten::relu(%n)", f"%c : {Y} = aten::conv2d(%r, %w{TAIL}", SILU],
            ["mul", "add", "relu", "conv2d", "silu"],
        ),
        ([MUL, ROUND.format("%m"), f"%y : {Y} = aten::conv2d(%q, %w{TAIL}"], ["mul", FAKE_QUANTIZE, "conv2d"]),
        (
            [MUL, f"%r : {X} = aten::relu(%m)", ROUND.format("%r"), f"%y : {Y} = aten::conv2d(%q, %w{TAIL}"],
            ["mul", "relu", FAKE_QUANTIZE, "conv2d"],
        ),
    ],
)  # fmt: skip
def test_what_is_folded(lines: list[str], expected: list[str]) -> None:
    graph = folded(*lines)
    (whole,) = graph.block.nodes
    assert whole.op == PRODUCT
    assert [node.op.removeprefix("aten::") for node in whole.blocks[0].nodes] == expected
    assert parts_of(whole)[0].op == "aten::conv2d"
    assert print_graph(parse_graph(print_graph(graph), TENSORS)) == print_graph(graph)
    dissolve(whole)
    verify_graph(graph)
    assert len(list(graph.block.nodes)) == len(lines)


@pytest.mark.parametrize(
    "lines",
    [
        [MUL, f"%c : {Y} = aten::conv2d(%m, %w{TAIL}", f"%y : {X} = aten::relu(%m)"],  # it is read elsewhere too
        [MUL, f"%y : {Y} = aten::conv2d(%m, %k, None, [1, 1], [1, 1], [1, 1], 1)"],  # padding isn't scaled
        [f"%m : {X} = aten::mul.Tensor(%x, %x)", f"%y : {Y} = aten::conv2d(%m, %w{TAIL}"],
        [f"%n : {X} = aten::add.Tensor(%x, %a, 1)", f"%y : {Y} = aten::conv2d(%n, %w{TAIL}"],
        [MUL, f"%n : {X} = aten::add.Tensor(%m, %a, 2)", f"%y : {Y} = aten::conv2d(%n, %w{TAIL}"],
        [f"%m : {X} = aten::addcmul(%a, %x, %s, 2)", f"%y : {Y} = aten::conv2d(%m, %w{TAIL}"],
        [MUL, f"%n : {X} = aten::add.Tensor(%m, %s, 1)", f"%y : {Y} = aten::conv2d(%n, %w{TAIL}"],  # of each image
        # A rounding before the relu, bounds that have no code, and nothing that is scaled.
        [MUL, ROUND.format("%m"), f"%r : {X} = aten::silu(%q)", f"%y : {Y} = aten::conv2d(%r, %w{TAIL}"],
        [MUL, ROUND.format("%m").replace("120", "32767"), f"%y : {Y} = aten::conv2d(%q, %w{TAIL}"],
        [ROUND.format("%x"), f"%y : {Y} = aten::conv2d(%q, %w{TAIL}"],
    ],
)
def test_what_is_not(lines: list[str]) -> None:
    graph = folded(*lines)
    assert all(node.op != PRODUCT for node in graph.block.nodes)


class _Block(nn.Module):
    """Squeeze-and-excitation, and a normalisation before a convolution, of odd sizes."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.squeeze, self.excite = nn.Conv2d(channels, 5, 1), nn.Conv2d(5, channels, 1)
        self.second = nn.Conv2d(channels, 37, 1, stride, bias=False)
        self.scale, self.shift = nn.Parameter(torch.randn(37, 1, 1)), nn.Parameter(torch.randn(37, 1, 1))
        self.third, self.fourth = nn.Conv2d(37, 22, 1), nn.Conv2d(22, 9, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean([2, 3], keepdim=True)))))
        x = torch.tanh(self.second(gate * x))  # else what follows is in its weights
        x = torch.relu(self.third(torch.relu(x * self.scale + self.shift)))
        return self.fourth(torch.relu(torch.addcmul(self.shift[:22], x, self.scale[:22])))


class _InSteps(_Block):
    """The same with what is scaled rounded, as in quantised models."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean([2, 3], keepdim=True)))))
        x = torch.tanh(self.second(stepped(gate * x, 0.025)))
        x = torch.relu(torch.addcmul(self.shift, x, self.scale))
        x = torch.relu(self.third(stepped(x, 0.02)))
        return self.fourth(torch.relu(torch.addcmul(self.shift[:22], x, self.scale[:22])))


def _block(channels: int, stride: int, kind: type[_Block] = _Block) -> _Block:
    torch.manual_seed(channels)
    return kind(channels, stride).eval()


def _program(model: nn.Module):
    return program_from_script_module(torch.jit.script(model))


@pytest.mark.parametrize(("parts", "joins"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize(("batch", "channels", "stride"), [(1, 24, 1), (3, 13, 1), (2, 41, 2)])
@pytest.mark.parametrize("kind", [_Block, _InSteps])
def test_results(device, monkeypatch, batch, channels, stride, parts, joins, kind) -> None:
    model, x = _block(channels, stride, kind), torch.randn(batch, 3, 11, 7)
    monkeypatch.setattr(device, "info", replace(device.info, switches=frozenset({"shared-products"})))
    kernel = replace(BLOCKS[0], parts=parts, joins=joins)
    monkeypatch.setattr(product_kernels, "choose_gpu_kernel", lambda info, shape: kernel)
    runner = VulkanProgram(_program(model), device)
    shaders = [step.operation.shader for step in runner.profile([x]) if isinstance(step.operation, Dispatch)]
    assert sum("scaled" in shader for shader in shaders) == 3
    torch.testing.assert_close(runner(x), model(x), rtol=1e-4, atol=1e-5)
    runner.close()


def test_dispatches_on_a_gpu() -> None:
    """A mean, six convolutions, two of which are one dispatch, and nothing between them."""
    segment = specialize(_program(_block(24, 1)), "forward", [torch.randn(1, 3, 11, 7)])
    stream = build_stream(segment, known_device("nvidia_h200"), ConstantStore()).stream
    products = [step.shader for step in stream.operations if isinstance(step, Dispatch) and "product" in step.shader]
    others = [step.shader for step in stream.operations if isinstance(step, Dispatch) and "product" not in step.shader]
    assert len(products) == 5 and sum("scaled" in shader for shader in products) == 3
    assert products.count("product_row_layers") == 1
    assert others.count("reduce") == 1 and len(others) <= 3  # the input's layout and the result's
