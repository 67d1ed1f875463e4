"""Metal: packed operators, what is rewritten for its kernels, and copies to the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from golden_comparison import NETS, assert_equal_contexts, contexts, genuine, ours, tensor_operators
from pass_harness import apply, expect, operators, optimise, program_of
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program
from mobopt.ops.contexts import MetalConv2dOpContext, MetalLinearOpContext
from mobopt.options import Settings
from mobopt.passes.copy_to_host import CopyToHost
from mobopt.passes.fuse_clamp import FuseClamp
from mobopt.passes.insert_prepack import InsertPrepack
from mobopt.passes.manager import run_passes
from mobopt.passes.metal_rewrites import MetalRewrites
from mobopt.passes.pipelines import pipeline_for
from mobopt.runtimes.cpu import Interpreter

METAL = pipeline_for(Settings("metal", legalize="off"))
CONV = MetalConv2dOpContext.qualified_name
LINEAR = MetalLinearOpContext.qualified_name
HEAD = """
graph(%self : __torch__.M,
      %x : Tensor):
  %w : Tensor = prim::Constant[value=<Tensor>]()
  %m : Tensor = prim::Constant[value=<Tensor>]()
  %t : Tensor = prim::Constant[value=<Tensor>]()
  %k : Tensor = prim::Constant[value=<Tensor>]()
  %row : Tensor = prim::Constant[value=<Tensor>]()
  %none : NoneType = prim::Constant()
  %no : bool = prim::Constant[value=0]()
  %yes : bool = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  %one : int = prim::Constant[value=1]()
  %two : int = prim::Constant[value=2]()
  %half : float = prim::Constant[value=0.5]()
  %six : int = prim::Constant[value=6]()
  %ones : int[] = prim::Constant[value=[1, 1]]()
  %zeros : int[] = prim::Constant[value=[0, 0]]()
  %cpu : Device = prim::Constant[value="cpu"]()
"""
CONSTANTS: dict[str, Any] = {
    "w": torch.rand(3, 3, 1, 1),
    "m": torch.rand(4, 3),
    "t": torch.rand(3, 4).t(),
    "k": torch.rand(3, 4),
    "row": torch.rand(1, 4),
}


def program(body: str, result: str = "%y") -> Program:
    """A program of these lines, which returns a value."""
    return program_of(f"{HEAD}{body}\n  return ({result})", CONSTANTS)


def test_conv2d_is_packed_and_run() -> None:
    line = "  %y : Tensor = aten::conv2d(%x, %w, %none, %ones, %zeros, %ones, %one)"
    after, _ = apply(InsertPrepack("metal"), program(line))
    assert after == expect(
        f"""
        %1 : {CONV} = metal_prepack::conv2d_prepack(%w, %none, %ones, %zeros, %ones, %one, %0, %0)
        %y.1 : Tensor = metal_prepack::conv2d_run(%x, %1)
        return (%y.1)
        """
    )


def test_linear_is_packed_with_its_weight_as_it_is() -> None:
    packed = program("  %y : Tensor = aten::linear(%x, %m, %none)")
    after, _ = apply(InsertPrepack("metal"), packed)
    assert after == expect(
        f"""
        %1 : {LINEAR} = metal_prepack::linear_prepack(%m, %none, %0, %0)
        %y.1 : Tensor = metal_prepack::linear_run(%x, %1)
        return (%y.1)
        """
    )


def test_weights_are_made_contiguous_once() -> None:
    body = """  %a : Tensor = aten::linear(%x, %t, %none)
  %b : Tensor = aten::linear(%x, %t, %none)
  %y : Tensor = aten::add(%a, %b, %one)"""
    packed = program(body)
    apply(InsertPrepack("metal"), packed)
    weights = [node.inputs[0].constant for node in packed.methods["forward"].walk() if "prepack" in node.op[15:]]
    assert [weight.is_contiguous() for weight in weights] == [True, True]
    assert torch.equal(weights[0], CONSTANTS["t"])
    assert weights[0] is weights[1]


@pytest.mark.parametrize(
    ("call", "bounds"),
    [
        ("relu(%y)", (0.0, None)),
        ("relu_(%y)", (0.0, None)),
        ("hardtanh(%y, %zero, %two)", (0.0, 2.0)),
        ("relu6(%y)", (0.0, 6.0)),
    ],
)
@pytest.mark.parametrize(
    ("layer", "sizes"),
    [
        ("aten::linear(%x, %m, %none)", (5, 3)),
        ("aten::conv2d(%x, %w, %none, %ones, %zeros, %ones, %one)", (1, 3, 5, 7)),
    ],
)
def test_both_layers_take_a_clamp(layer: str, sizes: tuple[int, ...], call: str, bounds: tuple[Any, Any]) -> None:
    source = program(f"  %y : Tensor = {layer}\n  %z : Tensor = aten::{call}", "%z")
    x = torch.randn(sizes)
    expected = Interpreter(source).run("forward", [x])
    run_passes(source, [InsertPrepack("metal")], check=True)
    apply(FuseClamp(), source)
    create, run = source.methods["forward"].block.nodes
    assert (create.op.partition("::")[0], run.op[-4:]) == ("metal_prepack", "_run")
    assert tuple(value.constant for value in create.inputs[-2:]) == bounds
    assert torch.equal(Interpreter(source).run("forward", [x]), expected)


def test_a_clamp_with_one_end_stays() -> None:
    """Metal's kernels would ignore it."""
    layer = "aten::linear(%x, %m, %none)"
    source = program(f"  %y : Tensor = {layer}\n  %z : Tensor = aten::clamp(%y, %none, %half)", "%z")
    run_passes(source, [InsertPrepack("metal")], check=True)
    _, notes = apply(FuseClamp(), source)
    assert [node.op for node in source.methods["forward"].block.nodes][-1] == "aten::clamp"
    assert any("with two ends" in note for note in notes)


