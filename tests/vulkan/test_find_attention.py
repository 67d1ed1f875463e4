"""Attention that is written as products and a softmax: what becomes of it, as text, and that the result is the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, parse_graph, print_graph, verify_graph
from mobopt.runtimes.vulkan.compile.attention import find_attention
from mobopt.runtimes.vulkan.compile.projections import join_projections
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.program import VulkanProgram

load_lowerings()

Q, T, V = "Float(1, 2, 5, 8)", "Float(1, 2, 8, 7)", "Float(1, 2, 7, 12)"
S, Y = "Float(1, 2, 5, 7)", "Float(1, 2, 5, 12)"
TENSORS = {
    "two": torch.tensor(2.0),
    "mask": torch.randn(5, 7),
    "hidden": torch.full((5, 7), -torch.inf).triu(-1),
    "factors": torch.randn(5, 7),
}
SCORES = f"%s : {S} = aten::matmul(%q, %t)"
RESULT = f"%y : {Y} = aten::matmul(%w, %v)"


def found(*lines: str) -> Graph:
    constants = "".join(
        f"  %{name} : Float{tuple(value.shape)} = prim::Constant[value=<Tensor>]()\n" for name, value in TENSORS.items()
    )
    head = f"graph(%q : {Q}, %t : {T}, %v : {V}):\n{constants}"
    text = head + "".join(f"  {line}\n" for line in (SCORES, *lines, RESULT)) + "  return (%y)\n"
    graph = parse_graph(text, TENSORS)
    find_attention(graph)
    verify_graph(graph)
    return graph


def softmax(of: str, rest: str = "-1, None") -> str:
    return f"%w : {S} = aten::softmax.int(%{of}, {rest})"


@pytest.mark.parametrize(
    ("lines", "mask", "scale"),
    [
        ([softmax("s")], "None", "1.0"),
        ([f"%m : {S} = aten::mul.Scalar(%s, 0.5)", softmax("m", "3, None")], "None", "0.5"),
        ([f"%m : {S} = aten::div.Tensor(%s, %two)", softmax("m")], "None", "0.5"),
        (
            [
                f"%m : {S} = aten::mul.Tensor(%s, %two)",
                f"%n : {S} = aten::div.Scalar(%m, 8)",
                f"%a : {S} = aten::add.Tensor(%n, %mask, 1)",
                softmax("a"),
            ],
            "%mask",
            "0.25",
        ),
    ],
)  # fmt: skip
def test_what_is_found(lines: list[str], mask: str, scale: str) -> None:
    text = [line.strip() for line in print_graph(found(*lines)).splitlines() if " = aten::" in line]
    assert [line.split(" = ")[1] for line in text] == [
        "aten::transpose.int(%t, -2, -1)",
        f"aten::scaled_dot_product_attention(%q, {text[0].split()[0]}, %v, {mask}, 0.0, False, {scale}, False)",
    ]


@pytest.mark.parametrize(
    "lines",
    [
        [softmax("s", "-2, None")],
        [f"%m : {S} = aten::mul.Tensor(%s, %factors)", softmax("m")],
        [f"%a : {S} = aten::add.Tensor(%s, %mask, 2)", softmax("a")],
        [f"%a : {S} = aten::add.Tensor(%s, %hidden, 1)", softmax("a")],
        [f"%a : {S} = aten::add.Tensor(%s, %s, 1)", softmax("a")],
        [f"%r : {S} = aten::relu(%s)", softmax("r")],
    ],
)
def test_what_is_left(lines: list[str]) -> None:
    graph = found(*lines)
    assert [node.op for node in graph.block.nodes if "matmul" in node.op] == ["aten::matmul"] * 2


class Attention(nn.Module):
    """Heads apart, scores by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 24)
        self.register_buffer("mask", torch.full((11, 11), -torch.inf).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).view(2, 11, 3, 8).transpose(1, 2) for layer in (self.query, self.key, self.value))
        weights = (q @ k.transpose(2, 3) * 8**-0.5 + self.mask).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(2, 11, 24)


def test_model(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete"))
    model, x = Attention().eval(), torch.randn(2, 11, 24)
    program = VulkanProgram(program_from_script_module(torch.jit.trace(model, x)), device)
    with torch.no_grad():
        result, expected = program(x), model(x)
    assert isinstance(result, Tensor)
    operations = [item.operation for item in program.profile([x])]
    program.close()
    assert float((result - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    assert [item.shader for item in operations if isinstance(item, Dispatch)].count("attention") == 1
    assert sum(item.shader.startswith("product_") for item in operations if isinstance(item, Dispatch)) == 1


def test_projections_of_one_input_are_joined() -> None:
    tensors = {name: torch.randn(16, 12) for name in ("w0", "w1", "w2")} | {"b": torch.randn(16)}
    constants = "".join(
        f"  %{name} : Float{tuple(value.shape)} = prim::Constant[value=<Tensor>]()\n" for name, value in tensors.items()
    ).replace("(16,)", "(16)")
    x, y = "Float(2, 5, 12)", "Float(2, 5, 16)"
    text = f"""graph(%x : {x}, %z : {x}):
{constants}  %q : {y} = aten::linear(%z, %w0, %b)
  %k : {y} = aten::linear(%x, %w1, %b)
  %v : {y} = aten::linear(%x, %w2, %b)
  %y : {y} = aten::scaled_dot_product_attention(%q, %k, %v, None, 0.0, False, None, False)
  return (%y)
"""
    graph = parse_graph(text, tensors)
    join_projections(graph, ConstantStore())
    verify_graph(graph)
    nodes = [node for node in graph.block.nodes if node.op.startswith("aten::")]
    assert [node.op for node in nodes] == [
        *("aten::linear", "aten::linear", "aten::slice", "aten::slice", "aten::scaled_dot_product_attention")
    ]
    joined = nodes[1]
    assert torch.equal(joined["weight"].elements, torch.cat([tensors["w1"], tensors["w2"]]))
    assert joined["bias"].numel == 32 and joined.output.sizes == (2, 5, 32)
    assert [node.args[1:] for node in nodes[2:4]] == [(2, 0, 16, 1), (2, 16, 32, 1)]
