from typing import Any

import pytest
import torch
from pass_harness import apply, expect, operators, optimise, program_of
from torch import nn

from mobopt.ir import Graph, Value
from mobopt.passes.backends import SIMPLIFY
from mobopt.passes.common_subexpression_elimination import CommonSubexpressionElimination, _value_key
from mobopt.passes.constant_folding import ConstantFolding
from mobopt.passes.constant_propagation import ConstantPropagation
from mobopt.passes.dead_code_elimination import DeadCodeElimination
from mobopt.passes.known_conditions import KnownConditions
from mobopt.passes.loop_unrolling import LoopUnrolling

HEAD = """
graph(%self : __torch__.M,
      %x : Tensor,
      %m : Tensor?,
      %n : int):
  %w : Tensor = prim::Constant[value=<Tensor>]()
  %none : NoneType = prim::Constant()
  %zero : int = prim::Constant[value=0]()
  %one : int = prim::Constant[value=1]()
  %two : int = prim::Constant[value=2]()
  %four : int = prim::Constant[value=4]()
  %many : int = prim::Constant[value=1000]()
  %half : float = prim::Constant[value=0.5]()
  %true : bool = prim::Constant[value=1]()
  %false : bool = prim::Constant[value=0]()
  %text : str = prim::Constant[value="no"]()
"""
CONSTANTS: dict[str, Any] = {"w": torch.rand(4, 3)}


def after(item: Any, body: str) -> str:
    return apply(item, program_of(HEAD + body, CONSTANTS))[0]


# Constant folding


def test_operators_on_constants_are_run() -> None:
    program = program_of(
        f"""{HEAD}  %t : Tensor = aten::t(%w)
  %s : int = aten::size(%t, %zero)
  %l : int[] = prim::ListConstruct(%s, %four)
  %y : Tensor = aten::reshape(%x, %l)
  return (%y)""",
        CONSTANTS,
    )
    assert apply(ConstantFolding(), program)[0] == "%y : Tensor = aten::reshape(%x, %l)\nreturn (%y)\n"
    assert program.methods["forward"].block.nodes[0].inputs[1].constant == [3, 4]


@pytest.mark.parametrize(
    "body",
    [
        "  %l : int[] = prim::ListConstruct(%one)\n  %a : int[] = aten::append(%l, %n)\n  return (%l)",
        "  %y : Tensor = aten::dropout(%w, %half, %true)\n  return (%y)",
        "  %y : Tensor = aten::rand_like(%w, %none, %none, %none, %none, %none)\n  return (%y)",
        "  %y : Tensor = prim::Uninitialized()\n  return (%y)",
        "  %y : int = aten::floordiv(%one, %zero)\n  return (%y)",
    ],
)
def test_what_is_not_folded(body: str) -> None:
    program = program_of(HEAD + body, CONSTANTS)
    before = operators(program)
    apply(ConstantFolding(), program)
    assert operators(program) == before


def test_large_results_stay_computed() -> None:
    body = (
        "  %l : int[] = prim::ListConstruct(%many, %many)\n  %y : Tensor = aten::ones(%l, %none, %none, %none, %none)\n"
    )
    program = program_of(f"{HEAD}{body}  return (%y)", CONSTANTS)
    _, notes = apply(ConstantFolding(max_bytes=1000), program)
    assert operators(program) == ["aten::ones"]
    assert notes == [
        "constant_folding: aten::ones %y not folded: its result is larger than 1000 bytes and than its inputs"
    ]


# Constant propagation


def test_branch_on_a_constant() -> None:
    body = """  %y : Tensor = prim::If(%true)
    block0():
      %a : Tensor = aten::relu(%x)
      -> (%a)
    block1():
      -> (%x)
  return (%y)"""
    assert after(ConstantPropagation(), body) == "%a : Tensor = aten::relu(%x)\nreturn (%a)\n"


def test_branches_that_give_the_same() -> None:
    body = """  %c : bool = aten::gt(%n, %one)
  %y : Tensor, %z : Tensor = prim::If(%c)
    block0():
      %a : Tensor = aten::relu(%x)
      -> (%x, %a)
    block1():
      -> (%x, %x)
  %s : Tensor = aten::add(%y, %z, %one)
  return (%s)"""
    text = after(ConstantPropagation(), body)
    assert "%z : Tensor = prim::If(%c)" in text
    assert "aten::add(%x, %z, %one)" in text


