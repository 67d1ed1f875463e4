"""``as_strided`` in files for phones, where a copy from the GPU lies row by row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from applied import Applied
from pass_harness import apply, expect, program_of
from strided_cases import CASES
from torch import Tensor

from mobopt import optimize_for_mobile
from mobopt.ir import Node, Program
from mobopt.ir.nests import map_leaves
from mobopt.passes.facts import Examples
from mobopt.passes.places_in_memory import PlacesInMemory
from mobopt.runtimes.cpu import Interpreter

TEXT = """
graph(%self : __torch__.M,
      %x : Tensor):
  %none : NoneType = prim::Constant()
  %zero : int = prim::Constant[value=0]()
  %one : int = prim::Constant[value=1]()
  %two : int = prim::Constant[value=2]()
  %sizes : int[] = prim::Constant[value=[2, 3]]()
  %strides : int[] = prim::Constant[value=[4, 1]]()
  %y : Tensor = aten::relu(%x)
{body}
  return (%z)
"""
KEPT = """
  %k : Tensor = aten::contiguous(%y, %zero)
  %z : Tensor = aten::as_strided(%k, %sizes, %strides, %none)"""
WRITTEN = """
  %z : Tensor = aten::as_strided(%y, %sizes, %strides, %none)
  %t : Tensor = aten::add_(%z, %one, %one)"""
EXAMPLE = torch.rand(4, 6, generator=torch.Generator().manual_seed(2)) - 0.5


def rewritten(body: str, example: Tensor | None = EXAMPLE) -> tuple[str, list[str]]:
    """A method's body after the pass, whose numbers are those before it, and the notes."""
    program = program_of(TEXT.format(body=body))
    expected = Interpreter(program).run("forward", [EXAMPLE])
    text, notes = apply(PlacesInMemory(Examples() if example is None else Examples({"forward": (example,)})), program)
    assert torch.equal(Interpreter(program).run("forward", [EXAMPLE]), expected)
    return text, notes


class OnPhone(Interpreter):
    """Every result lies row by row, as copies from the GPU do."""

    def operator(self, node: Node, args: list[Any]) -> Any:
        return map_leaves(super().operator(node, args), torch.Tensor, torch.Tensor.contiguous)


def on_phone(program: Program, *inputs: Tensor) -> Any:
    return OnPhone(program).run("forward", list(inputs))


@pytest.mark.parametrize("name", [*CASES])
@pytest.mark.parametrize(("backend", "runtime"), [("vulkan", "1.13"), ("vulkan", "2.6"), ("metal", "1.13")])
def test_numbers_are_those_of_eager(name: str, backend: str, runtime: str) -> None:
    function, sizes = CASES[name]
    x = torch.rand(sizes, generator=torch.Generator().manual_seed(3))
    traced = torch.jit.trace(Applied(function), (x,), check_trace=False)  # type: ignore[no-untyped-call]
    made = optimize_for_mobile(traced, example_inputs=[x], backend=backend, runtime=runtime)
    torch.testing.assert_close(on_phone(made.program, x), function(x))


def test_a_turned_view_gives_its_memory() -> None:
    text, notes = rewritten(
        "  %t : Tensor = aten::transpose(%y, %zero, %one)\n"
        "  %z : Tensor = aten::as_strided(%t, %sizes, %strides, %none)"
    )
    assert text == expect("""
        %y : Tensor = aten::relu(%x)
        %t : Tensor = aten::transpose(%y, %zero, %one)
        %y.rows : Tensor = aten::contiguous(%y, %0)
        %z : Tensor = aten::as_strided(%y.rows, %sizes, %strides, %1)
        return (%z)
    """)
    assert notes == [
        "places_in_memory: aten::as_strided %z takes elements by their places in memory, so it gets all of %y, row by "
        "row"
    ]


