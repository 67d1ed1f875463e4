"""Convolutions whose input has lanes that nobody wrote."""

import pytest
import torch
from pass_harness import apply, assert_close, body_of, program_of
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program
from mobopt.ops.targets import Target
from mobopt.options import MobileOptimizerType, Settings
from mobopt.passes.clear_lanes import ClearLanes
from mobopt.passes.facts import Examples
from mobopt.passes.manager import run_passes
from mobopt.passes.pipelines import pipeline_for
from mobopt.runtimes.cpu import Interpreter

OLD, NEW = ClearLanes(Target("vulkan", "1.13"), inputs=False), ClearLanes(Target("vulkan", "2.6"), inputs=False)
CLAMP = ": Tensor = aten::clamp(%y, "


def program(body: str, channels: int = 3, groups: int = 1, op: str = "conv2d") -> Program:
    """A method that makes %y of %x and convolves it."""
    sizes = (channels, 4 // groups, 1, 1) if op == "conv_transpose2d" else (8, channels // groups, 1, 1)
    if op == "conv_transpose2d":
        call = "%y, %w, %none, %ones, %zeros, %zeros, %groups, %ones"
    else:
        call = "%y, %w, %none, %ones, %zeros, %ones, %groups"
    return program_of(
        f"""
graph(%self : __torch__.M,
      %x : Tensor):
  %w : Tensor = prim::Constant[value=<Tensor>]()
  %none : NoneType = prim::Constant()
  %one : int = prim::Constant[value=1]()
  %two : int = prim::Constant[value=2]()
  %groups : int = prim::Constant[value={groups}]()
  %ones : int[] = prim::Constant[value=[1, 1]]()
  %zeros : int[] = prim::Constant[value=[0, 0]]()
  %sizes : int[] = prim::Constant[value=[1, {channels}, 1, 35]]()
  %order : int[] = prim::Constant[value=[0, 1, 3, 2]]()
  %false : bool = prim::Constant[value=0]()
  %device : Device = prim::Constant[value="vulkan"]()
  %host : Device = prim::Constant[value="cpu"]()
{body}
  %z : Tensor = aten::{op}({call})
  return (%z)
""",
        {"w": torch.rand(sizes)},
    )


UPLOAD = "  %u : Tensor = aten::to(%x, %device, %none, %false, %false)\n"


def test_a_reshaped_tensor_is_clamped() -> None:
    after, notes = apply(NEW, program(UPLOAD + "  %y : Tensor = aten::reshape(%u, %sizes)"))
    lines = after.splitlines()
    assert lines[1] == "%y : Tensor = aten::reshape(%u, %sizes)"
    assert lines[2].startswith(f"%y.finite {CLAMP}")
    assert lines[3].startswith("%z : Tensor = aten::conv2d(%y.finite, ")
    assert notes == ["clear_lanes: aten::conv2d %z reads finite numbers in lanes beyond the last channel"]


@pytest.mark.parametrize(
    "body",
    [
        UPLOAD + "  %a : Tensor = aten::reshape(%u, %sizes)\n  %y : Tensor = aten::relu(%a)",
        UPLOAD + "  %c : Tensor = aten::to(%u, %host, %none, %false, %false)\n  %d : Tensor = aten::erf(%c)\n"
        "  %y : Tensor = aten::to(%d, %device, %none, %false, %false)",
        UPLOAD + "  %y : Tensor = aten::div(%u, %u)",
        UPLOAD + "  %y : Tensor = aten::add(%u, %u, %one)",
        UPLOAD + "  %l : Tensor[] = prim::ListConstruct(%u, %u)\n  %a : Tensor, %y : Tensor = prim::ListUnpack(%l)",
    ],
)
def test_what_else_is_clamped(body: str) -> None:
    assert CLAMP in apply(NEW, program(body))[0]
    assert CLAMP in apply(NEW, program(body, op="conv_transpose2d"))[0]
    assert CLAMP not in apply(NEW, program(body, channels=8))[0], "all lanes are used"
    assert CLAMP not in apply(NEW, program(body, channels=3, groups=3))[0], "every lane stays by itself"


def test_what_is_finite_anyway() -> None:
    body = UPLOAD + "  %a : Tensor = aten::reshape(%u, %sizes)\n  %y : Tensor = aten::relu6(%a)"
    assert CLAMP not in apply(NEW, program(body))[0]


def test_what_releases_differ_in() -> None:
    """Joins of channels write every lane since 2.6; permutations do not, for which files of older targets are ready."""
    join = UPLOAD + "  %a : Tensor = aten::tanh(%u)\n  %l : Tensor[] = prim::ListConstruct(%a, %a)\n"
    channels, heights = (join + f"  %y : Tensor = aten::cat(%l, {dim})" for dim in ("%one", "%two"))
    permuted = UPLOAD + "  %a : Tensor = aten::reshape(%u, %sizes)\n  %y : Tensor = aten::permute(%a, %order)"
    for item, body, is_clamped in (
        (OLD, channels, True), (NEW, channels, False), (OLD, heights, True), (NEW, heights, True),
        (OLD, permuted, True), (NEW, permuted, True),
    ):  # fmt: skip
        assert (CLAMP in apply(item, program(body, channels=6))[0]) == is_clamped


def test_an_input_that_is_all_that_is_uploaded_has_a_note_only() -> None:
    after, notes = apply(NEW, program(UPLOAD.replace("%u", "%y")))
    assert CLAMP not in after
    assert "no multiple of 4" in notes[0]


@pytest.mark.parametrize("channels", [1, 2, 3, 5, 6, 7])
def test_an_input_is_clamped(channels: int) -> None:
    body = program(UPLOAD.replace("%u", "%y"), channels=channels)
    assert CLAMP in apply(ClearLanes(Target("vulkan", "2.6")), body)[0]
    assert pipeline_for(Settings("vulkan", "2.6"))[-3] == ClearLanes(Target("vulkan", "2.6"), inputs=True)


BRANCH = """\
  %y : Tensor = prim::If(%false)
    block0():
      -> ({})
    block1():
      -> ({})"""


@pytest.mark.parametrize("sources", [("%r", "%u"), ("%u", "%r")])
def test_an_input_that_comes_out_of_a_branch_is_clamped(sources: tuple[str, str]) -> None:
    bounded = UPLOAD + "  %r : Tensor = aten::relu6(%u)\n"
    assert CLAMP in apply(OLD, program(bounded + BRANCH.format(*sources)))[0]
    assert CLAMP not in apply(OLD, program(bounded + BRANCH.format("%r", "%r")))[0]


def test_an_input_that_a_loop_hands_on_is_clamped() -> None:
    loop = """\
  %y : Tensor = prim::Loop(%two, %true, {})
    block0(%i : int, %p : Tensor):
      %q : Tensor = aten::relu(%p)
      -> (%true, %q)"""
    bounded = UPLOAD + "  %true : bool = aten::__not__(%false)\n  %r : Tensor = aten::relu6(%u)\n"
    assert CLAMP in apply(OLD, program(bounded + loop.format("%u")))[0]
    assert CLAMP not in apply(OLD, program(bounded + loop.format("%r")))[0]


@pytest.mark.parametrize("inputs", [True, False])
def test_an_input_that_the_app_has_moved(inputs: bool) -> None:
    module, x = nn.Conv2d(3, 5, 3).eval(), torch.randn(1, 3, 7, 11)
    after = program_from_script_module(torch.jit.script(module))
    blocked = frozenset({MobileOptimizerType.VULKAN_AUTOMATIC_GPU_TRANSFER})
    choices = Settings("vulkan", "2.6", blocked, clear_inputs=inputs)
    run_passes(after, pipeline_for(choices, Examples({"forward": (x,)})), check=True)
    assert ("aten::clamp" in body_of(after)) == inputs and "aten::to" not in body_of(after)


def test_what_runs_on_the_cpu_is_not_clamped() -> None:
    """It reads a copy without unused lanes."""
    module, x = nn.Conv2d(3, 5, 3).eval(), torch.randn(3, 3, 7, 11)
    after = program_from_script_module(torch.jit.script(module))
    run_passes(after, pipeline_for(Settings("vulkan", "2.6", legalize="safe"), Examples({"forward": (x,)})), check=True)
    assert "aten::clamp" not in body_of(after) and "aten::conv2d" in body_of(after)


@pytest.mark.parametrize(
    "other",
    [
        UPLOAD,
        "  %c : Tensor = aten::to(%y, %host, %none, %false, %false)\n"
        "  %d : Tensor = aten::to(%c, %device, %none, %false, %false)\n",
        "  %c : Tensor = aten::to(%y, %host, %none, %false, %false)\n  %d : Tensor = aten::erf(%c)\n",
        "  %c : Tensor = aten::to(%y, %host, %none, %false, %false)\n"
        "  %l : Tensor[] = prim::ListConstruct(%c, %c)\n  %d : Tensor = aten::block_diag(%l)\n",
    ],
)
def test_an_input_among_several_transfers_is_clamped(other: str) -> None:
    """It comes where uniform buffers of the call before were, which gave wrong numbers on PyTorch's kernels."""
    body = UPLOAD.replace("%u", "%y") + other
    assert CLAMP in apply(NEW, program(body))[0]
    assert CLAMP not in apply(NEW, program(body, channels=4))[0]


def test_a_depthwise_convolution_hands_lanes_on() -> None:
    """As where a dilated convolution is padded by one; numbers stay."""
    module, x = nn.Conv2d(3, 5, 3, padding=2, dilation=2).eval(), torch.randn(1, 3, 7, 11)
    with torch.no_grad():
        expected = module(x)
    after = program_from_script_module(torch.jit.trace(module, x))  # type: ignore[no-untyped-call]
    run_passes(after, pipeline_for(Settings("vulkan", "2.6"), Examples({"forward": (x,)})), check=True)
    text = body_of(after)
    assert text.count("run_conv2d_context") == 2 and text.count("aten::clamp") == 1
    assert_close(Interpreter(after).run("forward", [x]), expected)
