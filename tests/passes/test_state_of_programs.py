"""What methods change is found by every name it has, and passes leave it what it is."""

import pytest
import torch
from pass_harness import apply, program_of

from mobopt.ir import Program, parse_graph, verify
from mobopt.ir.types import INT, TENSOR, ListType, TupleType
from mobopt.ops.state import changed_attributes, settle_state, telling_calls
from mobopt.passes.backends import SIMPLIFY
from mobopt.passes.common_subexpression_elimination import CommonSubexpressionElimination
from mobopt.passes.constant_folding import ConstantFolding
from mobopt.passes.dead_code_elimination import DeadCodeElimination
from mobopt.passes.metal_rewrites import MetalRewrites

HEAD = """
graph(%self : __torch__.M,
      %x : Tensor):
  %none : NoneType = prim::Constant()
  %zero : int = prim::Constant[value=0]()
  %one : int = prim::Constant[value=1]()
"""
ALL = torch.arange(6.0)
TENSORS = {"all": ALL, "part": ALL[2:4], "other": torch.ones(3), "fixed": torch.ones(3)}


def of(body: str, **methods: str) -> Program:
    attributes = {name: (TENSOR, value) for name, value in TENSORS.items()} | {"items": (ListType(TENSOR), [])}
    program = program_of(HEAD + body, attributes=attributes)
    program.methods |= {name: parse_graph((HEAD + text).lstrip("\n")) for name, text in methods.items()}
    verify(program)
    return program


def get(name: str) -> str:
    kind = "Tensor[]" if name == "items" else "Tensor"
    return f'  %{name} : {kind} = prim::GetAttr[name="{name}"](%self)\n'


@pytest.mark.parametrize(
    ("body", "method", "expected"),
    [
        (get("fixed") + "  return (%fixed)\n", "", set()),
        (get("other") + "  %y : Tensor = aten::add_(%other, %x, %one)\n  return (%x)\n", "", {"other"}),
        (
            get("other") + "  %v : Tensor = aten::select(%other, %zero, %zero)\n"
            "  %y : Tensor = aten::relu_(%v)\n  return (%x)\n",
            "",
            {"other"},
        ),
        (get("part") + "  %y : Tensor = aten::add_(%part, %x, %one)\n  return (%x)\n", "", {"all", "part"}),
        ('   = prim::SetAttr[name="other"](%self, %x)\n  return (%x)\n', "", {"other"}),
        (
            get("fixed") + '   = prim::SetAttr[name="other"](%self, %fixed)\n  return (%x)\n',
            get("other") + "  %y : Tensor = aten::add_(%other, %x, %one)\n  return (%x)\n",
            {"other", "fixed"},
        ),
        (
            get("items") + get("other") + "  %y : Tensor[] = aten::append(%items, %other)\n  return (%x)\n",
            get("items") + "  %i : Tensor = aten::__getitem__(%items, %zero)\n"
            "  %y : Tensor = aten::add_(%i, %x, %one)\n  return (%x)\n",
            {"items", "other"},
        ),
        ("  %y : Tensor = aten::relu_(%x)\n  return (%y)\n", "", set()),
    ],
)
def test_changed_attributes(body: str, method: str, expected: set[str]) -> None:
    assert changed_attributes(of(body, **({"other_method": method} if method else {}))) == expected


def test_a_constant_that_is_written_to_becomes_an_attribute() -> None:
    text = """
graph(%self : __torch__.M,
      %x : Tensor):
  %w : Tensor = prim::Constant[value=<Tensor>]()
  %one : int = prim::Constant[value=1]()
  %y : Tensor = aten::add_(%w, %x, %one)
  return (%y)
"""
    value = torch.ones(2)
    program = program_of(text, {"w": value})
    settle_state(program)
    verify(program)
    assert changed_attributes(program) == {"_changed_constant_0"}
    assert program.attributes["_changed_constant_0"].value is value
    assert apply(ConstantFolding(), program)[0] == apply(DeadCodeElimination(), program)[0]


def test_views_of_one_memory_are_told_by_their_nodes() -> None:
    body = get("part") + get("all") + "  %s : Tensor = aten::neg(%all)\n"
    body += "  %y : Tensor = aten::add_(%part, %x, %one)\n" + get("fixed")
    body += "  %z : Tensor = aten::neg(%all)\n  %r : (Tensor, Tensor) = prim::TupleConstruct(%s, %z)\n  return (%r)\n"
    program = of(body)
    settle_state(program)
    text, _ = apply(SIMPLIFY, program)
    assert 'name="part", memory="all"' in text and text.count("aten::neg") == 2 and "add_" in text


def test_a_view_is_state_though_the_whole_is_gone() -> None:
    program = of(get("part") + "  %y : Tensor = aten::add_(%part, %x, %one)\n  return (%x)\n")
    settle_state(program)
    del program.attributes["all"]
    assert changed_attributes(program) == {"part"}


def test_two_results_stay_two() -> None:
    copies = "  %a : Tensor = aten::neg(%x)\n  %b : Tensor = aten::neg(%x)\n"
    both = copies + "  %r : (Tensor, Tensor) = prim::TupleConstruct(%a, %b)\n  return (%r)\n"
    assert apply(CommonSubexpressionElimination(), of(both))[0].count("aten::neg") == 2
    one = copies + "  %r : Tensor = aten::add(%a, %b, %one)\n  return (%r)\n"
    assert apply(CommonSubexpressionElimination(), of(one))[0].count("aten::neg") == 1


def test_metal_keeps_a_copy_of_state_that_is_a_result() -> None:
    body = get("other") + "  %y : Tensor = aten::contiguous(%other, %zero)\n"
    kept, notes = apply(MetalRewrites(), of(body + "  return (%y)\n"))
    assert "aten::contiguous" in kept and any("may change between calls" in note for note in notes)
    dropped, _ = apply(MetalRewrites(), of(body + "  %z : Tensor = aten::neg(%y)\n  return (%z)\n"))
    assert "aten::contiguous" not in dropped


def assigned(name: str, value: str) -> str:
    return f'   = prim::SetAttr[name="{name}"](%self, %{value})\n'


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        ("", 1),
        (assigned("count", "one"), 2),
        (assigned("count", "one") * 2, 2),
        (assigned("count", "one") + assigned("count", "zero"), 3),
        (assigned("count", "one") + assigned("size", "one"), 3),
        ("  %n : int = aten::dim(%x)\n" + assigned("count", "n"), 3),
        (assigned("all", "x"), 3),
    ],
)
def test_how_many_calls_show_what_state_does(body: str, calls: int) -> None:
    attributes = {"count": (INT, 0), "size": (INT, 0), "all": (TENSOR, ALL)}
    assert telling_calls(program_of(f"{HEAD}{body}  return (%x)\n", attributes=attributes)) == calls


def test_numbers_that_are_assigned_hold_no_memory() -> None:
    body = "  %t : (int, int) = prim::TupleConstruct(%one, %one)\n" + assigned("pair", "t") + assigned("all", "x")
    program = program_of(
        f"{HEAD}{body}  return (%x)\n", attributes={"pair": (TupleType((INT, INT)), (0, 0)), "all": (TENSOR, ALL)}
    )
    assert changed_attributes(program) == {"pair", "all"}
