from typing import Any

import pytest
import torch
from pass_harness import apply, operators, optimise, program_of
from torch import nn

from mobopt.options import Settings
from mobopt.passes.canonicalize import Canonicalize, NameConvolutions
from mobopt.passes.pipelines import CPU, pipeline_for

AS_PYTORCH = pipeline_for(Settings("vulkan", legalize="off"))
"""Without a target, every layer is packed, whatever the sizes."""
HEAD = """
graph(%self : __torch__.M,
      %x : Tensor):
  %w : Tensor = prim::Constant[value=<Tensor>]()
  %t : Tensor = prim::Constant[value=<Tensor>]()
  %b : Tensor = prim::Constant[value=<Tensor>]()
  %none : NoneType = prim::Constant()
  %one : int = prim::Constant[value=1]()
  %two : int = prim::Constant[value=2]()
  %ones : int[] = prim::Constant[value=[1, 1]]()
  %zeros : int[] = prim::Constant[value=[0, 0]]()
  %false : bool = prim::Constant[value=0]()
  %true : bool = prim::Constant[value=1]()
  %same : str = prim::Constant[value="same"]()
  %valid : str = prim::Constant[value="valid"]()
"""
CONSTANTS: dict[str, Any] = {"w": torch.rand(4, 3, 2, 3), "t": torch.rand(5, 4), "b": torch.rand(4)}


def rewritten(body: str) -> tuple[str, list[str]]:
    return apply(Canonicalize(), program_of(HEAD + body, CONSTANTS))


@pytest.mark.parametrize(
    ("transposed", "after"),
    [
        ("%false", "%y : Tensor = aten::conv2d(%x, %w, %b, %ones, %zeros, %ones, %one)"),
        ("%true", "%y : Tensor = aten::conv_transpose2d(%x, %w, %b, %ones, %zeros, %zeros, %one, %ones)"),
    ],
)
@pytest.mark.parametrize(
    ("op", "flags"),
    [
        ("_convolution", ", %false, %false, %true, %true"),
        ("_convolution", ", %false, %false, %true"),
        ("convolution", ""),
    ],
)
def test_general_convolutions(op: str, flags: str, transposed: str, after: str) -> None:
    line = f"  %y : Tensor = aten::{op}(%x, %w, %b, %ones, %zeros, %ones, {transposed}, %zeros, %one{flags})\n"
    body, _ = rewritten(f"{line}  return (%y)")
    assert body.replace("%y.1", "%y") == f"{after}\nreturn (%y)\n"


def test_only_convolutions_are_named() -> None:
    text = """
      %c : Tensor = aten::_convolution(%x, %w, %b, %ones, %zeros, %ones, %false, %zeros, %one, %false, %false, %true)
      %y : Tensor = aten::relu6(%c)
      return (%y)"""
    body, _ = apply(NameConvolutions(), program_of(HEAD + text, CONSTANTS))
    named = "%c.1 : Tensor = aten::conv2d(%x, %w, %b, %ones, %zeros, %ones, %one)\n%y : Tensor = aten::relu6(%c.1)"
    assert body == f"{named}\nreturn (%y)\n"


def test_convolution_with_computed_stride_stays() -> None:
    text = """
      %n : int = aten::dim(%x)
      %s : int[] = prim::ListConstruct(%n, %n)
      %y : Tensor = aten::convolution(%x, %w, %b, %s, %zeros, %ones, %false, %zeros, %one)
      return (%y)"""
    body, notes = rewritten(text)
    assert "aten::convolution" in body
    assert notes == ["canonicalize: aten::convolution %y stays: its stride is not constant"]


def test_valid_padding_is_zero() -> None:
    body, _ = rewritten("  %y : Tensor = aten::conv2d(%x, %w, %b, %ones, %valid, %ones, %one)\n  return (%y)")
    assert "aten::conv2d(%x, %w, %b, %ones, %padding, %ones, %one)" in body


def test_same_padding_of_an_even_kernel_pads_behind_first() -> None:
    program = program_of(
        f"{HEAD}  %y : Tensor = aten::conv2d(%x, %w, %b, %ones, %same, %ones, %one)\n  return (%y)", CONSTANTS
    )
    apply(Canonicalize(), program)
    pad, convolution = program.methods["forward"].block.nodes
    assert pad.op == "aten::constant_pad_nd"
    assert pad.inputs[1].constant == [0, 0, 0, 1]
    assert convolution.inputs[4].constant == [0, 1]


