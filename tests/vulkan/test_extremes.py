"""The least and the greatest of a tensor by one operator, and where that stands for two."""

from __future__ import annotations

import math
import textwrap
from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import check_op

from mobopt.ir import parse_graph, print_graph, verify_graph
from mobopt.runtimes.vulkan.compile.extremes import join_extremes

SIZES = [(), (1,), (5,), (1, 37), (7, 13, 5), (3, 4099), (2, 3, 5, 7), (70001,), (311, 331)]


@pytest.fixture(params=["cpu", "gpu", "gpu of one core", "gpu, two dispatches"])
def kind(request: pytest.FixtureRequest, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of each kind of device."""
    if request.param == "cpu":
        return
    switches = device.info.switches | ({"no-joins"} if "two" in request.param else set())
    cores = 1 if "one" in request.param else 16
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete", cores=cores, switches=switches))


def check(device: Any, x: torch.Tensor, dim: int | None, keepdim: bool = False) -> None:
    """Compare with torch, to the bit."""
    check_op(device, "aten::aminmax", x, relative=0.0, dim=dim, keepdim=keepdim)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_of_all(device: Any, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(0)).to(dtype)
    for values in (x, -x.abs() - 1, x.abs() + 1, torch.full_like(x, math.inf), torch.zeros_like(x)):
        check(device, values, None)
    check(device, x, None, keepdim=True)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("place", [0, 17, -1])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_of_all_with_one_that_is_no_number(device: Any, place: int, number: float) -> None:
    x = torch.randn(311, 331, generator=torch.Generator().manual_seed(1))
    x.view(-1)[place] = number
    check(device, x, None)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize(
    "sizes, dim", [((5,), 0), ((3, 4099), 1), ((4099, 3), 0), ((2, 3, 5, 7), 2), ((2, 1, 3), 1)], ids=str
)
@pytest.mark.parametrize("keepdim", [False, True])
def test_of_one_dimension(device: Any, sizes: tuple[int, ...], dim: int, keepdim: bool) -> None:
    check(device, torch.randn(sizes, generator=torch.Generator().manual_seed(2)), dim, keepdim)


@pytest.mark.usefixtures("kind")
def test_of_views(device: Any) -> None:
    x = torch.randn(41, 47, generator=torch.Generator().manual_seed(3))
    for view in (x.t(), x[3:, 1:], x[::2, ::3], x[:1].expand(5, 47), x[1]):
        check(device, view, None)
        check(device, view, 0)


def joined(text: str) -> str:
    graph = parse_graph(textwrap.dedent(text))
    join_extremes(graph)
    verify_graph(graph)
    return print_graph(graph)


def test_two_become_one() -> None:
    found = joined(
        """
        graph(%x : Float(3, 5), %y : Float(3, 5)):
          %a : Float() = aten::min(%x)
          %b : Float() = aten::amin(%y, [-1], False)
          %c : Float() = aten::amax(%x, [0, 1], False)
          %d : Float() = aten::sub.Tensor(%c, %a, 1)
          return (%d, %b)
        """
    )
    assert found == textwrap.dedent(
        """
        graph(%x : Float(3, 5),
              %y : Float(3, 5)):
          %0 : Float(), %1 : Float() = aten::aminmax(%x, None, False)
          %b : Float() = aten::amin(%y, [-1], False)
          %d : Float() = aten::sub.Tensor(%1, %0, 1)
          return (%d, %b)
        """
    ).lstrip("\n")


@pytest.mark.parametrize("order", [("amax", "amin"), ("amin", "amax")])
def test_of_one_dimension_they_become_one(order: tuple[str, str]) -> None:
    first, second = order
    found = joined(
        f"""
        graph(%x : Float(3, 5)):
          %a : Float(3, 1) = aten::{first}(%x, [-1], True)
          %b : Float(3, 1) = aten::{second}(%x, [1], True)
          return (%a, %b)
        """
    )
    assert "%0 : Float(3, 1), %1 : Float(3, 1) = aten::aminmax(%x, 1, True)" in found
    assert ("return (%0, %1)" if first == "amin" else "return (%1, %0)") in found


@pytest.mark.parametrize(
    "other",
    [
        "aten::amax(%y, [], False)",  # of another tensor
        "aten::amax(%x, [0], False)",  # over another dimension
        "aten::amax(%x, [], True)",  # of another shape
        "aten::amin(%x, [], False)",  # the same one
    ],
)
def test_others_stay_two(other: str) -> None:
    text = f"""
        graph(%x : Float(3, 5), %y : Float(3, 5)):
          %a : Float() = aten::min(%x)
          %b : Float() = {other}
          return (%a, %b)
        """
    assert "aminmax" not in joined(text)


def test_integers_stay_two() -> None:
    """Those of 64 bits have another kernel."""
    text = """
        graph(%x : Long(3, 5)):
          %a : Long() = aten::min(%x)
          %b : Long() = aten::max(%x)
          return (%a, %b)
        """
    assert "aminmax" not in joined(text)


def test_of_dimensions_that_no_operator_has_they_stay_two() -> None:
    text = """
        graph(%x : Float(2, 3, 5)):
          %a : Float(5) = aten::amin(%x, [0, 1], False)
          %b : Float(5) = aten::amax(%x, [0, 1], False)
          return (%a, %b)
        """
    assert "aminmax" not in joined(text)


def test_the_greatest_magnitude_is_a_norm() -> None:
    found = joined(
        """
        graph(%x : Float(3, 5)):
          %m : Float(3, 5) = aten::abs(%x)
          %a : Float(3, 1) = aten::amax(%m, [-1], True)
          %n : Float(3, 5) = aten::abs(%x)
          %b : Float() = aten::amax(%n, [], False)
          return (%a, %b)
        """
    )
    assert found == textwrap.dedent(
        """
        graph(%x : Float(3, 5)):
          %a : Float(3, 1) = aten::linalg_vector_norm(%x, inf, [-1], True, None)
          %b : Float() = aten::linalg_vector_norm(%x, inf, None, False, None)
          return (%a, %b)
        """
    ).lstrip("\n")


def test_a_magnitude_that_something_else_reads_stays() -> None:
    text = """
        graph(%x : Float(3, 5)):
          %m : Float(3, 5) = aten::abs(%x)
          %a : Float(3, 1) = aten::amax(%m, [-1], True)
          return (%a, %m)
        """
    assert "aten::amax" in joined(text)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 0.0])
def test_a_norm_is_what_the_greatest_magnitude_was(device: Any, number: float) -> None:
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(4))
    x[1, 2] = number
    expected = x.abs().amax(1, keepdim=True)
    assert torch.equal(torch.linalg.vector_norm(x, math.inf, 1, True).nan_to_num(), expected.nan_to_num())
    check_op(device, "aten::linalg_vector_norm", x, math.inf, [1], True, relative=0.0)
