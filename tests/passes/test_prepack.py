from typing import Any

import pytest
import torch
from pass_harness import apply, expect, operators, optimise, program_of
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ops.contexts import Conv2dPackedContext, LinearPackedContext
from mobopt.options import Settings
from mobopt.passes.fold_prepack import FoldPrepack
from mobopt.passes.fuse_clamp import FuseClamp, combine
from mobopt.passes.insert_prepack import InsertPrepack
from mobopt.passes.manager import run_passes
from mobopt.passes.pipelines import pipeline_for

VULKAN = pipeline_for(Settings("vulkan", legalize="off"))
CONTEXT = Conv2dPackedContext.qualified_name
HEAD = """
graph(%self : __torch__.M,
      %x : Tensor):
  %w : Tensor = prim::Constant[value=<Tensor>]()
  %m : Tensor = prim::Constant[value=<Tensor>]()
  %wide : Tensor = prim::Constant[value=<Tensor>]()
  %none : NoneType = prim::Constant()
  %one : int = prim::Constant[value=1]()
  %ones : int[] = prim::Constant[value=[1, 1]]()
  %zeros : int[] = prim::Constant[value=[0, 0]]()
  %low : float = prim::Constant[value=-1.0]()
  %high : float = prim::Constant[value=2.5]()
"""
CONSTANTS: dict[str, Any] = {
    "w": torch.rand(3, 3, 1, 1),
    "m": torch.rand(4, 3),
    "wide": torch.rand(3, 3, 1, 1, dtype=torch.float64),
}
CONV = "  %y : Tensor = aten::conv2d(%x, %w, %none, %ones, %zeros, %ones, %one)\n"


def test_conv2d_is_packed_and_run() -> None:
    after, _ = apply(InsertPrepack(), program_of(f"{HEAD}{CONV}  return (%y)", CONSTANTS))
    assert after == expect(
        f"""
        %0 : {CONTEXT} = vulkan_prepack::create_conv2d_context(%w, %none, %ones, %zeros, %ones, %one, %1, %1)
        %y.1 : Tensor = vulkan_prepack::run_conv2d_context(%x, %0)
        return (%y.1)
        """
    ).replace("%0", "%1").replace("%1, %1)", "%0, %0)").replace("%x, %0)", "%x, %1)")


def test_conv_transpose2d_is_packed_in_its_own_order() -> None:
    line = "  %y : Tensor = aten::conv_transpose2d(%x, %w, %none, %ones, %zeros, %zeros, %one, %ones)\n"
    program = program_of(f"{HEAD}{line}  return (%y)", CONSTANTS)
    apply(InsertPrepack(), program)
    create, run = program.methods["forward"].block.nodes
    names = [value.name for value in create.inputs[:7]]
    assert (create.op, names) == (
        "vulkan_prepack::create_tconv2d_context",
        ["w", "none", "ones", "zeros", "zeros", "ones", "one"],
    )
    assert run.op == "vulkan_prepack::run_tconv2d_context"


def test_linear_is_packed_with_its_weight_transposed() -> None:
    program = program_of(f"{HEAD}  %y : Tensor = aten::linear(%x, %m, %none)\n  return (%y)", CONSTANTS)
    apply(InsertPrepack(), program)
    create, _ = program.methods["forward"].block.nodes
    assert create.op == "vulkan_prepack::create_linear_context"
    assert torch.equal(create.inputs[0].constant, CONSTANTS["m"].t())


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (CONV.replace("%w", "%x"), "its weight or bias is not constant"),
        (CONV.replace("%w", "%wide"), "its weight is float64, and contexts hold float32"),
        (
            "  %n : int = aten::dim(%x)\n" + CONV.replace("%ones, %one)", "%ones, %n)"),
            "its stride, padding, dilation or groups are not constant",
        ),
        (
            "  %s : int[] = prim::Constant[value=[3, 5, -1]]()\n  %v : Tensor = aten::reshape(%x, %s)\n"
            + CONV.replace("%x", "%v"),
            "its input has no batch dimension",
        ),
    ],
)
def test_layers_that_are_not_packed(line: str, reason: str) -> None:
    after, notes = apply(InsertPrepack(), program_of(f"{HEAD}{line}  return (%y)", CONSTANTS))
    assert "aten::conv2d" in after
    assert notes == [f"insert_prepack: aten::conv2d %y not packed: {reason}"]


def fused(body: str) -> tuple[list[Any], list[str], list[str]]:
    """The output range after clamp fusion, the operators, and the notes."""
    program = program_of(HEAD + CONV + body, CONSTANTS)
    run_passes(program, [InsertPrepack()], check=True)
    _, notes = apply(FuseClamp(), program)
    create = program.methods["forward"].block.nodes[0]
    return [value.constant for value in create.inputs[-2:]], operators(program)[1:], notes


@pytest.mark.parametrize(
    ("call", "bounds"),
    [
        ("relu(%y)", [0.0, None]),
        ("relu_(%y)", [0.0, None]),
        ("relu6(%y)", [0.0, 6.0]),
        ("hardtanh(%y, %low, %high)", [-1.0, 2.5]),
        ("hardtanh_(%y, %low, %high)", [-1.0, 2.5]),
        ("clamp(%y, %low, %none)", [-1.0, None]),
        ("clamp(%y, %one, %high)", [1.0, 2.5]),
        ("clamp_min(%y, %low)", [-1.0, None]),
        ("clamp_max(%y, %one)", [None, 1.0]),
    ],
)
def test_clamps_become_the_range_of_the_convolution(call: str, bounds: list[Any]) -> None:
    found, ops, notes = fused(f"  %z : Tensor = aten::{call}\n  return (%z)")
    assert found == bounds
    assert ops == ["vulkan_prepack::run_conv2d_context"]
    assert "fused into vulkan_prepack::run_conv2d_context" in notes[0]


