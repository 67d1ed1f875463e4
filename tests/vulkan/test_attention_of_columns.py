"""Attention of columns, as models of convolutions write it: what becomes of it, as text, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from straight_lines import line_of
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import print_graph, verify_graph
from mobopt.runtimes.vulkan.compile.attention import find_attention
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.program import VulkanProgram

load_lowerings()

SCORES = [
    "%u : Float(2, 8, 5) = aten::mul.Scalar(%q, 0.5)",
    "%t : Float(2, 5, 8) = aten::transpose.int(%u, 1, 2)",
    "%s : Float(2, 5, 7) = aten::matmul(%t, %k)",
]
WEIGHTS = "%w : Float(2, 5, 7) = aten::softmax.int(%s, -1, None)"
RESULT = "%y : Float(2, 12, 5) = aten::matmul(%v, %r)"
GIVEN = "%q : Float(2, 8, 5), %k : Float(2, 8, 7), %v : Float(2, 12, 7)"


def text_of(*lines: str, given: str = GIVEN) -> list[str]:
    graph = line_of(lines, {}, given, "%y")
    find_attention(graph)
    verify_graph(graph)
    return [line.strip() for line in print_graph(graph).splitlines() if " = aten::" in line]


@pytest.mark.parametrize("turn", ["aten::transpose.int(%w, -1, -2)", "aten::permute(%w, [0, 2, 1])"])
def test_rows_of_weights_that_are_exchanged(turn: str) -> None:
    assert text_of(*SCORES, WEIGHTS, f"%r : Float(2, 7, 5) = {turn}", RESULT) == [
        "%0 : Float(2, 5, 8) = aten::transpose.int(%q, -2, -1)",
        "%1 : Float(2, 7, 8) = aten::transpose.int(%k, -2, -1)",
        "%2 : Float(2, 7, 12) = aten::transpose.int(%v, -2, -1)",
        "%3 : Float(2, 5, 12) = aten::scaled_dot_product_attention(%0, %1, %2, None, 0.0, False, 0.5, False)",
        "%y : Float(2, 12, 5) = aten::transpose.int(%3, -2, -1)",
    ]


def test_a_softmax_along_columns() -> None:
    lines = [
        "%t : Float(2, 7, 8) = aten::transpose.int(%k, 1, 2)",
        "%s : Float(2, 7, 5) = aten::matmul(%t, %q)",
        "%r : Float(2, 7, 5) = aten::softmax.int(%s, 1, None)",
        RESULT,
    ]
    assert text_of(*lines) == [
        "%t : Float(2, 7, 8) = aten::transpose.int(%k, 1, 2)",
        "%0 : Float(2, 5, 8) = aten::transpose.int(%q, -2, -1)",
        "%1 : Float(2, 7, 12) = aten::transpose.int(%v, -2, -1)",
        "%2 : Float(2, 5, 12) = aten::scaled_dot_product_attention(%0, %t, %1, None, 0.0, False, 1.0, False)",
        "%y : Float(2, 12, 5) = aten::transpose.int(%2, -2, -1)",
    ]


@pytest.mark.parametrize(("width", "is_found"), [(256, True), (320, False)])
def test_heads_that_are_much_longer_than_there_are_keys(width: int, is_found: bool) -> None:
    lines = [
        "%t : Float(2, 8, 5) = aten::transpose.int(%k, 1, 2)".replace("8, 5", f"{width}, 5"),
        "%s : Float(2, 5, 5) = aten::matmul(%q, %t)",
        "%w : Float(2, 5, 5) = aten::softmax.int(%s, -1, None)",
        f"%y : Float(2, 5, {width}) = aten::matmul(%w, %v)",
    ]
    given = ", ".join(f"%{name} : Float(2, 5, {width})" for name in "qkv")
    assert any("attention" in line for line in text_of(*lines, given=given)) == is_found


@pytest.mark.parametrize(("batch", "is_found"), [(3, True), (1, False)])
def test_a_factor_of_each_matrix(batch: int, is_found: bool) -> None:
    """Queries that all share can't have a factor for each."""
    lines = [
        "%s : Float(3, 5, 7) = aten::matmul(%q, %k)",
        "%f : Float(3, 5, 7) = aten::mul.Tensor(%s, %c)",
        "%w : Float(3, 5, 7) = aten::softmax.int(%f, -1, None)",
        "%y : Float(3, 5, 12) = aten::matmul(%w, %v)",
    ]
    given = f"%q : Float({batch}, 5, 8), %k : Float(3, 8, 7), %v : Float(3, 7, 12)"
    graph = line_of(lines, {"c": torch.rand(3, 1, 1)}, given, "%y")
    find_attention(graph)
    verify_graph(graph)
    assert any("attention" in node.op for node in graph.block.nodes) == is_found


