"""Rows that nobody reads: what is made of them, as text, and that results are the same."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import pytest
import torch
from straight_lines import line_of
from test_planar_inputs import scripted
from torch import Tensor, nn
from torch.nn import functional

from mobopt import optimize_for_mobile
from mobopt.ir import Graph, print_graph, verify_graph
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.compile.narrowing import narrow_early
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram


def floats(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


TENSORS = {"w": floats(16, 8), "b": floats(16), "v": floats(8, 16), "one": floats(8), "table": floats(1, 7, 8)}
X = "%x : Float(2, 7, 8)"
UP = "%m : Float(2, 7, 16) = aten::linear(%x, %w, %b)"
GELU = '%g : Float(2, 7, 16) = aten::gelu(%m, "none")'
DOWN = "%n : Float(2, 7, 8) = aten::linear(%g, %v, None)"
SUM = "%s : Float(2, 7, 8) = aten::add.Tensor(%x, %n, 1)"
NORM = "%l : Float(2, 7, 8) = aten::layer_norm(%s, [8], %one, %one, 1e-05, True)"


def narrowed(*lines: str, returned: str = "%y", given: str = X) -> Graph:
    graph = line_of(lines, TENSORS, given, returned)
    narrow_early(graph)
    verify_graph(graph)
    return graph


def sizes(graph: Graph) -> list[tuple[str, tuple[int, ...]]]:
    nodes = [node for node in graph.block.nodes if node.op != "prim::Constant"]
    return [(node.op.removeprefix("aten::"), node.output.sizes) for node in nodes]


def test_the_text() -> None:
    chosen = "%y : Float(2, 8) = aten::select.int(%l, 1, -1)"
    text = print_graph(narrowed(UP, GELU, DOWN, SUM, NORM, chosen), digests=False)
    used = [line for line in text.splitlines() if "prim::Constant" not in line]
    assert "\n".join(used) == textwrap.dedent(
        """\
        graph(%x : Float(2, 7, 8)):
          %0 : Float(2, 1, 8) = aten::slice.Tensor(%x, 1, 6, 7, 1)
          %1 : Float(2, 1, 16) = aten::linear(%0, %w, %b)
          %2 : Float(2, 1, 16) = aten::gelu(%1, "none")
          %3 : Float(2, 1, 8) = aten::linear(%2, %v, None)
          %4 : Float(2, 1, 8) = aten::add.Tensor(%0, %3, 1)
          %5 : Float(2, 1, 8) = aten::layer_norm(%4, [8], %one, %one, 1e-05, True)
          %y : Float(2, 8) = aten::select.int(%5, 1, 0)
          return (%y)"""
    )


def test_all_that_is_read_lies_in_one_range() -> None:
    first = "%y : Float(2, 16) = aten::select.int(%m, 1, 1)"
    second = "%z : Float(2, 2, 16) = aten::slice.Tensor(%m, 1, 2, 4, 1)"
    text = print_graph(narrowed(UP, first, second, returned="%y, %z"), digests=False)
    assert "%0 : Float(2, 3, 8) = aten::slice.Tensor(%x, 1, 1, 4, 1)" in text
    assert "%y : Float(2, 16) = aten::select.int(%1, 1, 0)" in text
    assert "%z : Float(2, 2, 16) = aten::slice.Tensor(%1, 1, 1, 3, 1)" in text


def test_operands_that_are_broadcast() -> None:
    lines = [
        "%p : Float(2, 7, 8) = aten::add.Tensor(%x, %table, 1)",
        "%q : Float(2, 7, 8) = aten::mul.Tensor(%p, %one)",
        UP.replace("%x", "%q"),
        "%y : Float(2, 16) = aten::select.int(%m, 1, 2)",
    ]
    text = print_graph(narrowed(*lines), digests=False)
    assert "aten::slice.Tensor(%table, 1, 2, 3, 1)" in text
    assert "aten::slice.Tensor(%x, 1, 2, 3, 1)" in text
    assert "slice.Tensor(%one" not in text


def test_views() -> None:
    lines = [
        "%t : Float(7, 2, 8) = aten::transpose.int(%x, 0, 1)",
        "%m : Float(7, 2, 16) = aten::linear(%t, %w, %b)",
        "%v4 : Float(7, 2, 4, 4) = aten::view(%m, [7, 2, 4, 4])",
        "%p : Float(2, 4, 7, 4) = aten::permute(%v4, [1, -2, 0, 3])",
        "%e : Float(2, 4, 2, 4) = aten::slice.Tensor(%p, 2, 0, 2, 1)",
        "%y : Float(2, 4, 2, 4) = aten::relu(%e)",
    ]
    assert sizes(narrowed(*lines)) == [
        ("slice", (2, 2, 8)),
        ("transpose", (2, 2, 8)),
        ("linear", (2, 2, 16)),
        ("reshape", (2, 2, 4, 4)),
        ("permute", (2, 4, 2, 4)),
        ("relu", (2, 4, 2, 4)),
    ]


@pytest.mark.parametrize(
    ("lines", "returned"),
    [
        ([UP, GELU, "%y : Float(2, 16) = aten::select.int(%g, 1, 0)"], "%y, %m"),
        ([UP, "%y : Float(2, 4, 16) = aten::slice.Tensor(%m, 1, 0, 4, 1)"], "%y"),
        ([UP, "%y : Float(2, 2, 16) = aten::slice.Tensor(%m, 1, 0, 4, 2)"], "%y"),
        ([UP, "%y : Float(2, 7) = aten::select.int(%m, 2, 0)"], "%y"),
        (
            [UP, "%y : Float(7, 16) = aten::select.int(%m, 0, 0)", "%z : Float(2, 16) = aten::select.int(%m, 1, 0)"],
            "%y, %z",
        ),
        (["%g : Float(2, 7, 8) = aten::relu(%x)", "%y : Float(2, 8) = aten::select.int(%g, 1, 0)"], "%y"),
        (
            [
                UP,
                "%k : Float(2, 7, 16) = aten::softmax.int(%m, 1, None)",
                "%y : Float(2, 16) = aten::select.int(%k, 1, 0)",
            ],
            "%y",
        ),
        (
            [
                UP,
                "%k : Float(2, 7, 16) = aten::cumsum(%m, 1, None)",
                "%y : Float(2, 16) = aten::select.int(%k, 1, 0)",
            ],
            "%y",
        ),
        (
            [
                "%k : Float(2, 7, 8) = aten::layer_norm(%x, [7, 8], None, None, 1e-05, True)",
                "%y : Float(2, 8) = aten::select.int(%k, 1, 0)",
            ],
            "%y",
        ),
    ],
    ids=["returned", "most", "step", "columns", "two dimensions", "arithmetic", "softmax", "cumsum", "norm"],
)
def test_what_stays(lines: list[str], returned: str) -> None:
    before = [line.split("= aten::")[1].partition("(")[0].partition(".")[0] for line in lines]
    assert [name for name, _ in sizes(narrowed(*lines, returned=returned))] == before


Q = "%q : Float(1, 2, 5, 8), %k : Float(1, 2, 5, 8), %h : Float(5, 5)"


@pytest.mark.parametrize(
    ("place", "mask", "is_causal", "queries", "stays_causal"),
    [
        (0, "None", False, 1, False),
        (4, "None", True, 1, False),
        (3, "None", True, 5, True),
        (2, "%h", False, 1, False),
    ],
)
def test_attention(place: int, mask: str, is_causal: bool, queries: int, stays_causal: bool) -> None:
    rest = f"{mask}, 0.0, {is_causal}, None, False"
    lines = [
        f"%a : Float(1, 2, 5, 8) = aten::scaled_dot_product_attention(%q, %k, %k, {rest})",
        f"%y : Float(1, 2, 8) = aten::select.int(%a, 2, {place})",
    ]
    graph = narrowed(*lines, given=Q)
    (node,) = [node for node in graph.block.nodes if "attention" in node.op]
    assert (node.output.sizes[2], node["is_causal"]) == (queries, stays_causal)
    assert mask == "None" or node["attn_mask"].sizes == (1, 5)


class Layer(nn.Module):
    """Attention and two linear layers, as transformers have them."""

    def __init__(self, width: int, heads: int, is_joined: bool, is_causal: bool) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.parts = nn.ModuleList([nn.Linear(width, 3 * width)] if is_joined else [nn.Linear(width, width)] * 3)
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 40), nn.Linear(40, width)
        self.heads, self.is_joined, self.is_causal = heads, is_joined, is_causal

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        made: list[Tensor] = []
        for part in self.parts:
            made.append(part(y))
        if self.is_joined:
            made = list(made[0].chunk(3, -1))
        query, key, value = [one.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2) for one in made]
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        x = x + self.out(found.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Reader(nn.Module):
    """Reads some rows of the last of two layers."""

    def __init__(self, start: int, end: int, is_joined: bool, is_causal: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(*[Layer(24, 3, is_joined, is_causal) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 7)
        self.start, self.end = start, end

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(x))[:, self.start : self.end])


READERS = [
    pytest.param(Reader(0, 1, True, False), id="class token"),
    pytest.param(Reader(12, 13, False, True), id="last of a prompt"),
    pytest.param(Reader(0, 2, False, False), id="two tokens", marks=pytest.mark.sweep),
]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("switches", ["", "shared-products"])
@pytest.mark.parametrize("reader", READERS)
@torch.no_grad()
def test_beside_the_cpu(
    device: Device, monkeypatch: pytest.MonkeyPatch, reader: Reader, switches: str, precision: str
) -> None:
    if switches:
        monkeypatch.setattr(device, "info", replace(device.info, switches=frozenset({switches})))
    x = floats(2, 13, 24)
    runner = VulkanProgram(scripted(reader), device, precision=PrecisionChoice(precision))
    expected = reader(x)
    loss = 2e-6 if precision == "fp32" else 3e-3
    assert float((runner(x) - expected).abs().max()) <= loss * float(expected.abs().max())


@torch.no_grad()
def test_sizes_that_change() -> None:
    """A plan for another size reads other rows."""
    reader = Reader(-1, 10**9, True, True).eval()
    length = torch.export.Dim("length", min=4, max=40)
    program = torch.export.export(reader, (floats(1, 8, 24),), dynamic_shapes=({1: length},))
    module = optimize_for_mobile(program, backend="vulkan", runtime="mobopt")
    for size in (8, 13, 5, 31):
        x = floats(1, size, 24)
        torch.testing.assert_close(module(x), reader(x), atol=1e-5, rtol=1e-4)
