"""How many floating-point operations a node of a straight line counts, and which bytes a dispatch moves."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mobopt.ir import Node, Value
from mobopt.ir.schemas import argument_names
from mobopt.ops.arithmetic import flops_of
from mobopt.ops.records import Trait, record_of
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, supported_operators


def node(operator: str, sizes: tuple[int, ...], *args: object) -> Node:
    """A call whose tensors are given by their sizes, as tuples."""
    given = [Value.of_tensor(torch.float32, arg) if isinstance(arg, tuple) else arg for arg in args]
    return Node.call(operator, given, (Value.of_tensor(torch.float32, sizes),))


PAIR, ONES = [0, 0], [1, 1]
PRODUCTS = {
    "conv2d": (
        node("aten::conv2d", (2, 8, 5, 3), (2, 6, 7, 5), (8, 3, 3, 3), None, ONES, PAIR, ONES, 2),
        lambda: torch.conv2d(torch.rand(2, 6, 7, 5), torch.rand(8, 3, 3, 3), groups=2),
    ),
    "conv_transpose2d": (
        node("aten::conv_transpose2d.input", (1, 5, 9, 6), (1, 4, 4, 3), (4, 5, 3, 2), None, [2, 2], PAIR, PAIR, 1),
        lambda: torch.conv_transpose2d(torch.rand(1, 4, 4, 3), torch.rand(4, 5, 3, 2), stride=2),
    ),
    "linear": (
        node("aten::linear", (2, 3, 7), (2, 3, 5), (7, 5), None),
        lambda: torch.nn.functional.linear(torch.rand(2, 3, 5), torch.rand(7, 5)),
    ),
    "bmm": (node("aten::bmm", (3, 4, 5), (3, 4, 6), (3, 6, 5)), lambda: torch.rand(3, 4, 6) @ torch.rand(3, 6, 5)),
    "addmm": (
        node("aten::addmm", (4, 5), (5,), (4, 6), (6, 5), 1, 1),
        lambda: torch.addmm(torch.rand(5), torch.rand(4, 6), torch.rand(6, 5)),
    ),
    "addbmm": (
        node("aten::addbmm", (4, 5), (5,), (3, 4, 6), (3, 6, 5), 1, 1),
        lambda: torch.rand(3, 4, 6) @ torch.rand(3, 6, 5),
    ),
    "cell": (
        node("aten::rnn_tanh_cell", (4, 7), (4, 5), (4, 7), (7, 5), (7, 7), None, None),
        lambda: torch.nn.RNNCell(5, 7)(torch.rand(4, 5), torch.rand(4, 7)),
    ),
    "attention": (
        node("aten::scaled_dot_product_attention", (1, 2, 7, 8), (1, 2, 7, 8), (1, 2, 9, 8), (1, 2, 9, 8)),
        lambda: torch.rand(1, 2, 7, 8) @ torch.rand(1, 2, 8, 9) @ torch.rand(1, 2, 9, 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_count_as_torch_counts(name: str) -> None:
    ours, run = PRODUCTS[name]
    with FlopCounterMode(display=False) as counter:
        run()
    assert flops_of(ours) == counter.get_total_flops() > 0


def test_other_operators() -> None:
    assert flops_of(node("aten::relu", (3, 4), (3, 4))) == 12
    assert flops_of(node("aten::add.Tensor", (3, 4), (3, 1), (1, 4), 1)) == 12
    assert flops_of(node("aten::sum", (), (3, 4), None)) == 12
    assert flops_of(node("aten::max_pool2d", (1, 2, 4, 4), (1, 2, 8, 8), [3, 3], [2, 2], ONES, ONES, False)) == 32 * 9
    assert flops_of(node("aten::transpose.int", (4, 3), (3, 4), 0, 1)) == 0
    assert flops_of(node("aten::embedding", (5, 8), (1000, 8), (5,))) == 0
    assert flops_of(node("aten::constant_pad_nd", (5, 8), (3, 8), [0, 0, 1, 1], 0)) == 0


def test_every_product_that_is_lowered_has_a_count() -> None:
    """One without would count its results alone, a thousandth of what it computes."""
    load_lowerings()
    uncounted = [
        name
        for name in supported_operators()
        if Trait.PRODUCT in record_of(name).traits
        and not record_of(name).contracted
        and not {"query", "batch1", "w_ih"} & set(argument_names(name))
        and "prepack" not in name  # counted as the layer that it stands for
    ]
    assert not uncounted
