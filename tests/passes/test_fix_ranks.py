import torch
from pass_harness import apply, assert_close, expect, operators, program_of
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.passes.backends import SIMPLIFY
from mobopt.passes.facts import Examples
from mobopt.passes.fix_ranks import FixRanks
from mobopt.passes.manager import run_passes
from mobopt.runtimes.cpu import Interpreter

TEXT = """
graph(%self : __torch__.M,
      %x : Tensor):
  %three : int = prim::Constant[value=3]()
  %rank : int = aten::dim(%x)
  %sizes : int[] = aten::size(%x)
  %length : int = aten::len(%sizes)
  %a : bool = aten::eq(%rank, %three)
  %b : bool = aten::gt(%length, %three)
  %r : (bool, bool) = prim::TupleConstruct(%a, %b)
  return (%r)
"""


def test_ranks_of_the_example_become_constants() -> None:
    after, notes = apply(FixRanks(Examples({"forward": (torch.rand(2, 3, 5),)})), program_of(TEXT))
    assert after == expect(
        """
        %sizes : int[] = aten::size(%x)
        %a : bool = aten::eq(%rank.1, %three)
        %b : bool = aten::gt(%length.1, %three)
        %r : (bool, bool) = prim::TupleConstruct(%a, %b)
        return (%r)
        """
    )
    assert len([note for note in notes if "is 3 on the example inputs" in note]) == 2


def test_without_examples_unknown_ranks_stay() -> None:
    before = program_of(TEXT)
    (run,) = run_passes(before, [FixRanks()], check=True)
    assert not run.result.changed


def test_a_rank_that_changes_in_a_loop_stays() -> None:
    class M(nn.Module):
        def forward(self, x: torch.Tensor, count: int) -> int:
            total = 0
            for _ in range(count):
                total += x.dim()
                x = x.unsqueeze(0)
            return total

    program = program_from_script_module(torch.jit.script(M()))
    run_passes(program, [FixRanks(Examples({"forward": (torch.rand(3), 2)}))], check=True)
    assert "aten::dim" in operators(program)


def test_branches_on_the_rank_go() -> None:
    class M(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.interpolate(x, scale_factor=2.0)

    x = torch.rand(1, 3, 5, 7)
    program = program_from_script_module(torch.jit.script(M()))
    run_passes(program, [SIMPLIFY, FixRanks(Examples({"forward": (x,)})), SIMPLIFY], check=True)
    assert "prim::If" not in operators(program)
    assert [name for name in operators(program) if "upsample" in name] == ["aten::upsample_nearest2d"]
    assert_close(Interpreter(program).run("forward", [x]), M()(x))