FORMATS = [
    "aten::contiguous(%x, %two)",
    "aten::contiguous(%x, %zero)",
    "aten::to(%x, %none, %none, %none, %none, %no, %no, %two)",
    "aten::to(%x, %six, %zero, %cpu, %none, %no, %no, %two)",
]


@pytest.mark.parametrize("call", FORMATS)
def test_memory_formats_are_dropped(call: str) -> None:
    source = program(f"  %a : Tensor = {call}\n  %y : Tensor = aten::relu(%a)")
    for node in source.methods["forward"].walk():
        if node.op == "aten::to":
            node.overload = "dtype_layout"
    after, notes = apply(MetalRewrites(), source)
    assert after == "%y : Tensor = aten::relu(%x)\nreturn (%y)\n"
    name = call.partition("(")[0]
    assert notes == [f"metal_rewrites: {name} %a its memory format is dropped: Metal has one layout"]


@pytest.mark.parametrize(
    ("call", "overload", "kept"),
    [
        ("aten::to(%x, %six, %no, %no, %two)", "dtype", "aten::to(%x, %six, %no, %no, %0)"),
        ("aten::clone(%x, %two)", "", "aten::clone(%x, %0)"),
        (
            "aten::to(%x, %six, %none, %none, %none, %no, %no, %two)",
            "dtype_layout",
            "aten::to(%x, %six, %none, %none, %none, %no, %no, %0)",
        ),
    ],
)
def test_what_does_more_loses_its_format_alone(call: str, overload: str, kept: str) -> None:
    source = program(f"  %y : Tensor = {call}")
    source.methods["forward"].block.nodes[0].overload = overload
    after, _ = apply(MetalRewrites(), source)
    assert after == f"%y : Tensor = {kept}\nreturn (%y)\n"


def test_views_become_reshapes_where_a_format_went() -> None:
    body = """  %p : Tensor = aten::transpose(%x, %one, %two)
  %a : Tensor = aten::contiguous(%p, %zero)
  %s : int[] = prim::Constant[value=[2, -1]]()
  %y : Tensor = aten::view(%a, %s)"""
    source = program(body)
    source.methods["forward"].block.nodes[0].overload = "int"
    x = torch.randn(2, 3, 5)
    expected = Interpreter(source).run("forward", [x])
    after, _ = apply(MetalRewrites(), source)
    assert after == expect(
        """
        %p : Tensor = aten::transpose(%x, %one, %two)
        %y.1 : Tensor = aten::reshape(%p, %s)
        return (%y.1)
        """
    )
    assert torch.equal(Interpreter(source).run("forward", [x]), expected)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("  %b : Tensor = aten::relu_(%a)\n  %y : Tensor = aten::neg(%b)", "%a is written to in place"),
        (
            "  %s : int[] = aten::stride(%a)\n  %y : Tensor = aten::reshape(%a, %s)",
            "aten::stride depends on strides; rewrite that in the model",
        ),
    ],
)
def test_formats_that_stay(body: str, reason: str) -> None:
    after, notes = apply(MetalRewrites(), program(f"  %a : Tensor = aten::contiguous(%x, %two)\n{body}"))
    assert "aten::contiguous(%x, %two)" in after
    assert notes == [f"metal_rewrites: aten::contiguous %a its memory format stays: {reason}"]


