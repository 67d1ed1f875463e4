"""Lists that scripts fill step by step."""

from __future__ import annotations

import pytest
import torch
from pass_harness import apply, assert_close, expect, operators, program_of
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import print_graph
from mobopt.passes.backends import SIMPLIFY
from mobopt.passes.manager import run_passes
from mobopt.passes.remove_list_mutation import RemoveListMutation
from mobopt.runtimes.cpu import Interpreter

HEAD = """
graph(%self : __torch__.M,
      %x : Tensor,
      %wanted : bool):
  %one : int = prim::Constant[value=1]()
  %last : int = prim::Constant[value=-1]()
  %far : int = prim::Constant[value=7]()
  %l : Tensor[] = prim::ListConstruct(%x)
"""


def after(body: str) -> str:
    return apply(RemoveListMutation(), program_of(HEAD + body))[0]


def test_items_are_added_at_once() -> None:
    text, notes = apply(
        RemoveListMutation(),
        program_of(
            HEAD
            + """
  %a : Tensor = aten::relu(%x)
  %1 : Tensor[] = aten::append(%l, %a)
  %b : Tensor = aten::__getitem__(%l, %last)
  %c : Tensor = aten::tanh(%b)
  %2 : Tensor[] = aten::append(%1, %c)
  %y : Tensor = aten::cat(%l, %one)
  return (%y)
"""
        ),
    )
    assert text == expect("""
        %a : Tensor = aten::relu(%x)
        %c : Tensor = aten::tanh(%a)
        %l.1 : Tensor[] = prim::ListConstruct(%x, %a, %c)
        %y : Tensor = aten::cat(%l.1, %one)
        return (%y)
    """)
    assert notes == ["remove_list_mutation: prim::ListConstruct %l is built at once, of 3 items"]


def test_what_reads_the_whole_list_gets_one_of_its_own() -> None:
    """What is added behind a reader is not in the list that it reads."""
    text = after("""
  %1 : Tensor[] = aten::append(%l, %x)
  %y : Tensor = aten::cat(%l, %one)
  %2 : Tensor[] = aten::append(%l, %y)
  %z : Tensor = aten::cat(%l, %one)
  return (%y, %z)
""")
    assert text == expect("""
        %l.1 : Tensor[] = prim::ListConstruct(%x, %x)
        %y : Tensor = aten::cat(%l.1, %one)
        %l.2 : Tensor[] = prim::ListConstruct(%x, %x, %y)
        %z : Tensor = aten::cat(%l.2, %one)
        return (%y, %z)
    """)


@pytest.mark.parametrize(
    "keeper",
    ["%k : Tensor[][] = prim::ListConstruct(%l)", "%k : (Tensor[], int) = prim::TupleConstruct(%l, %one)"],
)
def test_who_keeps_a_list_sees_what_is_added(keeper: str) -> None:
    """Lists have one identity."""
    text = after(f"""
  %1 : Tensor[] = aten::append(%l, %x)
  {keeper}
  %2 : Tensor[] = aten::append(%l, %x)
  %z : Tensor = aten::cat(%l, %one)
  return (%z, %k)
""")
    assert "prim::ListConstruct(%x, %x)" in text
    assert text.count("aten::append(%l.1") == 1


@pytest.mark.parametrize(
    "body",
    [
        "  %1 : Tensor = aten::pop(%l, %far)\n  return (%1)\n",
        "  %1 : Tensor[] = aten::_set_item(%l, %far, %x)\n  return (%l)\n",
        "   = prim::If(%wanted)\n    block0():\n      %2 : Tensor[] = aten::append(%l, %x)\n      -> ()\n"
        "    block1():\n      -> ()\n  return (%l)\n",
    ],
)
def test_what_is_not_known_stays(body: str) -> None:
    program = program_of(HEAD + body)
    before = print_graph(program.methods["forward"])
    apply(RemoveListMutation(), program)
    assert print_graph(program.methods["forward"]) == before


class _Lists(nn.Module):
    """Every way to change a list, and readers between them."""

    def forward(self, x: Tensor, wanted: bool) -> tuple[list[Tensor], Tensor, int]:
        found = [x]
        found.append(x + 1)
        found += [x * 2]
        found[0] = x - 1
        found.extend([x, x * 3])
        found.insert(1, found.pop())
        total = torch.cat(found, 0)
        other = found
        other.append(total)
        if wanted:
            found.append(found[-2] * 5)
        first = found.pop(0)
        for _ in range(3):
            found.append(first * len(found))
        return found, other[-1] + found[2], len(other)


@pytest.mark.parametrize("wanted", [False, True])
def test_numbers(wanted: bool) -> None:
    x = torch.randn(3, 5)
    program = program_from_script_module(torch.jit.script(_Lists()))
    run_passes(program, [SIMPLIFY], check=True)
    found, expected = Interpreter(program).run("forward", [x, wanted]), _Lists()(x, wanted)
    assert len(found[0]) == len(expected[0]) and found[2] == expected[2]
    assert_close(found[0], expected[0])
    assert_close(found[1], expected[1])


class _Levels(nn.Module):
    """What an encoder keeps for its decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        levels = [x]
        for layer in self.down:
            levels.append(layer(levels[-1]))
        y = levels.pop()
        while len(levels) > 0:
            y = torch.cat([y, levels.pop()], 1)
        return y


def test_an_encoder_keeps_no_list() -> None:
    program = program_from_script_module(torch.jit.script(_Levels().eval()))
    run_passes(program, [SIMPLIFY], check=True)
    assert not {"aten::append", "aten::__getitem__"} & set(operators(program))


class _Dense(nn.Module):
    """Layers that read all that came before them, in memory of their own or not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3 * (index + 1), 3, 3, padding=1) for index in range(3))

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


def test_layers_that_read_a_list_as_it_grows() -> None:
    torch.manual_seed(0)
    module, x = _Dense().eval(), torch.randn(1, 3, 5, 7)
    program = program_from_script_module(torch.jit.script(module))
    run_passes(program, [SIMPLIFY], check=True)
    assert "aten::append" not in operators(program)
    assert_close(Interpreter(program).run("forward", [x]), module(x))
