from typing import NamedTuple

import pytest
import torch
from pass_harness import apply, assert_close, expect, operators, program_of
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program
from mobopt.passes.backends import SIMPLIFY
from mobopt.passes.facts import Examples
from mobopt.passes.manager import run_passes
from mobopt.passes.transfer import Transfer
from mobopt.runtimes.cpu import Interpreter


def test_tensors_move_at_the_border() -> None:
    text = """
    graph(%self : __torch__.M,
          %x : Tensor,
          %unused : Tensor,
          %n : int):
      %y : Tensor = aten::relu(%x)
      %z : Tensor = aten::add(%y, %x, %n)
      %r : (Tensor, Tensor, int) = prim::TupleConstruct(%y, %z, %n)
      return (%r)
    """
    program = program_of(text)
    after, notes = apply(Transfer(), program)
    assert after == expect(
        """
        %x.vulkan : Tensor = aten::to(%x, %device, %0, %1, %1)
        %y : Tensor = aten::relu(%x.vulkan)
        %z : Tensor = aten::add(%y, %x.vulkan, %n)
        %y.cpu : Tensor = aten::to(%y, %device.1, %3, %4, %4)
        %z.cpu : Tensor = aten::to(%z, %device.1, %3, %4, %4)
        %r.cpu : (Tensor, Tensor, int) = prim::TupleConstruct(%y.cpu, %z.cpu, %n)
        return (%r.cpu)
        """
    )
    nodes = [node for node in program.methods["forward"].walk() if node.op == "aten::to"]
    assert {node.overload for node in nodes} == {"prim_Device"}
    assert [node.inputs[1].constant.type for node in nodes] == ["vulkan", "cpu", "cpu"]
    assert program.attributes["requires_backend_transfers"].value is False
    assert notes[0] == "transfer: %x is moved to vulkan"


class Point(NamedTuple):
    """A named result."""

    a: torch.Tensor
    b: dict[str, torch.Tensor]


class Nest(nn.Module):
    """Tensors in containers of every kind, in and out."""

    def forward(
        self,
        pair: tuple[torch.Tensor, int],
        items: list[torch.Tensor],
        named: dict[str, torch.Tensor],
        maybe: torch.Tensor | None,
        deep: list[tuple[torch.Tensor, torch.Tensor | None]] | None,
    ) -> tuple[Point, list[torch.Tensor], torch.Tensor | None, list[list[torch.Tensor]], int]:
        x, count = pair
        total = x * count
        for item in items:
            total = total + item
        table: dict[str, torch.Tensor] = {}
        for key, value in named.items():
            table[key] = value + total
        result: torch.Tensor | None = None
        if maybe is not None:
            result = maybe + total
        grown: list[list[torch.Tensor]] = []
        if deep is not None:
            for first, second in deep:
                grown.append([first + 1] if second is None else [first, second])
        return Point(total, table), [total, x], result, grown, count


ARGUMENTS = [
    ((torch.rand(2), 3), [torch.rand(2)] * 2, {"k": torch.rand(2)}, None, None),
    (
        (torch.rand(2), 0),
        [],
        {},
        torch.rand(2),
        [(torch.rand(2), torch.rand(2)), (torch.rand(2), None)],
    ),
]


def moved_devices(program: Program) -> list[str]:
    return [
        node.inputs[1].constant.type
        for node in program.methods["forward"].walk()
        if node.qualified_op == "aten::to.prim_Device"
    ]


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_containers_give_the_results_of_eager(arguments: tuple[object, ...]) -> None:
    module = Nest()
    program = program_from_script_module(torch.jit.script(module))
    run_passes(program, [SIMPLIFY, Transfer(), SIMPLIFY], check=True)
    assert_close(Interpreter(program).run("forward", list(arguments)), module(*arguments))
    devices = moved_devices(program)
    assert devices.count("vulkan") == 6
    assert devices.count("cpu") >= 5


def test_every_method_moves_its_tensors() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

        @torch.jit.export
        def other(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [x + 2]

    program = program_from_script_module(torch.jit.script(Two()), ["other"])
    run_passes(program, [Transfer()], check=True)
    assert operators(program, "other") == ["aten::to", "aten::add", "aten::to", "prim::ListConstruct"]


def test_returned_input_stays_where_it_is() -> None:
    program = program_of("graph(%self : __torch__.M,\n      %x : Tensor):\n  return (%x)")
    after, _ = apply(Transfer(), program)
    assert after == "return (%x)\n"


def test_first_use_inside_a_branch_moves_at_the_entry() -> None:
    text = """
    graph(%self : __torch__.M,
          %x : Tensor,
          %c : bool):
      %y : Tensor = prim::If(%c)
        block0():
          %a : Tensor = aten::relu(%x)
          -> (%a)
        block1():
          -> (%x)
      return (%y)
    """
    after, _ = apply(Transfer(), program_of(text))
    assert after.startswith("%x.vulkan : Tensor = aten::to(%x")
    assert "-> (%x.vulkan)" in after


def test_an_input_that_is_changed_in_place_is_told() -> None:
    text = """
    graph(%self : __torch__.M,
          %x : Tensor):
      %y : Tensor = aten::relu_(%x)
      return (%y)
    """
    _, notes = apply(Transfer(), program_of(text))
    assert notes[0] == "transfer: %x may be changed in place: its copy on the GPU is, the caller's is not"


def test_an_input_that_is_not_row_major_is_made_so() -> None:
    text = """
    graph(%self : __torch__.M,
          %x : Tensor):
      %y : Tensor = aten::relu(%x)
      return (%y)
    """
    x = torch.rand(1, 3, 5, 7)
    after, _ = apply(Transfer(examples=Examples({"forward": (x,)})), program_of(text))
    assert "aten::contiguous" not in after
    nhwc = x.to(memory_format=torch.channels_last)
    after, _ = apply(Transfer(examples=Examples({"forward": (nhwc,)})), program_of(text))
    assert after.splitlines()[0].startswith("%x.contiguous : Tensor = aten::contiguous(%x, ")
    assert after.splitlines()[1].startswith("%x.vulkan : Tensor = aten::to(%x.contiguous, ")


def test_a_value_of_unknown_type_stays_where_it_is() -> None:
    text = """
    graph(%self : __torch__.M,
          %x : Any):
      %y : bool = prim::isinstance(%x)
      return (%y)
    """
    after, notes = apply(Transfer(), program_of(text))
    assert "aten::to" not in after
    assert notes == ["transfer: %x is not moved to vulkan: its type Any is not known"]
