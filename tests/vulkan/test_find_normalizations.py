"""Normalisations that a model writes in steps become one node: as text, and that the result is the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, parse_graph, verify_graph
from mobopt.runtimes.vulkan.compile.normalizations import find_normalizations
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.program import VulkanProgram

load_lowerings()

X, M = "Float(2, 5, 24)", "Float(2, 5, 1)"
TENSORS = {"w": torch.rand(24) + 0.5, "b": torch.rand(24), "c": torch.rand(5, 1), "e": torch.tensor(1e-6)}
TENSORS["f"] = torch.full((1, 1, 1, 1), 1e-6)
SQUARE = f"%q : {X} = aten::pow.Tensor_Scalar(%x, 2)"
MEAN = f"%m : {M} = aten::mean.dim(%q, [-1], True, None)"
EPS = f"%a : {M} = aten::add.Scalar(%m, 1e-06, 1)"
ROOT = f"%r : {M} = aten::rsqrt(%a)"
NORM = f"%n : {X} = aten::mul.Tensor(%x, %r)"
GAIN = f"%y : {X} = aten::mul.Tensor(%w, %n)"


def found(*lines: str, returned: str = "%y") -> Graph:
    constants = "".join(
        f"  %{name} : Float({', '.join(map(str, value.shape))}) = prim::Constant[value=<Tensor>]()\n"
        for name, value in TENSORS.items()
    )
    text = f"graph(%x : {X}):\n{constants}" + "".join(f"  {line}\n" for line in lines) + f"  return ({returned})\n"
    graph = parse_graph(text, TENSORS)
    find_normalizations(graph)
    verify_graph(graph)
    return graph


def operators(graph: Graph) -> list[str]:
    return [node.op.removeprefix("aten::") for node in graph.block.nodes if node.op.startswith("aten::")]


def test_a_root_mean_square_norm() -> None:
    graph = found(SQUARE, MEAN, EPS, ROOT, NORM, GAIN)
    (node,) = (node for node in graph.block.nodes if node.op.startswith("aten::"))
    assert (node.op, node["normalized_shape"], node["eps"]) == ("aten::rms_norm", [24], 1e-6)
    assert torch.equal(node["weight"].elements, TENSORS["w"]) and node.output.name == "y"


def test_several_norms() -> None:
    second = [line.replace("%y", "%z").replace("%x", "%y") for line in (SQUARE, MEAN, EPS, ROOT, NORM, GAIN)]
    lines = [SQUARE, MEAN, EPS, ROOT, NORM, GAIN, *(_numbered(line) for line in second)]
    assert operators(found(*lines, returned="%z")) == ["rms_norm", "rms_norm"]


def _numbered(line: str) -> str:
    """With other names of what is between."""
    return re.sub(r"%([qmarn])\b", r"%\g<1>2", line)


CENTER = f"%d : {X} = aten::sub.Tensor(%x, %u, 1)"
CENTERED = [
    f"%u : {M} = aten::mean.dim(%x, [2], True, None)",
    CENTER,
    f"%q : {X} = aten::mul.Tensor(%d, %d)",
    MEAN,
    f"%a : {M} = aten::add.Tensor(%m, %e, 1)",
    f"%s : {M} = aten::sqrt(%a)",
    f"%n : {X} = aten::div.Tensor(%d, %s)",
]


def test_a_layer_norm() -> None:
    graph = found(*CENTERED, f"%g : {X} = aten::mul.Tensor(%n, %w)", f"%y : {X} = aten::add.Tensor(%g, %b, 1)")
    (node,) = (node for node in graph.block.nodes if node.op.startswith("aten::"))
    assert node.op == "aten::layer_norm" and node["eps"] == pytest.approx(1e-6)
    assert torch.equal(node["weight"].elements, TENSORS["w"]) and torch.equal(node["bias"].elements, TENSORS["b"])
    assert operators(found(*CENTERED, returned="%n, %d")) == ["mean", "sub", "layer_norm"]  # what else is read stays


@pytest.mark.parametrize(
    ("lines", "returned"),
    [
        ([SQUARE, MEAN, EPS, ROOT, NORM, GAIN], "%y, %r"),  # a step is read elsewhere
        ([SQUARE, MEAN, EPS, ROOT, NORM, GAIN], "%y, %m"),
        ([SQUARE, f"%m : {M} = aten::mean.dim(%q, [-1], True, 7)", EPS, ROOT, NORM, GAIN], "%y"),  # in float64
        ([f"%q : {X} = aten::pow.Tensor_Scalar(%x, 3)", MEAN, EPS, ROOT, NORM, GAIN], "%y"),
        ([SQUARE, MEAN, f"%a : {M} = aten::add.Scalar(%m, -1e-06, 1)", ROOT, NORM, GAIN], "%y"),
        ([SQUARE, MEAN, EPS, f"%r : {M} = aten::sqrt(%a)", NORM, GAIN], "%y"),  # not divided by it
        ([CENTERED[0], CENTER, SQUARE, MEAN, EPS, ROOT, f"%y : {X} = aten::mul.Tensor(%d, %r)"], "%y"),  # of others
    ],
)
def test_what_stays(lines: list[str], returned: str) -> None:
    assert not {"rms_norm", "layer_norm"} & set(operators(found(*lines, returned=returned)))


def test_eps_of_more_dimensions_stays() -> None:
    """The result has them, too."""
    steps = [
        f"%a : Float(1, {M[6:]} = aten::add.Tensor(%m, %f, 1)",
        f"%r : Float(1, {M[6:]} = aten::rsqrt(%a)",
        f"%y : Float(1, {X[6:]} = aten::mul.Tensor(%x, %r)",
    ]
    assert operators(found(SQUARE, MEAN, *steps)) == ["pow", "mean", "add", "rsqrt", "mul"]


def test_factors_of_rows_stay_outside() -> None:
    graph = found(SQUARE, MEAN, EPS, ROOT, NORM, f"%y : {X} = aten::mul.Tensor(%n, %c)")
    assert operators(graph) == ["rms_norm", "mul"]


class Rows(nn.Module):
    """A norm of rows by a function of them, a factor and a shift."""

    def __init__(self, width: int, compute: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(width)
        self.weight, self.bias = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width))
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x, self.weight, self.bias)


def _llama(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def _divided(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, True) + 1e-5) * (1 + weight)


def _bert(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return weight * ((x - mean) / torch.sqrt(variance + 1e-12)) + bias


def _with_variance(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) * (variance + 1e-5).rsqrt() * weight + bias


@pytest.mark.parametrize("compute", [_llama, _divided, _bert, _with_variance])
@pytest.mark.parametrize("sizes", [(2, 5, 24), (7, 37), (1, 3, 2, 8), (1, 1100)])
def test_numbers(any_device: Any, compute: Callable[[Tensor, Tensor, Tensor], Tensor], sizes: tuple[int, ...]) -> None:
    model = Rows(sizes[-1], compute).eval()
    x = 3 * torch.randn(sizes, generator=torch.Generator().manual_seed(0)) + 1
    program = VulkanProgram(program_from_script_module(torch.jit.trace(model, x)), any_device)
    with torch.no_grad():
        result = program(x)
        expected = model.double()(x.double())
    assert isinstance(result, Tensor)
    operations = [item.operation for item in program.profile([x])]
    program.close()
    assert float((result - expected).abs().max()) <= 2e-6 * float(expected.abs().max())
    shaders = [item.shader for item in operations if isinstance(item, Dispatch)]
    # Another may copy rows to where the caller wants them; CPU drivers normalise long rows in two steps.
    assert [name.startswith("normalize") for name in shaders] in ([True], [True, False]) or sizes[-1] > 1000, shaders
