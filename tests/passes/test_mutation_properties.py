"""Random programs of views, in-place operators, lists, branches and loops mean the same before and after the passes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pass_harness import assert_close, program_of

from mobopt.passes.backends import SIMPLIFY
from mobopt.passes.common_subexpression_elimination import CommonSubexpressionElimination
from mobopt.passes.dead_code_elimination import DeadCodeElimination
from mobopt.passes.functionalize import Functionalize
from mobopt.passes.manager import run_passes
from mobopt.passes.pipelines import CPU, VULKAN
from mobopt.runtimes.cpu import Interpreter

HEAD = """
graph(%self : __torch__.M,
      %x : Tensor,
      %c : bool,
      %n : int):
  %w : Tensor = prim::Constant[value=<Tensor>]()
  %zero : int = prim::Constant[value=0]()
  %one : int = prim::Constant[value=1]()
  %two : int = prim::Constant[value=2]()
  %minus : int = prim::Constant[value=-2]()
  %end : int = prim::Constant[value=9223372036854775807]()
  %four : int = prim::Constant[value=4]()
  %half : float = prim::Constant[value=0.5]()
  %true : bool = prim::Constant[value=1]()
  %w2 : Tensor = aten::neg(%w)
"""


class Writer:
    """Draws one program; every tensor has four elements (a), or is a view of two of them (b)."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.count = 0
        self.lines: list[str] = []

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"%{stem}{self.count}"

    def emit(self, indent: str, kind: str, expression: str, stem: str) -> str:
        name = self.fresh(stem)
        self.lines.append(f"{indent}{name} : {kind} = {expression}")
        return name

    def pick(self, names: list[str]) -> str:
        return self.draw(st.sampled_from(names))

    def block(self, indent: str, wholes: list[str], parts: list[str], lists: list[str], depth: int) -> None:
        """A few statements; new names are added to the lists."""
        for _ in range(self.draw(st.integers(1, 6))):
            self.statement(indent, wholes, parts, lists, depth)

    def statement(self, indent: str, wholes: list[str], parts: list[str], lists: list[str], depth: int) -> None:
        kinds = ["pure", "pure", "inplace", "inplace", "view", "part", "part", "halves", "list", "append", "get"]
        kinds += ["if", "loop"]
        kind = self.draw(st.sampled_from(kinds if depth < 2 else kinds[:-2]))
        a = self.pick(wholes)
        if kind == "pure":
            op = self.draw(st.sampled_from(["neg({a})", "add({a}, {b}, %one)", "mul({a}, {b})"]))
            wholes.append(self.emit(indent, "Tensor", "aten::" + op.format(a=a, b=self.pick(wholes)), "a"))
        elif kind == "inplace" and parts and self.draw(st.booleans()):
            b, other = self.pick(parts), self.pick(parts)
            parts.append(self.emit(indent, "Tensor", f"aten::add_({b}, {other}, %one)", "b"))
        elif kind == "inplace":
            op = self.draw(st.sampled_from(["relu_({a})", "add_({a}, {b}, %one)", "mul_({a}, %half)", "neg_({a})"]))
            wholes.append(self.emit(indent, "Tensor", "aten::" + op.format(a=a, b=self.pick(wholes)), "a"))
        elif kind == "view":
            wholes.append(self.emit(indent, "Tensor", f"aten::slice({a}, %zero, %zero, %four, %one)", "a"))
        elif kind == "part":
            bounds = self.draw(st.sampled_from(["%one, %four, %two", "%zero, %two, %one", "%minus, %end, %one"]))
            parts.append(self.emit(indent, "Tensor", f"aten::slice({a}, %zero, {bounds})", "b"))
        elif kind == "halves":
            op = self.draw(st.sampled_from(["chunk", "unsafe_chunk", "split"]))
            made = self.emit(indent, "Tensor[]", f"aten::{op}({a}, %two, %zero)", "h")
            if self.draw(st.booleans()):
                halves = self.fresh("b"), self.fresh("b")
                self.lines.append(f"{indent}{halves[0]} : Tensor, {halves[1]} : Tensor = prim::ListUnpack({made})")
                parts += halves
            else:
                index = self.draw(st.sampled_from(["%zero", "%one", "%minus"]))
                parts.append(self.emit(indent, "Tensor", f"aten::__getitem__({made}, {index})", "b"))
        elif kind == "list":
            lists.append(self.emit(indent, "Tensor[]", f"prim::ListConstruct({a})", "l"))
        elif kind == "append" and lists:
            self.emit(indent, "Tensor[]", f"aten::append({self.pick(lists)}, {a})", "u")
        elif kind == "get" and lists:
            wholes.append(self.emit(indent, "Tensor", f"aten::__getitem__({self.pick(lists)}, %zero)", "a"))
        elif kind == "if":
            self.branch(indent, wholes, parts, lists, depth)
        elif kind == "loop":
            self.loop(indent, wholes, parts, lists, depth)

    def branch(self, indent: str, wholes: list[str], parts: list[str], lists: list[str], depth: int) -> None:
        name = self.fresh("a")
        self.lines.append(f"{indent}{name} : Tensor = prim::If({self.draw(st.sampled_from(['%c', '%true']))})")
        for index in (0, 1):
            inner = list(wholes)
            self.lines.append(f"{indent}  block{index}():")
            self.block(indent + "    ", inner, list(parts), list(lists), depth + 1)
            self.lines.append(f"{indent}    -> ({self.pick(inner)})")
        wholes.append(name)

    def loop(self, indent: str, wholes: list[str], parts: list[str], lists: list[str], depth: int) -> None:
        name, counter, carried = self.fresh("a"), self.fresh("i"), self.fresh("a")
        trips = self.draw(st.sampled_from(["%n", "%two"]))
        self.lines.append(f"{indent}{name} : Tensor = prim::Loop({trips}, %true, {self.pick(wholes)})")
        self.lines.append(f"{indent}  block0({counter} : int, {carried} : Tensor):")
        inner = [*wholes, carried, carried]
        self.block(indent + "    ", inner, list(parts), list(lists), depth + 1)
        self.lines.append(f"{indent}    -> (%true, {self.pick(inner)})")
        wholes.append(name)


