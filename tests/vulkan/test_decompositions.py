"""Operators that are computed as several others: as text, and beside torch's own."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from one_node import Constant, check, graph_of

from mobopt.ir import print_graph
from mobopt.runtimes.vulkan.compile.decompose import decompose
from mobopt.runtimes.vulkan.decompositions.registry import decomposes, load_decompositions
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings

load_lowerings()
load_decompositions()


@pytest.fixture(params=["host", pytest.param("device", marks=pytest.mark.sweep)])
def computer(request: pytest.FixtureRequest) -> Any:
    """What computes the parts: torch's kernels (None), or a device."""
    return None if request.param == "host" else request.getfixturevalue("device")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def test_text_before_and_after() -> None:
    graph, _, _ = graph_of("aten::einsum", "bhqd,bhkd->bhqk", [torch.ones(2, 3, 5, 7), torch.ones(2, 3, 11, 7)])
    assert '= aten::einsum("bhqd,bhkd->bhqk", [%x0, %x1], None)' in print_graph(graph)
    decompose(graph)
    assert print_graph(graph) == textwrap.dedent(
        """\
        graph(%x0 : Float(2, 3, 5, 7),
              %x1 : Float(2, 3, 11, 7)):
          %0 : Float(6, 5, 7) = aten::reshape(%x0, [6, 5, 7])
          %1 : Float(2, 3, 7, 11) = aten::permute(%x1, [0, 1, 3, 2])
          %2 : Float(6, 7, 11) = aten::reshape(%1, [6, 7, 11])
          %3 : Float(6, 5, 11) = aten::bmm(%0, %2)
          %4 : Float(2, 3, 5, 11) = aten::reshape(%3, [2, 3, 5, 11])
          return (%4)
        """
    )


def test_what_the_device_has_no_parts_for_is_left_whole() -> None:
    x, y = torch.ones(3, 5, dtype=torch.float64), torch.ones(5, 7, dtype=torch.float64)
    graph, _, _ = graph_of("aten::einsum", "ij,jk->ik", [x, y])
    before = print_graph(graph)
    decompose(graph)
    assert print_graph(graph) == before
    assert all(len(value.uses) == 1 for value in graph.inputs)


def test_an_operator_has_one_decomposition() -> None:
    with pytest.raises(ValueError, match="two decompositions"):
        decomposes("aten::einsum")(lambda build, node: None)


def _einsums() -> Iterator[tuple[str, list[torch.Tensor]]]:
    r = torch.randn
    yield "bhqd,bhkd->bhqk", [r(2, 3, 5, 7), r(2, 3, 11, 7)]
    yield "bij,bij->b", [r(3, 5, 7), r(3, 5, 7)]
    yield "i,j->ij", [r(3), r(5)]
    yield "i,i", [r(3), r(3)]
    yield "ii", [r(5, 5)]
    yield "biic->bci", [r(2, 5, 5, 3)]
    yield "...ij,...jk->...ik", [r(2, 1, 3, 5), r(3, 5, 7)]
    yield "i...,j...->...ji", [r(3, 2, 5), r(7, 5)]
    yield "ij->ji", [r(3, 5)]
    yield "abc,cd,de->abe", [r(2, 3, 5), r(5, 7), r(7, 3)]
    yield "bij,cij->bc", [r(2, 1, 5), r(3, 4, 5)]
    yield "bk,Bk", [r(2, 3), r(5, 3)]
    yield " a b , b -> a ", [r(2, 3), r(3)]
    yield "ij,jk->ik", [r(3, 0), r(0, 5)]
    yield "ij,ij->ij", [r(3, 0), r(3, 0)]
    yield "bchw,bkhw->bck", [r(2, 3, 5, 7), r(2, 11, 5, 7).permute(0, 1, 2, 3)]


def test_einsum(computer: Any) -> None:
    for equation, tensors in _einsums():
        check(computer, "aten::einsum", equation, tensors)
    check(
        computer,
        "aten::einsum",
        "ij,jk,kl->il",
        [torch.randn(3, 5), torch.randn(5, 7), torch.randn(7, 2)],
        path=[1, 2, 0, 1],
    )
    half = [torch.randn(3, 5).half(), torch.randn(5, 7).half()]
    check(computer, "aten::einsum", "ij,jk->ki", half, relative=2e-3)


def test_constants_of_einsum_are_folded_once(computer: Any) -> None:
    weight = torch.randn(5, 7, 2)
    first, second = (
        check(computer, "aten::einsum", "bld,dhk->bhlk", [torch.randn(2, length, 5), Constant(weight)])
        for length in (3, 4)
    )
    operands = [
        value.elements
        for graph in (first, second)
        for node in graph.block.nodes
        if node.op == "aten::mm"
        for value in node.inputs
        if value.elements is not None
    ]
    assert len(operands) == 2 and operands[0] is operands[1]


