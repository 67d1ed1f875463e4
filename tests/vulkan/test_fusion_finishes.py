"""Norms and softmax that finish what they compute: as text, where not, and what the device makes of them."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import run_graph
from straight_lines import line_of
from torch import Tensor

from mobopt.ir import Graph, print_graph, verify_graph
from mobopt.ops.fake_quantize import fake_quantized
from mobopt.runtimes.vulkan.compile.fusion_finishes import fold_finishes
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings

load_lowerings()

ROUND = "mobopt::fake_quantize(%n, 0.05, -120, 135, None)"


def graph_of(norm: str, sizes: str, rounding: str = ROUND, returned: str = "%y", **tensors: Tensor) -> Graph:
    kind = f"Float({sizes})"
    return line_of([f"%n : {kind} = {norm}", f"%y : {kind} = {rounding}"], tensors, f"%x : {kind}", returned)


def test_the_text() -> None:
    graph = graph_of("aten::layer_norm(%x, [16], None, None, 1e-05, True)", "5, 16")
    fold_finishes(graph)
    verify_graph(graph)
    assert print_graph(graph, digests=False).rstrip() == textwrap.dedent(
        """\
        graph(%x : Float(5, 16)):
          %y : Float(5, 16) = mobopt::finished()
            block0():
              %n : Float(5, 16) = aten::layer_norm(%x, [16], None, None, 1e-05, True)
              %0 : Float(5, 16) = mobopt::fake_quantize(%n, 0.05, -120, 135, None)
              -> (%0)
          return (%y)"""
    )


def test_the_text_of_an_activation_that_is_rounded() -> None:
    kind = "Float(2, 6, 5)"
    lines = [
        f"%n : {kind} = aten::group_norm(%x, 3, None, None, 1e-05, True)",
        f"%a : {kind} = aten::silu(%n)",
        f"%y : {kind} = mobopt::fake_quantize(%a, 0.05, -120, 135, None)",
    ]
    graph = line_of(lines, {}, f"%x : {kind}", "%y")
    fold_finishes(graph)
    verify_graph(graph)
    assert print_graph(graph, digests=False).rstrip() == textwrap.dedent(
        """\
        graph(%x : Float(2, 6, 5)):
          %y : Float(2, 6, 5) = mobopt::finished()
            block0():
              %n : Float(2, 6, 5) = aten::group_norm(%x, 3, None, None, 1e-05, True)
              %a : Float(2, 6, 5) = aten::silu(%n)
              %0 : Float(2, 6, 5) = mobopt::fake_quantize(%a, 0.05, -120, 135, None)
              -> (%0)
          return (%y)"""
    )


INSTANCE = "aten::instance_norm(%x, None, None, None, None, True, 0.1, 1e-05, False)"
NORMS = {
    "layer_norm": ("aten::layer_norm(%x, [13], None, None, 1e-05, True)", (7, 13)),
    "whole vec4s": ("aten::layer_norm(%x, [24], %gain, %shift, 1e-05, True)", (3, 11, 24)),
    "long rows": ("aten::layer_norm(%x, [40003], None, None, 1e-05, True)", (1, 40003)),
    "rms_norm": ("aten::rms_norm(%x, [24], %gain, 1e-05)", (5, 24)),
    "rms_norm of long rows": ("aten::rms_norm(%x, [40003], None, 1e-05)", (1, 40003)),
    "group_norm": ("aten::group_norm(%x, 3, None, None, 1e-05, True)", (2, 6, 5, 7)),
    "long groups": ("aten::group_norm(%x, 2, None, None, 1e-05, True)", (1, 8, 149, 151)),
    "instance_norm": (INSTANCE, (2, 6, 5, 7)),
    "softmax": ("aten::softmax.int(%x, -1, None)", (3, 5, 17)),
    "softmax of columns": ("aten::softmax.int(%x, 1, None)", (3, 17, 5)),
    "softmax of long rows": ("aten::softmax.int(%x, -1, None)", (1, 40003)),
    "log_softmax": ("aten::log_softmax.int(%x, -1, None)", (5, 24)),
}


@pytest.mark.parametrize("is_inverted", [False, True])
@pytest.mark.parametrize("norm, sizes", NORMS.values(), ids=NORMS)
def test_results(device: Any, norm: str, sizes: tuple[int, ...], is_inverted: bool) -> None:
    """Those of two dispatches; an element halfway between two steps may take the other one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sizes, generator=generator)
    vectors = {name: torch.randn(24, generator=generator) for name in ("gain", "shift") if f"%{name}" in norm}
    text = ", ".join(map(str, sizes))
    alone = run_graph(device, graph_of(norm, text, returned="%n", **vectors), [x])[0]
    scale = float(alone.abs().max()) / 55
    inverse = str(1 / scale) if is_inverted else "None"
    rounding = f"mobopt::fake_quantize(%n, {scale}, -50, 60, {inverse})"
    graph = graph_of(norm, text, rounding, **vectors)
    fold_finishes(graph)
    verify_graph(graph)
    assert [node.op for node in graph.block.nodes if node.op != "prim::Constant"] == ["mobopt::finished"]
    found = run_graph(device, graph, [x])[0]
    expected = fake_quantized(alone, scale, -50, 60, float(inverse) if is_inverted else None)
    steps = ((found - expected) / scale).abs()
    assert float(steps.max()) < 1.01
    assert int((steps > 0.01).sum()) <= x.numel() // 1000
    assert len(expected.unique()) > 5