@pytest.mark.parametrize(("beta", "alpha"), [("%one", "%half"), ("%half", "%two"), ("%zero", "%one"), ("%one", "%one")])
def test_addmm_with_factors_is_linear(beta: str, alpha: str) -> None:
    source = program(f"  %y : Tensor = aten::addmm(%row, %x, %k, {beta}, {alpha})")
    x = torch.randn(5, 3)
    expected = Interpreter(source).run("forward", [x])
    _, notes = apply(MetalRewrites(), source)
    assert operators(source) == ["aten::linear"]
    assert notes == ["metal_rewrites: aten::addmm %y rewritten as linear"]
    torch.testing.assert_close(Interpreter(source).run("forward", [x]), expected, rtol=1e-6, atol=1e-6)


def test_addmm_with_computed_operands_stays() -> None:
    after, notes = apply(MetalRewrites(), program("  %y : Tensor = aten::addmm(%row, %x, %x, %one, %half)"))
    assert (after, notes) == ("%y : Tensor = aten::addmm(%row, %x, %x, %one, %half)\nreturn (%y)\n", [])


def test_one_size_is_asked_for_by_itself() -> None:
    source = program("  %s : int[] = aten::size(%x)\n  %n : int = aten::__getitem__(%s, %one)", "%n")
    source.methods["forward"].block.nodes[1].overload = "t"
    after, _ = apply(MetalRewrites(), source)
    assert after == "%s : int[] = aten::size(%x)\n%n.1 : int = aten::size(%x, %one)\nreturn (%n.1)\n"
    assert Interpreter(source).run("forward", [torch.rand(5, 7)]) == 7


@pytest.mark.parametrize(
    "between", ["  %z : int[] = aten::append(%s, %one)", "  %z : Tensor = aten::unsqueeze_(%x, %zero)"]
)
def test_sizes_that_change_are_taken_from_the_list(between: str) -> None:
    body = f"  %s : int[] = aten::size(%x)\n{between}\n  %n : int = aten::__getitem__(%s, %one)"
    source = program(body, "%n")
    nodes = source.methods["forward"].block.nodes
    nodes[1].overload, nodes[2].overload = ("t" if "append" in between else ""), "t"
    after, _ = apply(MetalRewrites(), source)
    assert "aten::__getitem__(%s, %one)" in after


RANKS = """  %a : Tensor = aten::conv2d(%x, %w, %none, %ones, %zeros, %ones, %one)
  %b : Tensor = aten::relu(%a)
  %c : Tensor = aten::add(%b, %x, %one)
  %d : int = aten::dim(%c)
"""


@pytest.mark.parametrize(
    ("comparison", "outcome"),
    [
        ("gt(%d, %two)", True),
        ("lt(%two, %d)", True),
        ("le(%d, %two)", False),
        ("eq(%two, %d)", False),
        ("ne(%d, %two)", True),
    ],
)
def test_checks_of_a_rank_are_known(comparison: str, outcome: bool) -> None:
    source = program(f"{RANKS}  %k2 : bool = aten::{comparison}", "%k2")
    nodes = source.methods["forward"].block.nodes
    nodes[2].overload, nodes[4].overload = "Tensor", "int"
    _, notes = apply(MetalRewrites(), source)
    (result,) = source.methods["forward"].block.returns.inputs
    assert (result.is_constant, result.constant) == (True, outcome)
    assert notes[0].endswith(f"is {outcome} for tensors of all ranks that can come here")


@pytest.mark.parametrize("comparison", ["gt(%d, %six)", "eq(%d, %six)", "gt(%d, %one)"])
def test_checks_of_a_rank_that_only_the_input_tells_stay(comparison: str) -> None:
    source = program(f"  %d : int = aten::dim(%x)\n  %c : bool = aten::{comparison}", "%c")
    source.methods["forward"].block.nodes[1].overload = "int"
    after, _ = apply(MetalRewrites(), source)
    assert f"aten::{comparison}" in after