def test_clamps_in_a_row_are_combined() -> None:
    body = """  %a : Tensor = aten::relu(%y)
  %b : Tensor = aten::hardtanh(%a, %low, %high)
  %z : Tensor = aten::relu6(%b)
  return (%z)"""
    assert fused(body)[:2] == ([0.0, 2.5], ["vulkan_prepack::run_conv2d_context"])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "  %z : Tensor = aten::relu(%y)\n  %s : Tensor = aten::add(%y, %z, %one)\n  return (%s)",
            "the layer's output is read 2 times",
        ),
        ("  %z : Tensor = aten::clamp(%y, %high, %low)\n  return (%z)", "its lower bound is above its upper one"),
        ("  %z : Tensor = aten::clamp(%y, %x, %none)\n  return (%z)", "its bounds are not constant numbers"),
    ],
)
def test_clamps_that_stay(body: str, reason: str) -> None:
    bounds, ops, notes = fused(body)
    assert bounds == [None, None]
    assert len(ops) > 1
    assert notes[0].endswith(f"not fused into vulkan_prepack::run_conv2d_context %y.1: {reason}")


def test_linear_holds_no_clamp() -> None:
    body = "  %y : Tensor = aten::linear(%x, %m, %none)\n  %z : Tensor = aten::relu(%y)\n  return (%z)"
    program = program_of(HEAD + body, CONSTANTS)
    run_passes(program, [InsertPrepack()], check=True)
    after, notes = apply(FuseClamp(), program)
    assert "aten::relu" in after
    assert notes == [
        "fuse_clamp: aten::relu %z not fused into vulkan_prepack::run_linear_context %y.1: "
        "Vulkan's linear context holds no clamp"
    ]


@pytest.mark.parametrize("first", [(None, None), (0.0, None), (None, 1.0), (-1.0, 3.0), (4.0, 5.0), (-5.0, -4.0)])
@pytest.mark.parametrize("second", [(0.0, None), (None, 2.0), (0.5, 2.0), (-2.0, 9.0)])
def test_combined_ranges_clamp_like_two_clamps(first: Any, second: Any) -> None:
    x = torch.linspace(-8, 8, 101)

    def clamp(value: torch.Tensor, bounds: Any) -> torch.Tensor:
        return value if bounds == (None, None) else value.clamp(*bounds)

    assert torch.equal(clamp(x, combine(first, second)), clamp(clamp(x, first), second))


def test_packing_is_folded_into_named_attributes() -> None:
    body = CONV + "  %z : Tensor = aten::linear(%y, %m, %none)\n  return (%z)"
    program = program_of(HEAD + body, CONSTANTS)
    run_passes(program, [InsertPrepack()], check=True)
    after, _ = apply(FoldPrepack(), program)
    name = "prepack_folding_forward._jit_pass_packed_weight_"
    assert after == expect(
        f"""
        %{name}0 : {CONTEXT} = prim::GetAttr[name="{name}0"](%self)
        %y.1 : Tensor = vulkan_prepack::run_conv2d_context(%x, %{name}0)
        %{name}1 : {LinearPackedContext.qualified_name} = prim::GetAttr[name="{name}1"](%self)
        %z.1 : Tensor = vulkan_prepack::run_linear_context(%y.1, %{name}1)
        return (%z.1)
        """
    )
    context = program.attributes[f"{name}0"].value
    assert context.weight is CONSTANTS["w"]
    assert (context.stride, context.groups, context.transposed, context.output_padding) == ([1, 1], 1, False, [0])
    assert program.attributes[f"{name}1"].value.weight.shape == (3, 4)


def test_computed_weights_are_not_folded() -> None:
    line = "  %c : {} = vulkan_prepack::create_conv2d_context(%x, %none, %ones, %zeros, %ones, %one, %none, %none)\n"
    run = "  %y : Tensor = vulkan_prepack::run_conv2d_context(%x, %c)\n  return (%y)"
    _, notes = apply(FoldPrepack(), program_of(HEAD + line.format(CONTEXT) + run, CONSTANTS))
    assert notes == ["fold_prepack: vulkan_prepack::create_conv2d_context %c not folded: its inputs are not constant"]


class Twice(nn.Module):
    """The same layer in two methods, and with two activations in one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.conv(self.conv(x).relu()).relu())

    @torch.jit.export
    def once(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def test_equal_contexts_are_one_attribute() -> None:
    program = program_from_script_module(torch.jit.script(Twice().eval()), ["once"])
    run_passes(program, VULKAN, check=True)
    contexts = [item.value for item in program.attributes.values() if isinstance(item.value, Conv2dPackedContext)]
    assert sorted(str(context.output_min) for context in contexts) == ["0.0", "None"]
    assert contexts[0].weight.data_ptr() == contexts[1].weight.data_ptr()
    optimise(Twice(), [torch.rand(1, 3, 7, 5)], VULKAN)


def test_transposed_convolution_fuses_its_clamp() -> None:
    module = nn.Sequential(nn.ConvTranspose2d(3, 4, 3, stride=2, groups=1), nn.ReLU6())
    program, _ = optimise(module, [torch.rand(2, 3, 5, 4)], VULKAN, "trace")
    assert operators(program) == ["aten::to", "prim::GetAttr", "vulkan_prepack::run_tconv2d_context", "aten::to"]
