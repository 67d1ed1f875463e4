"""XNNPACK: packed operators of the CPU, as genuine builds of 1.13.1 wrote them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from golden_comparison import NETS, assert_equal_contexts, contexts, genuine, ours, tensor_operators
from pass_harness import apply, expect, operators, optimise, program_of, randomize_norms
from torch import nn

from mobopt.ir import Program
from mobopt.ops.contexts import XnnpackConv2dOpContext, XnnpackLinearOpContext, XnnpackTransposeConv2dOpContext
from mobopt.options import Settings
from mobopt.passes.fold_prepack import FoldPrepack
from mobopt.passes.fuse_clamp import FuseClamp
from mobopt.passes.insert_prepack import InsertPrepack
from mobopt.passes.manager import run_passes
from mobopt.passes.pipelines import pipeline_for
from mobopt.runtimes.cpu import Interpreter

XNNPACK = pipeline_for(Settings("cpu", xnnpack=True))
HEAD = """
graph(%self : __torch__.M,
      %x : Tensor):
  %w : Tensor = prim::Constant[value=<Tensor>]()
  %m : Tensor = prim::Constant[value=<Tensor>]()
  %b : Tensor = prim::Constant[value=<Tensor>]()
  %none : NoneType = prim::Constant()
  %one : int = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  %six : float = prim::Constant[value=6.0]()
  %ones : int[] = prim::Constant[value=[1, 1]]()
  %twos : int[] = prim::Constant[value=[2, 2]]()
  %zeros : int[] = prim::Constant[value=[0, 0]]()