def test_values_that_are_exchanged_are_no_weights() -> None:
    lines = [
        *SCORES,
        WEIGHTS,
        "%r : Float(2, 7, 12) = aten::transpose.int(%v, -2, -1)",
        "%y : Float(2, 5, 12) = aten::matmul(%w, %r)",
    ]
    text = text_of(*lines)
    assert text[-1].startswith("%y : Float(2, 5, 12) = aten::scaled_dot_product_attention(") and "%r, None" in text[-1]


def test_numbers_that_multiply_operands_of_attention() -> None:
    lines = [
        "%u : Float(2, 8, 5) = aten::mul.Scalar(%q, 0.5)",
        "%t : Float(2, 5, 8) = aten::transpose.int(%u, 1, 2)",
        "%l : Float(2, 8, 7) = aten::div.Scalar(%k, 4)",
        "%c : Float(2, 7, 8) = aten::transpose.int(%l, -1, -2)",
        "%d : Float(2, 7, 8) = aten::mul.Scalar(%c, 8)",
        "%r : Float(2, 7, 12) = aten::transpose.int(%v, 1, 2)",
        "%y : Float(2, 5, 12) = aten::scaled_dot_product_attention(%t, %d, %r, None, 0.0, False, 3.0, False)",
    ]
    assert text_of(*lines) == [
        "%r : Float(2, 7, 12) = aten::transpose.int(%v, 1, 2)",
        "%0 : Float(2, 5, 8) = aten::transpose.int(%q, -2, -1)",
        "%1 : Float(2, 7, 8) = aten::transpose.int(%k, -2, -1)",
        "%y : Float(2, 5, 12) = aten::scaled_dot_product_attention(%0, %1, %r, None, 0.0, False, 3.0, False)",
    ]
    usual = lines[-1].replace("3.0", "None").replace("%d", "%c")
    assert text_of(*lines[:4], lines[5], usual)[-1].endswith(f"{8**-0.5 / 8}, False)")
    read_twice = lines[-1].replace("%r,", "%c,").replace("12", "8").replace("%d", "%c")
    assert "aten::div.Scalar(%k, 4)" in "".join(text_of(*lines[:4], read_twice))


@pytest.mark.parametrize(
    "lines",
    [
        [*SCORES, WEIGHTS.replace("-1", "1"), "%r : Float(2, 7, 5) = aten::transpose.int(%w, 1, 2)", RESULT],
        [*SCORES, WEIGHTS, "%r : Float(2, 7, 5) = aten::reshape(%w, [2, 7, 5])", RESULT],
        [
            "%t : Float(2, 7, 8) = aten::transpose.int(%k, 1, 2)",
            "%s : Float(2, 7, 5) = aten::matmul(%t, %q)",
            "%r : Float(2, 7, 5) = aten::softmax.int(%s, 2, None)",
            RESULT,
        ],
    ],
    ids=["along the other dimension", "another view", "along rows"],
)
def test_what_stays(lines: list[str]) -> None:
    assert not any("attention" in line for line in text_of(*lines))


class Positions(nn.Module):
    """The attention of YOLO's C2PSA (A. Wang et al., "YOLOv10", 2024)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Conv2d(3, 48, 3), nn.Conv2d(24, 5, 1)
        self.positions = nn.Conv2d(24, 24, 3, 1, 1, groups=24)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        b, _, h, w = y.shape
        q, k, v = y.view(b, 3, 16, h * w).split([4, 4, 8], dim=2)
        weights = ((q.transpose(-2, -1) @ k) * 0.5).softmax(-1)
        z = (v @ weights.transpose(-2, -1)).view(b, 24, h, w)
        return self.last(z + self.positions(v.reshape(b, 24, h, w)))


class Channels(nn.Module):
    """Self-attention of GANs with a softmax along columns (H. Zhang et al., 2019, as fastai writes it)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Conv2d(3, 24, 3)
        self.query, self.key, self.value = nn.Conv1d(24, 6, 1), nn.Conv1d(24, 6, 1), nn.Conv1d(24, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        rows = y.flatten(2)
        f, g, h = self.query(rows), self.key(rows), self.value(rows)
        weights = torch.softmax(torch.bmm(f.transpose(1, 2), g), 1)
        return (torch.bmm(h, weights) + rows).reshape(y.shape)


@pytest.mark.parametrize("make", [Positions, Channels])
@pytest.mark.parametrize("batch", [1, 2])
@torch.no_grad()
def test_numbers(device: Device, monkeypatch: pytest.MonkeyPatch, make: Callable[[], nn.Module], batch: int) -> None:
    monkeypatch.setattr(device, "info", replace(device.info, switches=frozenset({"shared-products"})))
    x = torch.randn(batch, 3, 9, 13, generator=torch.Generator().manual_seed(batch))
    model = make().eval()
    runner = VulkanProgram(program_from_script_module(torch.jit.trace(model, x)), device)
    torch.testing.assert_close(runner(x), model(x), atol=1e-5, rtol=1e-5)
    labels = [item.label.partition(" ")[0] for item in runner.profile([x])]
    assert "aten::scaled_dot_product_attention" in labels
    assert "aten::matmul" not in labels and "aten::bmm" not in labels
