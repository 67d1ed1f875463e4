"""Activation functions that a model writes in steps become one operator, and linear layers take tensors as they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import run_graph
from torch import Tensor, nn
from torch.nn import functional

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, parse_graph, verify_graph
from mobopt.runtimes.vulkan.compile.activations import find_activations
from mobopt.runtimes.vulkan.compile.simplify import simplify
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.program import VulkanProgram

load_lowerings()

X = "Float(2, 8)"


def found(*lines: str, returned: str = "%y") -> list[str]:
    graph = parse_graph(
        f"graph(%x : {X}, %z : {X}):\n" + "".join(f"  {line}\n" for line in lines) + f"  return ({returned})\n", {}
    )
    find_activations(graph)
    verify_graph(graph)
    return operators(graph)


def operators(graph: Graph) -> list[str]:
    return [node.op.removeprefix("aten::") for node in graph.block.nodes if node.op.startswith("aten::")]


SIGMOID, SILU = f"%s : {X} = aten::sigmoid(%x)", f"%y : {X} = aten::mul.Tensor(%x, %s)"


def test_text() -> None:
    assert found(SIGMOID, SILU) == ["silu"]
    assert found(SIGMOID, SILU, returned="%y, %s") == ["sigmoid", "mul"]  # the step is read, too
    assert found(SIGMOID, f"%y : {X} = aten::mul.Tensor(%z, %s)") == ["sigmoid", "mul"]
    steeper = [f"%a : {X} = aten::mul.Scalar(%x, 1.702)", f"%s : {X} = aten::sigmoid(%a)"]
    assert found(*steeper, SILU) == ["mul", "sigmoid", "mul"]
    for bound in (9, 100, 30_000):
        clamp = f"%a : {X} = aten::clamp(%x, None, {bound}.0)"
        assert found(clamp, SIGMOID, f"%y : {X} = aten::mul.Tensor(%a, %s)") == ["clamp", "sigmoid", "mul"]


def _cubic(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _factored(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "gelu": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), "gelu"),
    "gelu of ONNX": (lambda x: (x * (torch.erf(x / 1.41421354) + 1)) * 0.5, "gelu"),
    "gelu by its cube": (_cubic, "gelu"),
    "gelu in factors": (_factored, "gelu"),
    "silu": (lambda x: torch.sigmoid(x) * x, "silu"),
    "mish": (lambda x: x * torch.tanh(functional.softplus(x)), "mish"),
    "hardswish": (lambda x: x * functional.relu6(x + 3) / 6, "hardswish"),
    "hardswish by its gate": (lambda x: x * functional.hardsigmoid(x), "hardswish"),
}


class Layer(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = nn.Conv2d(5, 7, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(any_device: Any, name: str) -> None:
    """They are part of the convolution before them."""
    function, operator = FUNCTIONS[name]
    model, x = Layer(function).eval(), 3 * torch.randn(2, 5, 11, 13, generator=torch.Generator().manual_seed(0))
    program = VulkanProgram(program_from_script_module(torch.jit.trace(model, x)), any_device)
    with torch.no_grad():
        result = program(x)
        expected = model.double()(x.double())
    assert isinstance(result, Tensor)
    labels = [item.label for item in program.profile([x]) if isinstance(item.operation, Dispatch)]
    program.close()
    assert float((result - expected).abs().max()) <= 3e-6 * float(expected.abs().max())
    assert not any("pointwise" in label or operator in label for label in labels), labels


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.sigmoid(1.702 * x),
        lambda x: 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.044715 * x**3))),
        lambda x: x * torch.tanh(functional.softplus(x, beta=2)),
        lambda x: x * functional.relu6(x + 2) / 6,
    ],
)
def test_other_functions(device: Any, function: Callable[[Tensor], Tensor]) -> None:
    model, x = Layer(function).eval(), torch.randn(1, 5, 7, 9, generator=torch.Generator().manual_seed(0))
    program = VulkanProgram(program_from_script_module(torch.jit.trace(model, x)), device)
    with torch.no_grad():
        result, expected = program(x), model.double()(x.double())
    program.close()
    assert float((result - expected).abs().max()) <= 3e-6 * float(expected.abs().max())


WEIGHT = {"w": torch.randn(6, 8)}


@pytest.mark.parametrize(
    ("lines", "returned", "expected"),
    [
        (["%y : Float(2, 7, 6) = aten::view(%n, [2, 7, 6])"], "%y", ["linear"]),
        (["%y : Float(2, 7, 6) = aten::view(%n, [2, 7, 6])"], "%y, %n", ["view", "linear", "view"]),
        (["%y : Float(7, 2, 6) = aten::view(%n, [7, 2, 6])"], "%y", ["reshape", "linear"]),
        (["%y : Float(2, 7, 3, 2) = aten::view(%n, [2, 7, 3, 2])"], "%y", ["view", "linear", "view"]),
        (["%y : Float(14, 6) = aten::relu(%n)"], "%y", ["view", "linear", "relu"]),
    ],
)
def test_rows_that_a_layer_takes_as_they_are(lines: list[str], returned: str, expected: list[str]) -> None:
    text = """graph(%x : Float(2, 7, 8)):
  %w : Float(6, 8) = prim::Constant[value=<Tensor>]()
  %m : Float(14, 8) = aten::view(%x, [-1, 8])
  %n : Float(14, 6) = aten::linear(%m, %w, None)
"""
    graph = parse_graph(text + "".join(f"  {line}\n" for line in lines) + f"  return ({returned})\n", WEIGHT)
    simplify(graph)
    verify_graph(graph)
    assert operators(graph) == expected


def test_heads_that_a_layer_takes_as_rows(device: Device) -> None:
    """As ONNX files have them: rows of all items below each other, of heads side by side."""
    text = """graph(%x : Float(2, 4, 7, 2)):
  %w : Float(6, 8) = prim::Constant[value=<Tensor>]()
  %p : Float(2, 7, 4, 2) = aten::permute(%x, [0, 2, 1, 3])
  %m : Float(14, 8) = aten::reshape(%p, [14, 8])
  %n : Float(14, 6) = aten::linear(%m, %w, None)
  %y : Float(2, 7, 6) = aten::reshape(%n, [2, 7, 6])
  return (%y)
"""
    graph = parse_graph(text, WEIGHT)
    simplify(graph)
    verify_graph(graph)
    assert operators(graph) == ["permute", "reshape", "linear"]
    x = torch.randn(2, 4, 7, 2, generator=torch.Generator().manual_seed(0))
    (found,) = run_graph(device, graph, [x])
    expected = functional.linear(x.permute(0, 2, 1, 3).reshape(2, 7, 8), WEIGHT["w"])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%y : Float(2, 1) = aten::mean.dim(%x, [-1], True, 6)", None),
        ("%y : Float(2, 7) = aten::softmax.int(%x, -1, 6)", None),
        ("%y : Double(2, 7) = aten::softmax.int(%x, -1, 7)", 7),
        ("%y : Long(2, 7) = aten::cumsum(%x, 1, 4)", 4),
    ],
)
def test_dtypes_that_say_nothing_go(line: str, expected: int | None) -> None:
    graph = parse_graph(f"graph(%x : Float(2, 7)):\n  {line}\n  return (%y)\n")
    simplify(graph)
    verify_graph(graph)
    (node,) = graph.block.nodes
    assert node["dtype"] == expected