def test_branch_that_gives_its_own_condition() -> None:
    body = """  %c : bool = aten::gt(%n, %one)
  %y : bool = prim::If(%c)
    block0():
      -> (%true)
    block1():
      -> (%false)
  return (%y)"""
    assert after(SIMPLIFY, body) == "%c : bool = aten::gt(%n, %one)\nreturn (%c)\n"


@pytest.mark.parametrize(
    ("line", "constant"),
    [
        ("%c : bool = aten::__is__(%x, %none)", False),
        ("%c : bool = aten::__isnot__(%x, %none)", True),
        ("%c : bool = aten::__is__(%none, %none)", True),
        ("%c : bool = aten::__isnot__(%m, %none)", None),
    ],
)
def test_comparison_with_none(line: str, constant: bool | None) -> None:
    program = program_of(f"{HEAD}  {line}\n  return (%c)", CONSTANTS)
    apply(ConstantPropagation(), program)
    (result,) = program.methods["forward"].outputs
    assert (result.constant if result.is_constant else None) is constant


def test_packing_and_unpacking_cancel() -> None:
    body = """  %t : (Tensor, int) = prim::TupleConstruct(%x, %n)
  %a : Tensor, %b : int = prim::TupleUnpack(%t)
  %l : Tensor[] = prim::ListConstruct(%a, %a)
  %d : Tensor = aten::__getitem__(%l, %one)
  %y : Tensor = aten::add(%d, %d, %b)
  return (%y)"""
    assert "aten::add(%x, %x, %n)" in after(ConstantPropagation(), body)


def test_dictionaries_of_known_pairs() -> None:
    pairs = """  %k : str = prim::Constant[value="k"]()
  %m : str = prim::Constant[value="m"]()
  %a : (str, Tensor) = prim::TupleConstruct(%k, %x)
  %b : (str, Tensor) = prim::TupleConstruct(%m, %x)
  %l : (str, Tensor)[] = prim::ListConstruct(%a, %b)
"""
    made = "  %d : Dict(str, Tensor) = aten::dict.str(%l)\n  return (%d)"
    assert "prim::DictConstruct(%k, %x, %m, %x)" in after(ConstantPropagation(), pairs + made)
    grown = "  %g : (str, Tensor)[] = aten::append(%l, %a)\n"
    assert "aten::dict(%l)" in after(ConstantPropagation(), pairs + grown + made)


def test_the_smaller_of_a_length_and_the_largest_number() -> None:
    body = f"""  %most : int = prim::Constant[value={2**63 - 1}]()
  %l : int[] = prim::ListConstruct(%most, %four)
  %k : int = prim::min.self_int(%l)
  return (%k)"""
    assert "return (%k)" in after(ConstantFolding(), body) and "prim::min" not in after(ConstantFolding(), body)


def test_items_that_change_are_the_same_items() -> None:
    body = """  %l : Tensor[] = prim::ListConstruct(%x, %x)
  %r : Tensor = aten::relu_(%x)
  %d : Tensor = aten::__getitem__(%l, %one)
  %k : int = aten::len(%l)
  %y : Tensor = aten::add(%d, %r, %k)
  return (%y)"""
    text = after(ConstantPropagation(), body)
    assert "aten::add(%x, %r, %k)" in text and "aten::len" not in text


def test_list_that_grows_is_not_looked_into() -> None:
    body = """  %l : Tensor[] = prim::ListConstruct(%x)
  %a : Tensor[] = aten::append(%l, %x)
  %k : int = aten::len(%l)
  return (%k)"""
    assert "aten::len(%l)" in after(ConstantPropagation(), body)


def test_ranks_follow_operators_that_keep_them() -> None:
    body = """  %l : int[] = prim::ListConstruct(%n, %n, %n)
  %v : Tensor = aten::view(%x, %l)
  %r : Tensor = aten::relu(%v)
  %s : int[] = aten::size(%r)
  %a : int = aten::len(%s)
  %q : Tensor = aten::relu(%x)
  %b : int = aten::dim(%q)
  %t : (int, int) = prim::TupleConstruct(%a, %b)
  return (%t)"""
    program = program_of(HEAD + body, CONSTANTS)
    run = SIMPLIFY.run(program)
    assert run.changed
    dim, pair = program.methods["forward"].block.nodes
    assert (dim.op, dim.inputs[0].name) == ("aten::dim", "x")
    assert pair.inputs[0].constant == 3


# Known conditions

CHECK = """  %c : bool = aten::{compare}(%n, %four)
   = prim::If(%c)
    block0():
      {true}-> ()
    block1():
      {false}-> ()
"""
RAISE = " = prim::RaiseException(%text, %none)\n      "


