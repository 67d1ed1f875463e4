"""Tensors times a rounded function of them, as static quantisation writes SiLU: what is found, what products compute.

Their numbers in epilogues are among those of test_fake_quantize.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import run_graph
from test_fake_quantize import SIZES, F, graph_of

from mobopt.ir import print_graph, verify_graph
from mobopt.ops.fake_quantize import rounded_gate
from mobopt.runtimes.vulkan.compile.fake_quantize import find_rounded_gates
from mobopt.runtimes.vulkan.kernels.activation import activation_of

GATED = """
    %s = aten::sigmoid(%x)
    %r = mobopt::fake_quantize(%s, 0.004, 0, 255, None)
    %y = aten::mul.Tensor(%x, %r)
"""


@pytest.mark.parametrize("body", [GATED, GATED.replace("%x, %r", "%r, %x"), GATED.replace("sigmoid", "hardsigmoid")])
def test_rounded_gates_are_one_operator(device: Any, body: str) -> None:
    """Computed by itself, too: gates of any bounds and scales."""
    body = body.replace("0, 255", "10, 200")
    x = 3 * torch.randn(SIZES, generator=torch.Generator().manual_seed(0))
    before = run_graph(device, graph_of(body), [x, x])[0]
    graph = graph_of(body)
    find_rounded_gates(graph)
    verify_graph(graph)
    (node,) = graph.block.nodes
    gate = "hardsigmoid" if "hardsigmoid" in body else "sigmoid"
    assert f'%y : {F} = mobopt::rounded_gate(%x, "{gate}", 0.004, 10, 200, None)' in print_graph(graph)
    assert activation_of(node) is None
    torch.testing.assert_close(run_graph(device, graph, [x, x])[0], before, rtol=0, atol=1e-6)
    torch.testing.assert_close(rounded_gate(x, *node.args[1:]), before, rtol=0, atol=0.004 * 12)


@pytest.mark.parametrize(
    "body, returned",
    [
        (GATED, "%y, %r"),
        (GATED, "%y, %s"),
        (GATED.replace("%x, %r", "%z, %r"), "%y"),
        (GATED.replace("aten::sigmoid", "aten::tanh"), "%y"),
        (GATED.replace("%y = aten::mul.Tensor(%x, %r)", "%y = aten::add.Tensor(%x, %r, 1)"), "%y"),
    ],
    ids=["rounded read by others", "gate read by others", "of another", "another function", "a sum"],
)
def test_no_rounded_gates(body: str, returned: str) -> None:
    graph = graph_of(body, returned)
    find_rounded_gates(graph)
    assert len(graph.block.nodes) == 3


@pytest.mark.parametrize(
    "steps, is_known",
    [
        (("0.00390625, 0, 255, 256.0", "0.3, -10, 120, None"), True),
        (("0.003, 0, 255, None", "0.25, -10, 120, 4.0"), True),
        (("0.003, 0, 255, 333.3", "0.25, -10, 120, 4.0"), False),
        (("0.003, 0, 254, None", "0.25, -10, 120, 4.0"), False),
        (("0.003, 0, 255, None", "0.3, -10, 120, 3.33"), False),
    ],
)
def test_which_gates_products_compute(steps: tuple[str, str], is_known: bool) -> None:
    """Those of bytes, that are rounded by divisions."""
    body = f"""
        %g = mobopt::rounded_gate(%x, "sigmoid", {steps[0]})
        %y = mobopt::fake_quantize(%g, {steps[1]})
    """
    gate, rounding = map(activation_of, graph_of(body).block.nodes)
    assert (gate is not None and rounding is not None and gate.followed_by(rounding) is not None) == is_known
