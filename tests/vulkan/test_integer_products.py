"""Products of integers, which are products of floats on the device: equal to torch's in every bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from one_node import check, graph_of
from torch import Tensor

from mobopt.runtimes.vulkan.compile.decompose import decompose

DTYPES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


@pytest.fixture(params=["host", pytest.param("device", marks=pytest.mark.sweep)])
def computer(request: pytest.FixtureRequest) -> Any:
    """What computes the parts: torch's kernels (None), or a device."""
    return None if request.param == "host" else request.getfixturevalue("device")


def numbers(dtype: torch.dtype, *sizes: int) -> Tensor:
    """All bits are random, and some rows are of the extremes alone."""
    limits = torch.iinfo(dtype)
    made = torch.randint(limits.min, limits.max, sizes, dtype=torch.int64)
    made.view(-1, sizes[-1])[0] = limits.min
    made.view(-1, sizes[-1])[-1] = limits.max
    return made.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_form(computer: Any, dtype: torch.dtype) -> None:
    a, b, c = numbers(dtype, 5, 7), numbers(dtype, 7, 3), numbers(dtype, 5, 3)
    check(computer, "aten::mm", a, b)
    check(computer, "aten::matmul", numbers(dtype, 2, 5, 7), b)
    check(computer, "aten::matmul", a[0], b)
    check(computer, "aten::bmm", numbers(dtype, 2, 5, 7), numbers(dtype, 2, 7, 3))
    check(computer, "aten::mv", a, b[:, 0].contiguous())
    check(computer, "aten::dot", a[0], a[1])
    check(computer, "aten::linear", a, numbers(dtype, 3, 7), c[0])
    check(computer, "aten::linear", a, numbers(dtype, 3, 7))
    check(computer, "aten::addmm", c, a, b, beta=2, alpha=3)
    check(computer, "aten::addmm", c, a, b, beta=0)
    check(computer, "aten::addmv", c[:, 0].contiguous(), a, b[:, 0].contiguous())


@pytest.mark.parametrize(("beta", "alpha"), [(0.6, 0.2), (-1.6, 2.9), (1, 1.5)])
def test_factors_are_cut_off_to_integers(computer: Any, beta: float, alpha: float) -> None:
    a, b, c = numbers(torch.int32, 5, 7), numbers(torch.int32, 7, 3), numbers(torch.int32, 5, 3)
    check(computer, "aten::addmm", c, a, b, beta=beta, alpha=alpha)
    check(computer, "aten::baddbmm", c[None], a[None], b[None], beta=beta, alpha=alpha)


@pytest.mark.parametrize("length", (511, 517, 1033))
def test_long_rows_of_bytes(computer: Any, length: int) -> None:
    """Sums of products of extremes, beside what float32 holds exactly."""
    a, b = numbers(torch.uint8, 3, length), numbers(torch.int8, 17, length)
    check(computer, "aten::_int_mm", numbers(torch.int8, 17, length), b.t().contiguous()[:, :8].contiguous())
    check(computer, "aten::matmul", a.int(), b.int().t())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_too_long_for_products_of_bytes(computer: Any, dtype: torch.dtype) -> None:
    check(computer, "aten::mm", numbers(dtype, 2, 2003), numbers(dtype, 2003, 3))


def test_products_of_int64_in_pieces(computer: Any) -> None:
    check(computer, "aten::bmm", torch.zeros(2, 3, 0).long(), torch.zeros(2, 0, 5).long())
    check(computer, "aten::mm", numbers(torch.int64, 61, 401), numbers(torch.int64, 401, 67))


def test_what_is_too_long_stays() -> None:
    graph, _, _ = graph_of("aten::mm", numbers(torch.int64, 1031, 67), numbers(torch.int64, 67, 1033))
    decompose(graph)
    assert [node.op for node in graph.block.nodes] == ["aten::mm"]


def test_what_was_widened_is_not_taken_apart() -> None:
    class Widened(torch.nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a.int() @ b.int()

    import mobopt

    a, b = numbers(torch.int8, 3, 7), numbers(torch.int8, 7, 5)
    module = mobopt.optimize_for_mobile(Widened(), backend="vulkan", runtime="mobopt", example_inputs=[a, b])
    assert torch.equal(module(a, b), a.int() @ b.int())
    report = module.plan_report(a, b)
    assert report.dispatches <= 8 and not report.fallbacks, str(report)