def test_returned_tensors_are_copied_to_the_host() -> None:
    body = """  %a : Tensor = aten::relu(%x)
  %b : Tensor = aten::neg(%a)
  %l : Tensor[] = prim::ListConstruct(%a, %b)
  %y : (Tensor, Tensor[], Tensor) = prim::TupleConstruct(%b, %l, %x)"""
    source = program(body)
    after, notes = apply(CopyToHost(), source)
    assert after == expect(
        """
        %a : Tensor = aten::relu(%x)
        %b : Tensor = aten::neg(%a)
        %b.host : Tensor = metal::copy_to_host(%b)
        %a.host : Tensor = metal::copy_to_host(%a)
        %l.1 : Tensor[] = prim::ListConstruct(%a.host, %b.host)
        %y.1 : (Tensor, Tensor[], Tensor) = prim::TupleConstruct(%b.host, %l.1, %x)
        return (%y.1)
        """
    )
    assert notes == ["copy_to_host: %b is copied to the host", "copy_to_host: %a is copied to the host"]


def test_lists_of_an_operator_are_named() -> None:
    body = "  %y : Tensor[] = aten::unbind(%x, %zero)"
    source = program(body)
    source.methods["forward"].block.nodes[0].overload = "int"
    _, notes = apply(CopyToHost(), source)
    assert notes == ["copy_to_host: %y is returned without copies: its tensors are put together by aten::unbind"]


class Shuffle(nn.Module):
    """Everything that Metal does not take at once."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 9, 3, bias=False)
        self.norm = nn.BatchNorm2d(9)
        self.weight = nn.Parameter(torch.rand(9, 5))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = x.to(memory_format=torch.channels_last)
        x = torch.relu_(self.norm(self.conv(x)))
        batch, channels, height, width = x.shape
        x = x.view(batch, 3, channels // 3, height, width).transpose(1, 2).contiguous().view(batch, -1, height, width)
        rows = x.permute(0, 2, 3, 1).contiguous(memory_format=torch.contiguous_format).view(-1, channels)
        return [torch.mm(rows, self.weight), torch.addmm(self.weight[0], rows, self.weight, beta=0.5, alpha=2.0)]


@pytest.mark.parametrize("how", ["script", "trace"])
@pytest.mark.parametrize("sizes", [(1, 6, 7, 5), (2, 6, 11, 13)])
def test_numbers_of_a_module_with_formats(sizes: tuple[int, ...], how: str) -> None:
    found, _ = optimise(Shuffle(), [torch.randn(sizes)], METAL, how)
    names = set(operators(found))
    assert {"metal_prepack::conv2d_run", "metal_prepack::linear_run", "aten::reshape"} <= names
    assert not {"aten::contiguous", "aten::view", "aten::mm", "aten::addmm", "aten::to", "aten::relu_"} & names


def test_a_blocklist_leaves_the_layers() -> None:
    module = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Dropout())
    x = torch.randn(1, 3, 7, 5)
    found, _ = optimise(module, [x], METAL.without({"INSERT_FOLD_PREPACK_OPS"}))
    assert operators(found) == ["aten::conv2d", "aten::relu"]
    found, _ = optimise(module, [x], METAL.without({"fuse_clamp", "REMOVE_DROPOUT"}), "trace")
    assert operators(found) == ["prim::GetAttr", "metal_prepack::conv2d_run", "aten::relu", "aten::dropout"]


@pytest.mark.parametrize("release", ["pt1.13.1", "pt2.13.0"])
@pytest.mark.parametrize("net", NETS)
def test_as_genuine_builds_have_it(net: str, release: str) -> None:
    found, expected = ours(release, net, Settings("metal")), genuine(release, net, "metal.ptl")
    assert_equal_contexts(contexts(found), contexts(expected))
    assert not tensor_operators(found) - tensor_operators(expected)
    assert [name for name, item in found.attributes.items() if item.value is True] == ["optimized_for_metal"]


TUTORIAL = {
    "aten::adaptive_avg_pool2d",
    "aten::add.Tensor",
    "aten::reshape",
    "aten::size.int",
    "metal::copy_to_host",
    "metal_prepack::conv2d_run",
    "metal_prepack::linear_run",
}
"""Operators of a MobileNetV2 in PyTorch's tutorial of the iOS GPU, where linear was addmm still."""


@pytest.mark.parametrize("release", ["pt1.13.1", "pt2.13.0"])
def test_operators_of_the_tutorial(release: str) -> None:
    found = ours(release, "mobilenetv2", Settings("metal", copy_to_host=True))
    assert {node.qualified_op for node in found.methods["forward"].walk() if node.op[:6] != "prim::"} == TUTORIAL


def test_methods_share_a_context() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

        @torch.jit.export
        def twice(self, x: Tensor) -> Tensor:
            return self.layer(x) * 2

    found: Program = program_from_script_module(torch.jit.script(Two().eval()), ["twice"])
    run_passes(found, METAL, check=True)
    assert sum(isinstance(item.value, MetalLinearOpContext) for item in found.attributes.values()) == 1