@pytest.mark.parametrize(
    ("compare", "true", "false", "known"),
    [("ne", RAISE, "", True), ("eq", "", RAISE, True), ("gt", RAISE, "", False), ("eq", RAISE, "", False)],
)
def test_a_passed_check_tells(compare: str, true: str, false: str, known: bool) -> None:
    use = "  %y : Tensor = aten::add(%x, %x, %n)\n  return (%y)"
    body = CHECK.format(compare=compare, true=true, false=false) + use
    text = after(KnownConditions(), body)
    assert ("aten::add(%x, %x, %four)" in text) is known


def test_a_condition_is_known_in_its_branches_and_after_a_check() -> None:
    body = """  %c : bool = aten::gt(%n, %four)
   = prim::If(%c)
    block0():
       = prim::RaiseException(%text, %none)
      -> ()
    block1():
      %i : bool = aten::__not__(%c)
      -> ()
  %a : bool = aten::__not__(%c)
  return (%a)"""
    program = program_of(HEAD + body, CONSTANTS)
    apply(KnownConditions(), program)
    inner, outer = (node.inputs[0].constant for node in program.methods["forward"].walk() if node.op == "aten::__not__")
    assert (inner, outer) == (False, False)


# Loops

LOOP = """  %y : Tensor = prim::Loop(%{trips}, %true, %x)
    block0(%i : int, %a : Tensor):
      %b : Tensor = aten::add(%a, %w, %i)
      -> ({going_on}, %b)
  return (%y)"""


def test_short_loops_are_written_out() -> None:
    assert after(LoopUnrolling(), LOOP.format(trips="two", going_on="%true")) == expect(
        """
        %b.1 : Tensor = aten::add(%x, %w, %0)
        %b.2 : Tensor = aten::add(%b.1, %w, %1)
        return (%b.2)
        """
    )


@pytest.mark.parametrize(("trips", "going_on"), [("n", "%true"), ("two", "%false"), ("many", "%true")])
def test_other_loops_stay(trips: str, going_on: str) -> None:
    assert "prim::Loop" in after(LoopUnrolling(), LOOP.format(trips=trips, going_on=going_on))


def test_loop_that_never_runs() -> None:
    assert after(LoopUnrolling(), LOOP.format(trips="zero", going_on="%true")) == "return (%x)\n"


# Common subexpressions


def test_equal_nodes_are_one() -> None:
    body = """  %a : Tensor = aten::relu(%x)
  %b : Tensor = aten::relu(%x)
  %y : Tensor = aten::add(%a, %b, %one)
  return (%y)"""
    text = after(CommonSubexpressionElimination(), body)
    assert text == "%a : Tensor = aten::relu(%x)\n%y : Tensor = aten::add(%a, %a, %one)\nreturn (%y)\n"


def test_outer_nodes_serve_inner_blocks_and_not_the_other_way() -> None:
    body = """  %a : Tensor = aten::relu(%x)
  %c : bool = aten::gt(%n, %one)
  %y : Tensor = prim::If(%c)
    block0():
      %b : Tensor = aten::relu(%x)
      %d : Tensor = aten::neg(%b)
      -> (%d)
    block1():
      -> (%a)
  %e : Tensor = aten::neg(%a)
  %s : Tensor = aten::add(%y, %e, %one)
  return (%s)"""
    program = program_of(HEAD + body, CONSTANTS)
    apply(CommonSubexpressionElimination(), program)
    assert operators(program).count("aten::relu") == 1
    assert operators(program).count("aten::neg") == 2


@pytest.mark.parametrize(
    "lines",
    [
        "%a : Tensor = aten::dropout(%x, %half, %true)\n  %b : Tensor = aten::dropout(%x, %half, %true)",
        "%a : Tensor = aten::relu_(%x)\n  %b : Tensor = aten::relu_(%x)",
        "%a : Tensor = aten::select(%x, %zero, %zero)\n  %b : Tensor = aten::select(%x, %zero, %one)",
        "%a : Tensor = aten::neg(%x)\n  %u : Tensor = aten::relu_(%x)\n  %b : Tensor = aten::neg(%x)",
        "%a : int[] = prim::ListConstruct(%n)\n  %b : int[] = prim::ListConstruct(%n)\n"
        "  %u : int[] = aten::append(%a, %n)",
    ],
)
def test_nodes_that_must_stay_apart(lines: str) -> None:
    kind = "int[]" if "int[]" in lines else "Tensor"
    body = f"  {lines}\n  %y : ({kind}, {kind}) = prim::TupleConstruct(%a, %b)\n  return (%y)"
    program = program_of(HEAD + body, CONSTANTS)
    before = operators(program)
    apply(CommonSubexpressionElimination(), program)
    assert operators(program) == before


