"""Group norms that torch.onnx writes as instance norms of a view: as text, where not, and the numbers."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from straight_lines import line_of
from torch import Tensor, nn

import mobopt
from mobopt.bundle import read_bundle
from mobopt.ir import print_graph, verify_graph
from mobopt.runtimes.vulkan.compile.group_norms import find_group_norms
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.program import VulkanProgram

load_lowerings()

F = "Float(1, 8, 2, 3)"
VIEW = "%g : Float(1, 2, 24) = aten::reshape(%x, [1, 2, -1])"
NORM = "%n : Float(1, 2, 24) = aten::instance_norm(%g, None, None, None, None, True, 0.0, 1e-05, False)"
BACK = f"%r : {F} = aten::reshape(%n, [1, 8, 2, 3])"
SCALED = f"%m : {F} = aten::mul.Tensor(%r, %weight)"
MOVED = f"%y : {F} = aten::add.Tensor(%bias, %m, 1)"
TENSORS = {
    "weight": torch.arange(8.0).reshape(8, 1, 1),
    "bias": torch.arange(8.0, 16.0).reshape(1, 8, 1, 1),
    "row": torch.arange(3.0),
}


def found(*lines: str, returned: str = "%y") -> tuple[list[str], list[Tensor | None]]:
    """The operators that are left, and weight and bias of the first group norm."""
    graph = line_of(lines, TENSORS, f"%x : {F}, %o : Float(8, 1, 1)", returned)
    find_group_norms(graph)
    verify_graph(graph)
    text = [line.strip() for line in print_graph(graph).splitlines() if " = aten::" in line]
    norms = [node for node in graph.block.nodes if node.op == "aten::group_norm"]
    weights = [norms[0][name] for name in ("weight", "bias")] if norms else []
    return text, [None if value is None else value.elements for value in weights]


def test_what_is_found() -> None:
    text, (weight, bias) = found(VIEW, NORM, BACK, SCALED, MOVED)
    assert len(text) == 1 and text[0].startswith(f"%y : {F} = aten::group_norm(%x, 2, ")
    assert text[0].endswith(", 1e-05, False)")
    assert weight is not None and torch.equal(weight, torch.arange(8.0))
    assert bias is not None and torch.equal(bias, torch.arange(8.0, 16.0))


@pytest.mark.parametrize(
    ("lines", "returned", "left", "known"),
    [
        ([VIEW, NORM, BACK], "%r", 1, [False, False]),
        ([VIEW, NORM, BACK, SCALED], "%m", 1, [True, False]),
        ([VIEW, NORM, BACK, MOVED.replace("%m", "%r")], "%y", 1, [False, True]),
        ([VIEW, NORM, BACK, SCALED, MOVED], "%y, %m", 2, [True, False]),
        ([VIEW, NORM, BACK, SCALED.replace("%weight", "%o"), MOVED], "%y", 3, [False, False]),
        ([VIEW, NORM, BACK, SCALED.replace("%weight", "%row"), MOVED], "%y", 3, [False, False]),
        ([VIEW, NORM, BACK, SCALED, MOVED.replace(", 1)", ", 2)")], "%y", 2, [True, False]),
    ],
    ids=["alone", "weight", "bias", "product returned", "no constant", "along rows", "alpha"],
)
def test_what_goes_with_it(lines: list[str], returned: str, left: int, known: list[bool]) -> None:
    text, weights = found(*lines, returned=returned)
    assert len(text) == left and [weight is not None for weight in weights] == known


@pytest.mark.parametrize(
    ("lines", "returned"),
    [
        ([VIEW, NORM, BACK], "%r, %n"),
        ([VIEW, NORM, BACK.replace("Float(1, 8, 2, 3)", "Float(1, 8, 3, 2)").replace("2, 3]", "3, 2]")], "%r"),
        ([VIEW, NORM.replace("%g, None", "%g, %pair"), BACK], "%r"),
        ([VIEW.replace("1, 2, 24", "1, 3, 16").replace("2, -1", "3, -1"), NORM.replace("2, 24", "3, 16"), BACK], "%r"),
    ],
    ids=["norm returned", "other sizes", "weighted", "parts of channels"],
)
def test_others_stay(lines: list[str], returned: str) -> None:
    pair = "%pair : Float(2) = prim::Constant[value=<Tensor>]()"
    graph = line_of([pair, *lines], {"pair": torch.ones(2)}, f"%x : {F}", returned)
    find_group_norms(graph)
    assert "aten::group_norm" not in [node.op for node in graph.block.nodes]


class Layers(nn.Module):
    """Norms by groups before convolutions, as in a U-Net of a diffusion model."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(4, 16), nn.GroupNorm(1, 16, eps=1e-3)])
        self.layers = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1) for _ in range(2)])
        for norm in self.norms:
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for norm, layer in zip(self.norms, self.layers, strict=True):
            y = layer(nn.functional.silu(norm(y)))
        return x + y


@pytest.mark.parametrize("by_dynamo", [True, False])
@torch.no_grad()
def test_plans_of_onnx_are_as_short(device: Device, tmp_path: Path, by_dynamo: bool) -> None:
    torch.manual_seed(0)
    net, x = Layers().eval(), torch.randn(2, 16, 11, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (x,), str(tmp_path / "net.onnx"), dynamo=by_dynamo, verbose=False)
    counts = []
    for model in (torch.export.export(net, (x,)), tmp_path / "net.onnx"):
        mobopt.optimize_for_mobile(model, backend="vulkan", runtime="mobopt").save(tmp_path / "net.pt")
        program = VulkanProgram(read_bundle(tmp_path / "net.pt"), device)
        torch.testing.assert_close(program.run("forward", [x]), net(x), rtol=1e-5, atol=1e-5)
        counts.append(program.plan_report([x]).dispatches)
    assert counts[0] == counts[1]
