"""Layers that files of older opsets write in steps are layers again: by their operators, and by numbers."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from mobopt.frontends.open_source import source_of
from mobopt.runtimes.cpu import Interpreter

STEPS = ("aten::sqrt", "aten::pow", "aten::erf", "aten::mean", "aten::div")


class Written(nn.Module):
    """A function of ``x`` with weights of its last dimension."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], width: int = 7) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.function = function
        self.weight = nn.Parameter(torch.rand(width, generator=generator) + 0.5)
        self.bias = nn.Parameter(torch.randn(width, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def steps(x: Tensor, dim: int = -1, eps: float = 1e-3) -> Tensor:
    """As Paddle writes a layer norm without weights."""
    center = x - x.mean(dim, keepdim=True)
    return center / (center.pow(2).mean(dim, keepdim=True) + eps).sqrt()


def erf(x: Tensor, scale: float = math.sqrt(2)) -> Tensor:
    return torch.erf(x / scale) + 1.0


NORMS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "layer": lambda m, x: nn.functional.layer_norm(x, (7,), m.weight, m.bias),
    "no bias": lambda m, x: nn.functional.layer_norm(x, (7,), m.weight),
    "no weight": lambda m, x: nn.functional.layer_norm(x, (7,)),
    "other orders": lambda m, x: m.bias + m.weight * steps(x),
    "squares by products": lambda m, x: (
        (x - x.mean(-1, keepdim=True))
        / ((c := x - x.mean(-1, keepdim=True)) * c).mean(-1, keepdim=True).add(0.1).sqrt()
    ),
    "bias alone": lambda m, x: steps(x) + m.bias,
    "twice": lambda m, x: steps(steps(x) * m.weight + m.bias) * m.weight,
    "a factor after the bias": lambda m, x: (steps(x) * m.weight + m.bias) * m.weight + m.bias,
}
GELUS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "function": lambda m, x: nn.functional.gelu(x),
    "half first": lambda m, x: x * 0.5 * erf(x),
    "half of the curve": lambda m, x: x * (0.5 * erf(x)),
    "product by the reciprocal root": lambda m, x: 0.5 * (x * (1.0 + torch.erf(x * 0.70710678))),
}
OTHERS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "over another dimension": lambda m, x: steps(x, 1),
    "of another mean": lambda m, x: (x - x.mean(1, keepdim=True)) / (x.pow(2).mean(-1, keepdim=True) + 0.1).sqrt(),
    "cubes": lambda m, x: (c := x - x.mean(-1, keepdim=True)) / (c.pow(4).mean(-1, keepdim=True) + 0.1).sqrt(),
    "another scale": lambda m, x: x * 0.5 * erf(x, 1.5),
    "of another tensor": lambda m, x: (x + m.bias) * 0.5 * erf(x),
    "of a constant": lambda m, x: m.bias * 0.5 * erf(x),
    "a third": lambda m, x: x * 0.3 * erf(x),
}


def checked(function: Callable[[Any, Tensor], Tensor], opset: int = 13) -> list[str]:
    """Operators of what torch exports of it, after comparing numbers at two sizes."""
    net, buffer = Written(function).eval(), io.BytesIO()
    generator = torch.Generator().manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            (torch.randn(2, 3, 7, generator=generator),),
            buffer,
            dynamo=False,
            opset_version=opset,
            input_names=["x"],
            dynamic_axes={"x": {0: "n", 1: "t"}},
        )
    program = source_of(onnx.ModelProto.FromString(buffer.getvalue())).program
    for sizes in ((2, 3, 7), (5, 11, 7)):
        x = torch.randn(sizes, generator=generator)
        with torch.no_grad():
            torch.testing.assert_close(Interpreter(program).run("forward", [x]), net(x), rtol=1e-5, atol=2e-6)
    return [node.op for node in program.methods["forward"].walk() if node.op.startswith("aten::")]


@pytest.mark.parametrize("name", NORMS)
def test_layer_norms(name: str) -> None:
    operators = checked(NORMS[name])
    expected = {"twice": 2}.get(name, 1)
    assert operators.count("aten::layer_norm") == expected
    assert not set(operators) & set(STEPS)


def test_factors_of_the_whole_stay_beside_a_norm() -> None:
    operators = checked(NORMS["a factor after the bias"])
    assert [operators.count(f"aten::{name}") for name in ("layer_norm", "mul", "add")] == [1, 1, 1]


@pytest.mark.parametrize("name", GELUS)
def test_gelus(name: str) -> None:
    operators = checked(GELUS[name])
    assert operators == ["aten::gelu"]


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_layer_stays(name: str) -> None:
    operators = checked(OTHERS[name])
    assert not set(operators) & {"aten::layer_norm", "aten::gelu"}
    assert set(operators) & set(STEPS)


def test_a_reciprocal_root() -> None:
    """As torch's older exporter writes it, in root-mean-square norms; other numerators, and more dimensions, stay."""
    one, ones, two = torch.tensor(1.0), torch.ones(1, 1, 1), torch.tensor(2.0)
    x = torch.rand(3, 5, generator=torch.Generator().manual_seed(0)) + 0.5
    for number, expected in ((one, ["sqrt", "rsqrt"]), (ones, ["sqrt", "div"]), (two, ["sqrt", "div"])):
        nodes = [helper.make_node("Sqrt", ["x"], ["r"]), helper.make_node("Div", ["number", "r"], ["y"])]
        graph = helper.make_graph(
            nodes,
            "root",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 5])],
            [helper.make_empty_tensor_value_info("y"), helper.make_empty_tensor_value_info("r")],
            [numpy_helper.from_array(number.numpy(), "number")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)])
        program = source_of(model).program
        names = [node.op.removeprefix("aten::") for node in program.methods["forward"].walk() if "aten" in node.op]
        assert sorted(names) == sorted(expected)
        y, _ = Interpreter(program).run("forward", [x])
        torch.testing.assert_close(y, number / x.sqrt())