ACTIVATIONS = {
    "silu": "aten::silu(%n)",
    "gelu": 'aten::gelu(%n, "none")',
    "relu": "aten::relu(%n)",
    "clamp": "aten::clamp(%n, -0.3, 0.9)",
    "leaky_relu": "aten::leaky_relu(%n, 0.125)",
}


@pytest.mark.parametrize("kind", ["cpu", "discrete"])
@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
@pytest.mark.parametrize("norm", [name for name in NORMS if "softmax" not in name])
def test_activations(device: Any, monkeypatch: pytest.MonkeyPatch, norm: str, activation: str, kind: str) -> None:
    monkeypatch.setattr(device, "info", replace(device.info, kind=kind, cores=6))
    norm, sizes = NORMS[norm]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sizes, generator=generator)
    vectors = {name: torch.randn(24, generator=generator) for name in ("gain", "shift") if f"%{name}" in norm}
    text = ", ".join(map(str, sizes))
    expected = run_graph(device, graph_of(norm, text, activation, **vectors), [x])[0]
    graph = graph_of(norm, text, activation, **vectors)
    fold_finishes(graph)
    verify_graph(graph)
    assert [node.op for node in graph.block.nodes if node.op != "prim::Constant"] == ["mobopt::finished"]
    torch.testing.assert_close(run_graph(device, graph, [x])[0], expected, rtol=1e-6, atol=2e-6)


def test_nan_stays(device: Any) -> None:
    x = torch.randn(1, 2, 5, 7, generator=torch.Generator().manual_seed(0))
    x[0, 1, 2, 3] = torch.nan
    for activation in ACTIVATIONS.values():
        graph = graph_of(INSTANCE, "1, 2, 5, 7", activation)
        fold_finishes(graph)
        found = run_graph(device, graph, [x])[0]
        assert found[0, 1].isnan().all() and not found[0, 0].isnan().any()


@pytest.mark.parametrize(
    "rounding, returned",
    [
        (ROUND, "%y, %n"),
        ("mobopt::fake_quantize(%n, 0.05, -4000, 135, None)", "%y"),
        ("aten::relu(%n)", "%y"),
    ],
    ids=["read by others", "too many steps", "another function"],
)
def test_where_not(rounding: str, returned: str) -> None:
    graph = graph_of("aten::softmax.int(%x, -1, None)", "5, 16", rounding, returned)
    fold_finishes(graph)
    assert len(graph.block.nodes) == 2


def test_gates_stay_apart() -> None:
    gate = 'mobopt::rounded_gate(%n, "sigmoid", 0.00390625, 0, 255, None)'
    graph = graph_of("aten::layer_norm(%x, [16], None, None, 1e-05, True)", "5, 16", gate)
    fold_finishes(graph)
    assert len(graph.block.nodes) == 2


def test_the_host_and_halves_keep_what_they_compute() -> None:
    norm = "aten::softmax.int(%x, -1, None)"
    graph = graph_of(norm, "5, 16")
    fold_finishes(graph, on_host=[graph.block.nodes[0]])
    fold_finishes(graph, on_host=[graph.block.nodes[1]])
    fold_finishes(graph, is_apart=lambda node: node.op == "aten::softmax")
    assert len(graph.block.nodes) == 2
    graph.block.nodes[0].output.type = replace(graph.block.nodes[0].output.tensor_type, dtype=torch.float16)
    fold_finishes(graph)
    assert len(graph.block.nodes) == 2