"""
CONSTANTS: dict[str, Any] = {"w": torch.rand(3, 3, 2, 1), "m": torch.rand(4, 3), "b": torch.rand(3)}
CONV = "  %y : Tensor = aten::conv2d(%x, %w, %b, %ones, %zeros, %ones, %one)\n"
TRANSPOSED = "  %y : Tensor = aten::conv_transpose2d(%x, %w, %b, %twos, %zeros, %ones, %one, %ones)\n"
LINEAR = "  %y : Tensor = aten::linear(%x, %m, %none)\n"


def program(body: str, result: str = "%y") -> Program:
    """A program of these lines, which returns a value."""
    made = program_of(f"{HEAD}{body}  return ({result})", CONSTANTS)
    for node in made.methods["forward"].walk():
        if node.op == "aten::conv_transpose2d":
            node.overload = "input"
    return made


@pytest.mark.parametrize(
    ("layer", "kind", "context", "arguments"),
    [
        (CONV, "conv2d_clamp", XnnpackConv2dOpContext, "%w, %b, %ones, %zeros, %ones, %one, %0, %0"),
        (
            TRANSPOSED,
            "conv2d_transpose_clamp",
            XnnpackTransposeConv2dOpContext,
            "%w, %b, %twos, %zeros, %ones, %ones, %one, %0, %0",
        ),
        (LINEAR, "linear_clamp", XnnpackLinearOpContext, "%m, %none, %0, %0"),
    ],
)
def test_layers_are_packed_and_run(layer: str, kind: str, context: type, arguments: str) -> None:
    source = program(layer)
    x = torch.randn(2, 3, 5, 3)
    expected = Interpreter(source).run("forward", [x])
    after, _ = apply(InsertPrepack("xnnpack"), source)
    assert after == expect(
        f"""
        %1 : {context.qualified_name} = prepacked::{kind}_prepack({arguments})
        %y.1 : Tensor = prepacked::{kind}_run(%x, %1)
        return (%y.1)
        """
    )
    apply(FoldPrepack(), source)
    assert operators(source) == ["prim::GetAttr", f"prepacked::{kind}_run"]
    assert isinstance(source.attributes["prepack_folding_forward._jit_pass_packed_weight_0"].value, context)
    assert torch.equal(Interpreter(source).run("forward", [x]), expected)


@pytest.mark.parametrize("layer", [CONV, TRANSPOSED])
@pytest.mark.parametrize(("call", "bounds"), [("relu_(%y)", [0.0, None]), ("hardtanh(%y, %one, %six)", [1.0, 6.0])])
def test_convolutions_take_a_clamp(layer: str, call: str, bounds: list[float | None]) -> None:
    source = program(f"{layer}  %z : Tensor = aten::{call}\n", "%z")
    x = torch.randn(1, 3, 5, 7)
    expected = Interpreter(source).run("forward", [x])
    run_passes(source, [InsertPrepack("xnnpack")], check=True)
    apply(FuseClamp(), source)
    create, _ = source.methods["forward"].block.nodes
    assert [value.constant for value in create.inputs[-2:]] == bounds
    assert torch.equal(Interpreter(source).run("forward", [x]), expected)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            f"{LINEAR}  %z : Tensor = aten::relu(%y)\n",
            "prepacked::linear_clamp_run %y.1: PyTorch's own files have XNNPACK's linear contexts without range",
        ),
        (
            f"{CONV}  %z : Tensor = aten::clamp(%y, %one, %one)\n",
            "prepacked::conv2d_clamp_run %y.1: the range would be a single number, which XNNPACK refuses",
        ),
    ],
)
def test_clamps_that_stay(body: str, reason: str) -> None:
    source = program(body, "%z")
    run_passes(source, [InsertPrepack("xnnpack")], check=True)
    _, notes = apply(FuseClamp(), source)
    assert len(operators(source)) == 3
    assert [note.partition(" not fused into ")[2] for note in notes] == [reason]


class Layers(nn.Module):
    """All that XNNPACK has operators for, and a conv1d, which becomes one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 7, (3, 2), stride=(2, 1), padding=(1, 0), bias=False)
        self.norm = nn.BatchNorm2d(7)
        self.up = nn.ConvTranspose2d(7, 5, 3, stride=2, output_padding=1)
        self.row = nn.Conv1d(5, 4, 3, padding=1)
        self.last = nn.Linear(4, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.relu6(self.norm(self.first(x)))
        y = torch.relu_(self.up(y))
        y = torch.relu(self.row(y.flatten(2)))
        return torch.relu(self.last(y.mean(2)) + 1)


@pytest.mark.parametrize("how", ["script", "trace"])
@pytest.mark.parametrize("sizes", [(1, 3, 7, 5), (2, 3, 11, 13)])
def test_numbers_of_all_layers(sizes: tuple[int, ...], how: str) -> None:
    found, _ = optimise(randomize_norms(Layers()), [torch.randn(sizes)], XNNPACK, how)
    runs = [op for op in operators(found) if op.startswith("prepacked::")]
    assert runs == [
        f"prepacked::{k}_run" for k in ("conv2d_clamp", "conv2d_transpose_clamp", "conv2d_clamp", "linear_clamp")
    ]
    ranges = [(item.output_min, item.output_max) for item in contexts(found) if hasattr(item, "output_min")]
    assert ranges[:2] == [(0.0, 6.0), (0.0, None)]


def test_a_blocklist_leaves_the_layers() -> None:
    module, x = Layers(), torch.randn(1, 3, 7, 5)
    found, _ = optimise(module, [x], XNNPACK.without({"INSERT_FOLD_PREPACK_OPS"}))
    assert not [op for op in operators(found) if op.startswith("prepacked::")]
    found, _ = optimise(module, [x], XNNPACK.without({"CONV_1D_TO_2D"}))
    assert "aten::conv1d" in operators(found)


@pytest.mark.parametrize("net", NETS)
def test_as_genuine_builds_have_it(net: str) -> None:
    found = ours("pt1.13.1", net, Settings("cpu", xnnpack=True, runtime="1.13"))
    expected = genuine("pt1.13.1", net, "cpu.ptl")
    assert_equal_contexts(contexts(found), contexts(expected))
    assert not tensor_operators(found) - tensor_operators(expected)
    assert [name for name, item in found.attributes.items() if item.value is True] == ["mobile_optimized"]


@pytest.mark.parametrize("net", NETS)
def test_without_xnnpack_there_are_only_operators_of_stock_builds(net: str) -> None:
    found = ours("pt1.13.1", net, Settings("cpu", runtime="1.13"))
    assert {op.partition("::")[0] for op in operators(found)} <= {"aten", "prim"}
