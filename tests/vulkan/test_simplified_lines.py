"""What is taken out of a straight line before anything is fused: copies, ones, zeros, views of what is there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graph_texts import expect, graph_of, text_of
from harness import run_graph

from mobopt.runtimes.vulkan.compile.simplify import simplify
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings

load_lowerings()

COPIES = """
    graph(%x : F):
      %a : F = aten::relu(%x)
      %b : F = aten::clone(%a, None)
      %c : F = LAST(%b)
      return (%c)
    """


def simplified(text: str) -> str:
    graph = graph_of(text)
    simplify(graph)
    return text_of(graph)


def test_copies_go() -> None:
    assert simplified(COPIES.replace("LAST", "aten::neg")) == expect(
        """
        graph(%x : F):
          %a : F = aten::relu(%x)
          %c : F = aten::neg(%a)
          return (%c)
        """
    )


@pytest.mark.parametrize("step", ["div.Scalar(%a, 1.0)", "mul.Scalar(%a, 1)"])
def test_factors_of_one_go(step: str) -> None:
    text = COPIES.replace("aten::clone(%a, None)", f"aten::{step}").replace("LAST", "aten::neg")
    assert simplified(text) == simplified(COPIES.replace("LAST", "aten::neg"))


@pytest.mark.parametrize("step", ["div.Scalar(%a, 1.5)", "mul.Scalar(%a, -1)", "add.Scalar(%a, 1, 1)"])
def test_other_numbers_stay(step: str) -> None:
    assert step in simplified(COPIES.replace("aten::clone(%a, None)", f"aten::{step}").replace("LAST", "aten::neg"))


def test_integers_that_become_floats_by_one_stay() -> None:
    text = """
        graph(%x : Long(2, 5)):
          %y : Float(2, 5) = aten::div.Scalar(%x, 1)
          return (%y)
        """
    assert "aten::div.Scalar(%x, 1)" in simplified(text)


def test_concatenations_with_nothing_go() -> None:
    """As of what Phi-3's rotary positions leave of a head, which is nothing."""
    text = """
        graph(%x : F):
          %a : F = aten::relu(%x)
          %n : Float(2, 5, 7, 0) = aten::slice.Tensor(%a, 3, 6, 9223372036854775807, 1)
          %b : F = aten::cat([%a, %n], -1)
          %c : F = aten::neg(%b)
          return (%c)
        """
    found = simplified(text)
    assert "aten::cat" not in found and "aten::neg(%a)" in found


def test_copies_that_the_caller_is_given_stay() -> None:
    for returned in ("%b", "%a, %b"):
        source = "%x" if returned == "%b" else "%a"
        before = expect(
            f"""
            graph(%x : F):
              %a : F = aten::relu(%x)
              %b : F = aten::clone({source}, None)
              %c : F = aten::neg(%a)
              return ({returned}, %c)
            """
        )
        assert simplified(before) == before


def test_a_copy_of_a_computed_tensor_is_that_tensor() -> None:
    text = simplified(COPIES.replace("LAST", "aten::neg").replace("return (%c)", "return (%c, %b)"))
    assert "clone" not in text and "return (%c, %a)" in text


def test_views_that_show_a_tensor_as_it_is_go() -> None:
    graph = graph_of(
        """
        graph(%x : Float(3, 4)):
          %a : Float(1, 3, 4) = aten::unsqueeze(%x, 0)
          %b : Float(3, 4) = aten::squeeze.dim(%a, 0)
          %c : Float(3, 4) = aten::relu(%b)
          %d : Float(12) = aten::flatten.using_ints(%c, 0, 1)
          %e : Float(3, 4) = aten::view(%d, [3, 4])
          %f : Float(3, 4) = aten::neg(%e)
          %g : Float(4, 3) = aten::view(%f, [4, 3])
          %h : Float(3, 4) = aten::permute(%g, [1, 0])
          %i : Float(3, 4) = aten::neg(%h)
          return (%d, %i)
        """
    )
    simplify(graph)
    assert text_of(graph) == expect(
        """
        graph(%x : Float(3, 4)):
          %c : Float(3, 4) = aten::relu(%x)
          %d : Float(12) = aten::flatten.using_ints(%c, 0, 1)
          %f : Float(3, 4) = aten::neg(%c)
          %g : Float(4, 3) = aten::view(%f, [4, 3])
          %h : Float(3, 4) = aten::permute(%g, [1, 0])
          %i : Float(3, 4) = aten::neg(%h)
          return (%d, %i)
        """
    )


PLACES = """
    graph(%place : Long()):
      %zero : Long(1) = prim::Constant[value=<Tensor>]()
      %p : Long(1) = aten::add.Tensor(FIRST, SECOND, 1)
      %q : Long(1) = aten::neg(%p)
      return (%q)
    """


@pytest.mark.parametrize("order", [("%zero", "%place"), ("%place", "%zero")])
def test_nothing_is_added_to_places(device: Any, order: tuple[str, str]) -> None:
    """As where a token of transformers' static caches stands: ``arange(1) + length``."""
    graph = graph_of(PLACES.replace("FIRST", order[0]).replace("SECOND", order[1]), {"zero": torch.zeros(1).long()})
    simplify(graph)
    assert text_of(graph) == expect(
        """
        graph(%place : Long()):
          %p : Long(1) = aten::reshape(%place, [1])
          %q : Long(1) = aten::neg(%p)
          return (%q)
        """
    )
    (found,) = run_graph(device, graph, [torch.tensor(7)])
    assert found.tolist() == [-7]


@pytest.mark.parametrize(
    ("text", "zero"),
    [
        (PLACES.replace("FIRST", "%zero").replace("SECOND", "%place"), torch.tensor([3])),
        (PLACES.replace("FIRST", "%zero").replace("SECOND, 1", "%place, 2"), torch.tensor([0])),
        (PLACES.replace("FIRST", "%place").replace("SECOND", "%zero").replace("Long", "Float"), torch.zeros(1)),
        (PLACES.replace("FIRST", "%zero").replace("SECOND", "%place").replace("Long()", "Int()"), torch.tensor([0])),
    ],
    ids=["three", "twice", "floats, as -0 becomes 0", "another dtype"],
)
def test_what_else_is_added_stays(text: str, zero: torch.Tensor) -> None:
    graph = graph_of(text, {"zero": zero})
    simplify(graph)
    assert "aten::add.Tensor" in text_of(graph)
