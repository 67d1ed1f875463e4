"""Vectors that are divided by their length: what is found, as text, the numbers, and attention by cosines."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from straight_lines import line_of
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import print_graph, verify_graph
from mobopt.ir.types import TensorType
from mobopt.ops.l2_normalize import l2_normalized
from mobopt.ops.shapes import infer
from mobopt.runtimes.vulkan.compile.euclidean_norms import find_euclidean_norms
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.program import VulkanProgram

load_lowerings()

NORM = "%n : Float(4, 1) = aten::linalg_vector_norm(%x, 2, [1], True, None)"
BOUND = "%c : Float(4, 1) = aten::clamp_min(%n, 1e-12)"
SPREAD = "%e : Float(4, 8) = aten::expand(%c, [4, 8], False)"
LAST = "%y : Float(4, 8) = aten::div.Tensor(%x, %e)"


def found(*lines: str, **tensors: Tensor) -> list[str]:
    graph = line_of(lines, tensors, "%x : Float(4, 8), %o : Float(4, 8)", "%y")
    find_euclidean_norms(graph)
    verify_graph(graph)
    return [line.strip() for line in print_graph(graph).splitlines() if " = aten::" in line or " = mobopt::" in line]


@pytest.mark.parametrize(
    ("lines", "eps"),
    [
        ([NORM, BOUND, SPREAD, LAST], "1e-12"),
        ([NORM, BOUND, SPREAD.replace("expand(%c, [4, 8], False)", "expand_as(%c, %x)"), LAST], "1e-12"),
        ([NORM, BOUND.replace("clamp_min(%n, 1e-12)", "clamp(%n, 0.5, None)"), LAST.replace("%e", "%c")], "0.5"),
        ([NORM, BOUND.replace("clamp_min(%n, 1e-12)", "maximum(%k, %n)"), LAST.replace("%e", "%c")], "0.25"),
        ([NORM, LAST.replace("%e", "%n")], "0.0"),
        ([NORM.replace("linalg_vector_norm(%x, 2, [1], True, None)", "norm.ScalarOpt_dim(%x, None, [-1], True)"),
          LAST.replace("%e", "%n")], "0.0"),
    ],
    ids=["normalize", "expand_as", "clamp", "maximum", "no bound", "norm"],
)  # fmt: skip
def test_what_is_found(lines: list[str], eps: str) -> None:
    dim = -1 if "[-1]" in lines[0] else 1
    text = found(*lines, k=torch.tensor(0.25))
    assert text == [f"%y : Float(4, 8) = mobopt::l2_normalize(%x, {dim}, {eps}, None)"]


def test_constants_that_multiply_it_are_its_weight() -> None:
    lines = [
        *(NORM, BOUND, SPREAD, LAST.replace("%y", "%q")),
        "%r : Float(4, 8) = aten::mul.Tensor(%w, %q)",
        "%y : Float(4, 8) = aten::mul.Scalar(%r, 3)",
    ]
    graph = line_of(lines, {"w": torch.arange(8.0)}, "%x : Float(4, 8)", "%y")
    find_euclidean_norms(graph)
    (node,) = (node for node in graph.block.nodes if node.op == "mobopt::l2_normalize")
    assert torch.equal(node["weight"].constant, 3 * torch.arange(8.0))


@pytest.mark.parametrize(
    "lines",
    [
        [NORM.replace("2, [1]", "1, [1]"), BOUND, SPREAD, LAST],
        [NORM.replace("[1]", "[0, 1]").replace("(4, 1)", "(1, 1)"), BOUND.replace("(4, 1)", "(1, 1)"), SPREAD, LAST],
        [NORM, BOUND, SPREAD, LAST.replace("(%x", "(%o")],
        [NORM, BOUND.replace("1e-12", "1e-30"), SPREAD, LAST],
        [NORM, BOUND.replace("1e-12", "-1"), SPREAD, LAST],
        [NORM, BOUND.replace("clamp_min(%n, 1e-12)", "clamp(%n, 0.5, 2)"), SPREAD, LAST],
        [NORM, BOUND, "%a : Float(4, 8) = aten::add.Tensor(%x, %c, 1)", SPREAD, LAST.replace("(%x", "(%a")],
    ],
    ids=["another order", "all dimensions", "of another", "underflows", "negative", "from both sides", "read twice"],
)
def test_what_stays(lines: list[str]) -> None:
    assert not any("l2_normalize" in line for line in found(*lines))


def test_sizes() -> None:
    x, fits, more = (TensorType(torch.float32, sizes) for sizes in ((2, 3, 5), (3, 1), (2, 1, 1, 1)))
    assert infer("mobopt::l2_normalize", (x, 1, 0.0, fits)) == x
    assert infer("mobopt::l2_normalize", (x, 1, 0.0, more)) is None
    assert infer("mobopt::l2_normalize", (x, 3, 0.0, None)) is None


class Normalized(nn.Module):
    """Along a dimension, with a weight."""

    def __init__(self, dim: int, eps: float, weight: Tensor | None) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.normalize(x + 0, dim=self.dim, eps=self.eps)
        return y if self.weight is None else y * self.weight


SHAPES = [
    ((5, 7), -1, None),
    ((3, 512), 1, (512,)),
    ((2, 3, 5, 7), 1, (3, 1, 1)),
    ((2, 3, 5, 7), 3, (3, 1, 1)),
    ((1, 2, 13, 32), -1, (2, 1, 1)),
    ((2, 64, 3), 1, None),
    ((1, 100003), -1, None),
    ((11,), 0, (11,)),
    ((2, 3, 2, 3, 5), 2, (5,)),
]


@pytest.mark.parametrize(("sizes", "dim", "weight"), SHAPES, ids=str)
@pytest.mark.parametrize("eps", [1e-12, 2.0])
@torch.no_grad()
def test_numbers(device: Device, sizes: tuple[int, ...], dim: int, weight: tuple[int, ...] | None, eps: float) -> None:
    generator = torch.Generator().manual_seed(7)
    factor = None if weight is None else torch.randn(weight, generator=generator)
    model, x = Normalized(dim, eps, factor).eval(), torch.randn(sizes, generator=generator)
    runner = VulkanProgram(program_from_script_module(torch.jit.trace(model, x)), device)
    torch.testing.assert_close(runner(x), model(x), atol=1e-6, rtol=1e-5)
    labels = [item.label.partition(" ")[0] for item in runner.profile([x])]
    assert "mobopt::l2_normalize" in labels and "aten::linalg_vector_norm" not in labels


@torch.no_grad()
def test_rows_without_a_direction(device: Device) -> None:
    """Zeros stay zeros where there is a bound, and NaN, infinities and small numbers give what torch makes of them."""
    x = torch.ones(6, 12)
    x[0], x[1, 3], x[2, 4], x[3], x[4] = 0, torch.nan, torch.inf, 1e-13, 1e-15
    for eps in (1e-12, 0.0):
        model = Normalized(-1, eps, None)
        runner = VulkanProgram(program_from_script_module(torch.jit.trace(model, torch.ones_like(x))), device)
        torch.testing.assert_close(runner(x), model(x), equal_nan=True, rtol=1e-5, atol=0)


def test_the_reference() -> None:
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(l2_normalized(x, 1, 1e-12), nn.functional.normalize(x, dim=1))
    torch.testing.assert_close(l2_normalized(x, 0, 2.0, x), nn.functional.normalize(x, dim=0, eps=2.0) * x)


class Cosines(nn.Module):
    """Attention whose scores are cosines times a factor of each head (Z. Liu et al., "Swin Transformer V2", 2022)."""

    def __init__(self, is_normalized: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.projection, self.is_normalized = nn.Linear(12, 36), is_normalized
        self.register_buffer("factor", torch.rand(3, 1, 1) * 9)
        self.register_buffer("mask", torch.randn(3, 11, 11))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projection(x).reshape(x.shape[0], 11, 3, 3, 4).permute(2, 0, 3, 1, 4).unbind(0)
        if self.is_normalized:
            q, k = nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1)
        scores = q @ k.transpose(-2, -1) * self.factor + self.mask
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape[0], 11, 12)


@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
@torch.no_grad()
def test_attention_by_cosines(device: Device, monkeypatch: pytest.MonkeyPatch, is_normalized: bool, batch: int) -> None:
    monkeypatch.setattr(device, "info", replace(device.info, switches=frozenset({"shared-products"})))
    x = torch.randn(batch, 11, 12, generator=torch.Generator().manual_seed(batch))
    model = Cosines(is_normalized).eval()
    runner = VulkanProgram(program_from_script_module(torch.jit.trace(model, x)), device)
    torch.testing.assert_close(runner(x), model(x), atol=1e-5, rtol=1e-5)
    labels = [item.label.partition(" ")[0] for item in runner.profile([x])]
    assert "aten::scaled_dot_product_attention" in labels and "aten::matmul" not in labels
    assert labels.count("mobopt::l2_normalize") == 2 * is_normalized
    assert labels.count("aten::mul.Tensor") == (not is_normalized)