@st.composite
def programs(draw: st.DrawFn) -> str:
    writer = Writer(draw)
    wholes, parts, lists = ["%w2", "%x", writer.emit("  ", "Tensor", "aten::neg(%x)", "a")], [], []
    for _ in range(draw(st.integers(1, 3))):
        writer.block("  ", wholes, parts, lists, 0)
    results = draw(st.lists(st.sampled_from([*wholes, *parts]), min_size=1, max_size=3))
    kinds = ", ".join(["Tensor"] * len(results))
    writer.lines.append(f"  %result : ({kinds}) = prim::TupleConstruct({', '.join(results)})")
    return HEAD + "\n".join(writer.lines) + "\n  return (%result)\n"


PASSES = {
    "functionalize": (Functionalize(),),
    "cse": (CommonSubexpressionElimination(),),
    "dce": (DeadCodeElimination(),),
    "simplify": (SIMPLIFY,),
    "vulkan": VULKAN,
    "cpu": CPU,
}


@pytest.mark.parametrize("name", list(PASSES))
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(text=programs(), condition=st.booleans(), trips=st.integers(0, 2))
def test_programs_keep_their_meaning(name: str, text: str, condition: bool, trips: int) -> None:
    start, weight = torch.tensor([1.0, -2.0, 3.0, -4.0]), torch.tensor([0.5, -1.0, 2.0, -0.25])
    program = program_of(text, {"w": weight.clone()})
    expected_input, found_input = start.clone(), start.clone()
    expected = Interpreter(program).run("forward", [expected_input, condition, trips])
    after = program.clone()
    run_passes(after, PASSES[name], check=True)
    found = Interpreter(after).run("forward", [found_input, condition, trips])
    assert_close(found, expected)
    # What goes to the GPU is a copy of the caller's tensor.
    assert_close(found_input, start if name == "vulkan" else expected_input)