def test_a_part_keeps_its_offset() -> None:
    text, _ = rewritten(
        "  %t : Tensor = aten::transpose(%y, %zero, %one)\n"
        "  %p : Tensor = aten::select(%t, %zero, %two)\n"
        "  %z : Tensor = aten::as_strided(%p, %sizes, %strides, %none)"
    )
    assert "aten::as_strided(%y.rows, %sizes, %strides, %1)" in text


def test_a_result_that_lies_turned_is_turned_back() -> None:
    text, _ = rewritten(
        "  %t : Tensor = aten::transpose(%x, %zero, %one)\n"
        "  %s : Tensor = aten::sin(%t)\n"
        "  %z : Tensor = aten::as_strided(%s, %sizes, %strides, %one)"
    )
    assert text == expect("""
        %y : Tensor = aten::relu(%x)
        %t : Tensor = aten::transpose(%x, %zero, %one)
        %s : Tensor = aten::sin(%t)
        %s.turned : Tensor = aten::permute(%s, %0)
        %s.rows : Tensor = aten::contiguous(%s.turned, %1)
        %z : Tensor = aten::as_strided(%s.rows, %sizes, %strides, %one)
        return (%z)
    """)


@pytest.mark.parametrize("body", ["%z : Tensor = aten::as_strided(%x, %sizes, %strides, %none)", KEPT, WRITTEN])
def test_inputs_and_what_is_copied_or_written_to_are_left_alone(body: str) -> None:
    text, notes = rewritten(body)
    assert ".rows" not in text and not notes


@pytest.mark.parametrize(
    ("body", "tensor"),
    [
        ("  %z : Tensor = aten::as_strided(%y, %sizes, %strides, %one)", "y"),
        (
            "  %v : Tensor = aten::unsqueeze(%y, %zero)\n  %z : Tensor = aten::as_strided(%v, %sizes, %strides, %none)",
            "v",
        ),
    ],
)
def test_what_lies_in_rows_does_so_whatever_other_passes_make_of_it(body: str, tensor: str) -> None:
    text, notes = rewritten(body)
    assert f"%{tensor}.rows : Tensor = aten::contiguous(%{tensor}, %0)" in text
    assert f"aten::as_strided(%{tensor}.rows, " in text and not notes


REASONS: dict[str, tuple[str, Tensor | None, str]] = {
    "no examples": (
        "  %t : Tensor = aten::transpose(%y, %zero, %one)\n"
        "  %z : Tensor = aten::as_strided(%t, %sizes, %strides, %none)",
        None,
        "give example inputs that come there",
    ),
    "written": (
        "  %t : Tensor = aten::transpose(%y, %zero, %one)\n"
        "  %w : Tensor = aten::add_(%t, %one, %one)\n"
        "  %z : Tensor = aten::as_strided(%t, %sizes, %strides, %none)",
        EXAMPLE,
        "memory of it is written to in place",
    ),
    "strides of its own": (
        "  %t : Tensor = aten::transpose(%y, %zero, %one)\n"
        "  %own : int[] = aten::stride(%t)\n"
        "  %z : Tensor = aten::as_strided(%t, %sizes, %own, %none)",
        EXAMPLE,
        "it asks for the strides too",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_stays_says_why(name: str) -> None:
    body, example, reason = REASONS[name]
    text, notes = rewritten(body, example)
    assert "contiguous" not in text and any(note.endswith(reason) for note in notes)


def test_an_order_that_changes_from_trip_to_trip_is_left_alone() -> None:
    after, notes = rewritten(
        "  %yes : bool = prim::Constant[value=1]()\n"
        "  %z : Tensor, %last : Tensor = prim::Loop(%two, %yes, %y, %y)\n"
        "    block0(%trip : int, %now : Tensor, %before : Tensor):\n"
        "      %next : Tensor = aten::as_strided(%before, %sizes, %strides, %none)\n"
        "      %turned : Tensor = aten::transpose(%before, %zero, %one)\n"
        "      -> (%yes, %next, %turned)"
    )
    assert "contiguous" not in after and ["always lie in the same way" in note for note in notes] == [True]