def _bags() -> Iterator[tuple[Any, ...]]:
    weight, indices = torch.randn(11, 3), torch.randint(0, 11, (12,))
    for mode in range(3):
        for offsets in ([0, 3, 6, 9], [0, 4, 4, 11], [0, 5], [0]):
            yield weight, indices, Constant(torch.tensor(offsets)), False, mode
        yield weight, indices, Constant(torch.tensor([0, 7, 12])), False, mode, False, None, True
    yield weight, indices, Constant(torch.tensor([0, 5, 6])), False, 0, False, torch.randn(12)


@pytest.mark.parametrize("is_known", [True, False])
def test_embedding_bag(computer: Any, is_known: bool) -> None:
    for args in _bags():
        if not is_known:
            args = (*args[:2], args[2].elements, *args[3:])
        check(computer, "aten::embedding_bag", *args)
        padded = (*args, *(False, None, False)[len(args) - 5 :], int(args[1][4]))
        check(computer, "aten::embedding_bag.padding_idx", *padded)


def test_no_rows_of_embedding_bag_stay() -> None:
    graph, _, _ = graph_of("aten::embedding_bag", torch.randn(5, 3), torch.tensor([]).long(), torch.tensor([0, 0]))
    decompose(graph)
    assert [node.op for node in graph.block.nodes] == ["aten::embedding_bag"]


def test_variants_of_attention(computer: Any) -> None:
    query, key, value = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    mask = torch.randn(5, 7)
    check(computer, "aten::_scaled_dot_product_flash_attention_for_cpu", query, key, value, attn_mask=mask, scale=0.3)
    check(computer, "aten::_scaled_dot_product_attention_math", query, key, value, mask)
    check(computer, "aten::_scaled_dot_product_attention_math", query, key, value, returned=2)


def _masks(batch: int, heads: int, length: int) -> Iterator[tuple[torch.Tensor | None, int | None]]:
    yield None, None
    yield torch.randn(length, length) > 1, 0
    yield torch.arange(length).expand(batch, length) >= torch.tensor([[length - 2], [length]]), 1
    yield torch.randn(batch, heads, length, length) > 1, 2


def test_layers_of_transformers(computer: Any) -> None:
    x, other, size, heads = torch.randn(2, 5, 12), torch.randn(2, 5, 12), 12, 4
    layer = [Constant(torch.randn(*sizes) * 0.3) for sizes in ((3 * size, size), (3 * size,), (size, size), (size,))]
    norms = [Constant(torch.randn(size)) for _ in range(4)]
    inner = [Constant(torch.randn(*sizes) * 0.3) for sizes in ((17, size), (17,), (size, 17), (size,))]
    op = "aten::_native_multi_head_attention"
    for mask, kind in _masks(2, heads, 5):
        check(computer, op, x, x, x, size, heads, *layer, mask, False, True, kind)
        check(computer, op, x, x, x, size, heads, *layer, mask, True, kind != 0, kind, returned=2)
        for use_gelu in (True, False):
            arguments = (size, heads, *layer, use_gelu, kind == 1, 1e-5, *norms, *inner, mask, kind)
            check(computer, "aten::_transformer_encoder_layer_fwd", x, *arguments)
    check(computer, op, x, other, other.flip(1), size, heads, *layer, None, True, returned=2)


def _pairs() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    special = torch.tensor([0.0, -0.0, 1.5, -2.0, torch.inf, -torch.inf, torch.nan, 3e38, 1e-30])
    yield special[:, None], special
    yield torch.randn(3, 5), torch.randn(5)
    yield torch.randn(3, 5).half(), torch.randn(1, 5)


def test_functions_of_two_numbers(computer: Any) -> None:
    for a, b in _pairs():
        for name in ("fmin", "fmax", "hypot"):
            check(computer, f"aten::{name}", a, b, relative=1e-6 if a.dtype == torch.float32 else 2e-3)
    for name in ("fmin", "fmax"):
        check(computer, f"aten::{name}", torch.arange(5, dtype=torch.int32), torch.tensor([3, 1, 4, 1, 5]).int())


def test_distances_and_bilinear(computer: Any) -> None:
    x, y = torch.randn(2, 7, 5), torch.randn(2, 3, 5)
    for order in (0.0, 1.0, 2.0, 3.0, float("inf")):
        check(computer, "aten::cdist", x, y, order)
    weight, bias = torch.randn(3, 5, 4), torch.randn(3)
    check(computer, "aten::bilinear", torch.randn(2, 7, 5), torch.randn(2, 7, 4), weight, bias)
    check(computer, "aten::bilinear", torch.randn(7, 5), torch.randn(7, 4), weight, None)


def test_running_sums_of_powers(computer: Any) -> None:
    for x, dim in ((torch.randn(2, 13, 3), 1), (torch.randn(3, 8) * 50, -1), (torch.randn(1), 0)):
        check(computer, "aten::logcumsumexp", x, dim)