@pytest.mark.parametrize(
    "text",
    [
        "%y : Tensor = aten::addmm(%b, %x, %t, %one, %one)\n  return (%y)",
        "%p : Tensor = aten::matmul(%x, %t)\n  %y : Tensor = aten::add(%p, %b, %one)\n  return (%y)",
        "%p : Tensor = aten::matmul(%x, %t)\n  %y : Tensor = aten::add(%b, %p, %one)\n  return (%y)",
        "%p : Tensor = aten::mm(%x, %t)\n  %y : Tensor = aten::add_(%p, %b, %one)\n  return (%y)",
    ],
)
def test_products_with_bias_are_linear(text: str) -> None:
    program = program_of(f"{HEAD}  {text}", CONSTANTS)
    apply(Canonicalize(), program)
    (linear,) = program.methods["forward"].block.nodes
    assert linear.op == "aten::linear"
    assert torch.equal(linear.inputs[1].constant, CONSTANTS["t"].t())
    assert linear.inputs[2].constant is CONSTANTS["b"]


@pytest.mark.parametrize(
    ("text", "op"),
    [
        ("%y : Tensor = aten::addmm(%b, %x, %t, %one, %two)\n  return (%y)", "aten::addmm"),
        ("%y : Tensor = aten::addmm(%x, %x, %t, %one, %one)\n  return (%y)", "aten::addmm"),
        ("%y : Tensor = aten::matmul(%x, %x)\n  return (%y)", "aten::matmul"),
    ],
)
def test_other_products_stay(text: str, op: str) -> None:
    program = program_of(f"{HEAD}  {text}", CONSTANTS)
    apply(Canonicalize(), program)
    assert operators(program) == [op]


@pytest.mark.parametrize("factor", ["%two", "%one"])
def test_an_addition_that_is_no_bias_stays_beside_the_linear_layer(factor: str) -> None:
    other = "%b" if factor == "%two" else "%x"
    text = f"%p : Tensor = aten::matmul(%x, %t)\n  %y : Tensor = aten::add(%p, {other}, {factor})\n  return (%y)"
    program = program_of(f"{HEAD}  {text}", CONSTANTS)
    apply(Canonicalize(), program)
    assert operators(program) == ["aten::linear", "aten::add"]


def test_relu6_is_hardtanh() -> None:
    body, _ = rewritten("  %y : Tensor = aten::relu6(%x)\n  return (%y)")
    assert "aten::hardtanh(%x" in body


class Products(nn.Module):
    """Every spelling of a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.rand(5, 7))
        self.b = nn.Parameter(torch.rand(7, 5))
        self.bias = nn.Parameter(torch.rand(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.matmul(x, self.a) + self.bias
        y = torch.addmm(torch.ones(5), y, self.b)
        y = torch.nn.functional.linear(y, self.b, self.bias)
        return torch.mm(y, self.a.t().contiguous())


@pytest.mark.parametrize("how", ["script", "trace"])
def test_products_give_the_numbers_of_eager(how: str) -> None:
    program, _ = optimise(Products(), [torch.rand(3, 5)], AS_PYTORCH, how)
    assert operators(program).count("vulkan_prepack::run_linear_context") == 4


@pytest.mark.parametrize("kernel", [(1, 2), (2, 3), (4, 4), (3, 3)])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_same_padding_gives_the_numbers_of_eager(kernel: tuple[int, int], dilation: int) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, kernel, padding="same", dilation=dilation))
    program, _ = optimise(module, [torch.rand(2, 3, 11, 9)], AS_PYTORCH)
    assert "vulkan_prepack::run_conv2d_context" in operators(program)


class BiasInLoop(nn.Module):
    """A product is made once, and added to in each trip."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, 4))
        self.bias = nn.Parameter(torch.rand(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product, total = torch.matmul(x, self.weight), torch.zeros(1)
        for _ in range(x.shape[0]):
            total = total + product.add_(self.bias)
        return total


def test_an_addition_that_runs_more_often_is_no_bias() -> None:
    optimise(BiasInLoop(), [torch.rand(3, 3)], CPU)