# Dead code


def test_dead_nodes_writes_and_carried_values_go() -> None:
    body = """  %dead : Tensor = aten::neg(%x)
  %l : Tensor[] = prim::ListConstruct()
  %y : Tensor, %z : Tensor = prim::Loop(%n, %true, %x, %x)
    block0(%i : int, %a : Tensor, %b : Tensor):
      %u : Tensor[] = aten::append(%l, %a)
      %d : Tensor = aten::relu(%a)
      %e : Tensor = aten::neg(%b)
      -> (%true, %d, %e)
  return (%y)"""
    assert after(DeadCodeElimination(), body) == expect(
        """
        %y : Tensor = prim::Loop(%n, %true, %x)
          block0(%i : int, %a : Tensor):
            %d : Tensor = aten::relu(%a)
            -> (%true, %d)
        return (%y)
        """
    )


@pytest.mark.parametrize(
    "body",
    [
        "  %a : Tensor = aten::relu_(%x)\n  return (%n)",
        "  %l : Tensor[] = prim::ListConstruct()\n  %u : Tensor[] = aten::append(%l, %x)\n  return (%l)",
        "  %a : Tensor = aten::neg(%x)\n  %v : Tensor = aten::select(%a, %zero, %zero)\n"
        "  %u : Tensor = aten::relu_(%v)\n  return (%a)",
        "  %c : bool = aten::gt(%n, %one)\n   = prim::If(%c)\n    block0():\n"
        "       = prim::RaiseException(%text, %none)\n      -> ()\n    block1():\n      -> ()\n  return (%x)",
    ],
)
def test_what_can_be_seen_stays(body: str) -> None:
    program = program_of(HEAD + body, CONSTANTS)
    before = operators(program)
    apply(DeadCodeElimination(), program)
    assert operators(program) == before


def test_assigned_attributes_stay() -> None:
    from mobopt.ir.types import INT

    text = (
        HEAD
        + """  %a : int = prim::GetAttr[name="count"](%self)
  %b : int = aten::add(%a, %one)
   = prim::SetAttr[name="count"](%self, %b)
  return (%x)"""
    )
    program = program_of(text, CONSTANTS, {"count": (INT, 0)})
    assert SIMPLIFY.run(program).changed is False
    assert operators(program) == ["prim::GetAttr", "aten::add", "prim::SetAttr"]


class Checks(nn.Module):
    """Checks, loops and lists as torch.nn.functional has them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
        sizes: list[int] = []
        for i in range(3):
            sizes.append(y.size(i))
        if y.dim() == 4:
            y = y.reshape(sizes[0], sizes[1], -1)
        scale = torch.ones(3).sum() * 2
        return y * scale


def test_simplify_keeps_the_numbers() -> None:
    optimise(Checks(), [torch.rand(2, 3, 5, 4)], [SIMPLIFY])


def test_copies_of_a_loop_read_the_same_constants() -> None:
    """Names stay unique, so that the text can be read again."""
    text = """
    graph(%self : __torch__.M,
          %x : Tensor):
      %two : int = prim::Constant[value=2]()
      %true : bool = prim::Constant[value=1]()
      %half : float = prim::Constant[value=0.5]()
      %y : Tensor = prim::Loop(%two, %true, %x)
        block0(%i : int, %a : Tensor):
          %b : Tensor = aten::mul(%a, %half)
          -> (%true, %b)
      return (%y)
    """
    program = program_of(text)
    apply(LoopUnrolling(), program)
    first, second = program.methods["forward"].block.nodes
    assert first.inputs[1] is second.inputs[1]


def _constant(tensor: torch.Tensor) -> Value:
    return Value.of_elements(tensor) if tensor.layout is torch.strided else Graph().constant(tensor)


@pytest.mark.parametrize(
    ("first", "second", "are_same"),
    [
        (torch.arange(6), torch.arange(6), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32), False),
        (torch.zeros(2, 3), torch.zeros(3, 2).t(), False),  # another layout
        (torch.zeros(2**15), torch.zeros(2**15), False),  # large ones aren't looked at
        (torch.eye(2).to_sparse(), torch.eye(2).to_sparse(), False),
    ],
)
def test_equal_small_tables_are_one(first: torch.Tensor, second: torch.Tensor, are_same: bool) -> None:
    """Each layer of a model may have places and masks for itself."""
    assert (_value_key(_constant(first)) == _value_key(_constant(second))) == are_same
