"""Epilogues: what is folded into convolutions and products, as text, and that the result is the same."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as functional
from harness import assert_close, run_graph

from mobopt.ir import Graph, parse_graph, print_graph, verify_graph
from mobopt.runtimes.vulkan.compile.fusion import fold_epilogues
from mobopt.runtimes.vulkan.kernels.epilogue import folded_epilogue, parts_of
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.shaders.enumerations import Opcode

load_lowerings()

SIZES = (1, 4, 5, 6)
WEIGHT = torch.randn(4, 4, 3, 3, generator=torch.Generator().manual_seed(0))
F = "Float(1, 4, 5, 6)"


def graph_of(body: str, returned: str, inputs: str = f"%x : {F}") -> Graph:
    """A graph of nodes ``%name = op(...)`` that make tensors of one size; ``conv(%x$)`` is short for the product."""
    lines = []
    for line in textwrap.dedent(body).strip().splitlines():
        name, _, node = line.partition(" = ")
        node = node.replace("conv(", "aten::conv2d(").replace("$", ", %w, None, [1, 1], [1, 1], [1, 1], 1")
        lines.append(f"  {name} : {F} = {node}")
    head = f"graph({inputs}):\n  %w : Float(4, 4, 3, 3) = prim::Constant[value=<Tensor>]()\n"
    return parse_graph(head + "\n".join(lines) + f"\n  return ({returned})\n", {"w": WEIGHT})


def folded(body: str, returned: str, inputs: str = f"%x : {F}") -> tuple[Graph, list[str]]:
    """The graph after fusion, and its nodes in short: products with what was folded into them."""
    graph = graph_of(body, returned, inputs)
    fold_epilogues(graph)
    verify_graph(graph)
    assert print_graph(parse_graph(print_graph(graph), {"w": WEIGHT})) == print_graph(graph)
    return graph, [" ".join(part.op.removeprefix("aten::") for part in parts_of(node)) for node in graph.block.nodes]


def conv(x: torch.Tensor) -> torch.Tensor:
    return functional.conv2d(x, WEIGHT, None, 1, 1)


def test_text_of_a_folded_product() -> None:
    graph, _ = folded("%c = conv(%x$)\n%r = aten::clamp(%c, -1.0, None)", "%r")
    assert print_graph(graph, digests=False) == textwrap.dedent(
        """\
        graph(%x : Float(1, 4, 5, 6)):
          %w : Float(4, 4, 3, 3) = prim::Constant[value=<Tensor float32 [4, 4, 3, 3]>]()
          %r : Float(1, 4, 5, 6) = mobopt::product()
            block0():
              %c : Float(1, 4, 5, 6) = aten::conv2d(%x, %w, None, [1, 1], [1, 1], [1, 1], 1)
              %0 : Float(1, 4, 5, 6) = aten::clamp(%c, -1.0, None)
              -> (%0)
          return (%r)
        """
    )
    before = folded_epilogue(parts_of(graph.block.nodes[0])).before
    assert (before.opcode, before.first, before.second) == (Opcode.CLAMP, -1.0, float("inf"))


def test_residual_block(device) -> None:
    graph, nodes = folded(
        """
        %a = conv(%x$)
        %b = aten::relu(%a)
        %c = conv(%b$)
        %d = aten::add.Tensor(%c, %x, 1)
        %e = aten::hardtanh(%d, 0.0, 6.0)
        """,
        "%e",
    )
    assert nodes == ["conv2d relu", "conv2d add hardtanh"]
    assert folded_epilogue(parts_of(graph.block.nodes[1])).residual is graph.inputs[0]
    value = torch.randn(SIZES)
    (found,) = run_graph(device, graph, [value])
    assert_close(found, (conv(conv(value).relu()) + value).clamp(0, 6))


def test_residual_made_after_the_product(device) -> None:
    graph, nodes = folded("%a = conv(%x$)\n%b = aten::sigmoid(%x)\n%c = aten::add.Tensor(%b, %a, 1)", "%c")
    assert nodes == ["sigmoid", "conv2d add"]
    value = torch.randn(SIZES)
    (found,) = run_graph(device, graph, [value])
    assert_close(found, value.sigmoid() + conv(value))


def test_an_activation_is_computed_where_the_product_was() -> None:
    _, nodes = folded("%a = conv(%x$)\n%b = aten::sigmoid(%x)\n%c = aten::relu(%a)", "%b, %c")
    assert nodes == ["conv2d relu", "sigmoid"]


def test_sum_of_two_products_folds_one(device) -> None:
    graph, nodes = folded("%a = conv(%x$)\n%b = conv(%x$)\n%c = aten::add.Tensor(%a, %b, 1)", "%c")
    assert nodes == ["conv2d", "conv2d add"]
    value = torch.randn(SIZES)
    (found,) = run_graph(device, graph, [value])
    assert_close(found, 2 * conv(value))


@pytest.mark.parametrize(
    ("following", "returned", "expected"),
    [
        ("%r = aten::relu(%c)\n%s = aten::add.Tensor(%r, %c, 1)", "%s", ["conv2d", "relu", "add"]),
        ("%r = aten::relu(%c)", "%r, %c", ["conv2d", "relu"]),
        ("%r = aten::add.Tensor(%c, %x, 2)", "%r", ["conv2d", "add"]),
        ("%r = aten::add.Tensor(%c, %row, 1)", "%r", ["conv2d", "add"]),
        ("%r = aten::add.Tensor(%c, %c, 1)", "%r", ["conv2d", "add"]),
        ("%r = aten::relu(%c)\n%s = aten::sigmoid(%r)\n%t = aten::silu(%s)", "%t", ["conv2d relu sigmoid", "silu"]),
        (
            "%r = aten::relu(%c)\n%s = aten::sigmoid(%r)\n%t = aten::add.Tensor(%s, %x, 1)",
            "%t",
            ["conv2d relu sigmoid", "add"],
        ),
    ],
    ids=["used twice", "returned", "scaled", "broadcast", "itself", "full", "no room for a sum"],
)
def test_what_is_not_folded(following: str, returned: str, expected: list[str]) -> None:
    _, nodes = folded(f"%c = conv(%x$)\n{following}", returned, f"%x : {F}, %row : Float(1, 4, 1, 6)")
    assert nodes == expected


def test_nodes_of_the_host_stay() -> None:
    graph = graph_of("%a = conv(%x$)\n%b = aten::relu(%a)", "%b")
    text = print_graph(graph)
    for node in graph.block.nodes:
        fold_epilogues(graph, {node})
        assert print_graph(graph) == text


CHANNELS = """
    graph(%x : Float({n}, 12, {h}, {w}), %t : Float({m}, {c}, 1, 1)):
      %weight : Float({c}, 12, {k}, {k}) = prim::Constant[value=<Tensor>]()
      %y : Float({n}, {c}, {h}, {w}) = aten::conv2d(%x, %weight, None, [1, 1], [{p}, {p}], [1, 1], 1)
      %s : Float({n}, {c}, {h}, {w}) = aten::add.Tensor({sum}, 1)
      %z : Float({n}, {c}, {h}, {w}) = aten::relu(%s)
      return (%z)
    """


def channels_graph(n: int, m: int, c: int, k: int, space: tuple[int, int], terms: str) -> tuple[Graph, torch.Tensor]:
    weight = torch.randn(c, 12, k, k, generator=torch.Generator().manual_seed(n)) / 10
    text = CHANNELS.format(n=n, m=m, c=c, k=k, p=k // 2, h=space[0], w=space[1], sum=terms)
    graph = parse_graph(textwrap.dedent(text).strip(), {"weight": weight})
    fold_epilogues(graph)
    verify_graph(graph)
    return graph, weight


@pytest.mark.parametrize("kind", ["cpu", "discrete"])
@pytest.mark.parametrize("terms", ["%y, %t", "%t, %y"])
@pytest.mark.parametrize("k, space", [(3, (7, 5)), (1, (7, 5)), (3, (1, 13)), (3, (16, 16)), (1, (1, 3))])
@pytest.mark.parametrize("n, m", [(1, 1), (3, 1), (3, 3)])
def test_channels_that_are_added_to_each_pixel(device, monkeypatch, kind, terms, k, space, n, m) -> None:
    """As what the steps of diffusion models are told of the time."""
    monkeypatch.setattr(device, "info", replace(device.info, kind=kind))
    graph, weight = channels_graph(n, m, 20, k, space, terms)
    assert [[part.op for part in parts_of(node)] for node in graph.block.nodes] == [
        ["aten::conv2d", "aten::add", "aten::relu"]
    ]
    generator = torch.Generator().manual_seed(k)
    x, t = torch.randn(n, 12, *space, generator=generator), torch.randn(m, 20, 1, 1, generator=generator)
    expected = (functional.conv2d(x, weight, None, 1, k // 2) + t).relu()
    for time in (t, t.expand(m, 20, 1, 1).contiguous(memory_format=torch.channels_last)):
        assert_close(run_graph(device, graph, [x, time])[0], expected, 2e-6)


def test_channels_that_are_no_whole_vec4s_stay_apart() -> None:
    graph, _ = channels_graph(1, 1, 10, 3, (7, 5), "%y, %t")
    assert len(graph.block.nodes) == 3
