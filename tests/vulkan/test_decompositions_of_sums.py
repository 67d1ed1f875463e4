"""Decompositions of losses, statistics and matrices, beside torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from one_node import check, graph_of

from mobopt.runtimes.vulkan.compile.decompose import decompose


@pytest.fixture(params=["host", pytest.param("device", marks=pytest.mark.sweep)])
def computer(request: pytest.FixtureRequest) -> Any:
    """What computes the parts: torch's kernels (None), or a device."""
    return None if request.param == "host" else request.getfixturevalue("device")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def test_margins_of_several_labels(computer: Any) -> None:
    x = torch.randn(4, 5)
    labels = torch.tensor([[3, 0, -1, 2, 1], [-1, 1, 2, 3, 4], [0, 1, 2, 3, 4], [2, 2, -1, 0, -1]])
    for reduction in range(3):
        check(computer, "aten::multilabel_margin_loss", x, labels, reduction)
        check(computer, "aten::multilabel_margin_loss_forward", x, labels, reduction, returned=2)
        check(computer, "aten::multilabel_margin_loss_forward", x[0], labels[0], reduction, returned=2)


def test_covariances(computer: Any) -> None:
    x, counts, shares = torch.randn(3, 7), torch.tensor([1, 2, 3, 1, 1, 4, 2]), torch.rand(7)
    for correction in (0, 1, 2):
        for given in ({}, {"fweights": counts}, {"aweights": shares}, {"fweights": counts, "aweights": shares}):
            check(computer, "aten::cov", x, correction=correction, **given)
            check(computer, "aten::cov", x[0], correction=correction, **given)
    check(computer, "aten::cov", x[:, :2], correction=3)
    check(computer, "aten::corrcoef", x)
    check(computer, "aten::corrcoef", x[0])


def test_histograms(computer: Any) -> None:
    x = torch.cat((torch.randn(101), torch.tensor([-1.0, 1.0, 0.5, torch.nan, torch.inf, -torch.inf])))
    for bins, low, high in ((7, -1, 1), (1, 0, 2), (100, -3, 3)):
        check(computer, "aten::histc", x, bins, low, high)
    for finite in (torch.randn(3, 17), torch.full((5,), 3.0), torch.zeros(1), torch.randn(101) * 1e-3 - 700):
        check(computer, "aten::histc", finite, 7)
        check(computer, "aten::histc", finite, 5, 2, 2)
    graph, _, _ = graph_of("aten::histc", torch.randn(0), 3)
    decompose(graph)
    assert [node.op for node in graph.block.nodes] == ["aten::histc"]


def test_sums_of_functions(computer: Any) -> None:
    for order in (1, 3, 5):
        x = torch.rand(3, 5) * 9 + 2.1
        check(computer, "aten::mvlgamma", x, order)
        check(computer, "aten::mvlgamma", x.int(), order)
        check(computer, "aten::mvlgamma", x.half(), order, relative=2e-3)
        check(computer, "aten::mvlgamma", x.bfloat16(), order, relative=1.6e-2)
    special = torch.tensor([0.0, -0.0, 1e-20, torch.inf, -torch.inf, torch.nan, 1e5])
    check(computer, "aten::special_spherical_bessel_j0", torch.cat((special, torch.randn(17) * 9)))


def test_pairs(computer: Any) -> None:
    for order in (0.0, 1.0, 2.0, 3.0, float("inf")):
        check(computer, "aten::_pdist_forward", torch.randn(7, 5), order)


def test_products_of_matrices(computer: Any) -> None:
    first, second = torch.randn(3, 5, 7), torch.randn(3, 7, 2)
    check(computer, "aten::addbmm", torch.randn(5, 2), first, second, beta=0.5, alpha=2.0)
    check(computer, "aten::addbmm", torch.randn(2), first, second)
    square = torch.randn(2, 5, 5)
    for exponent in (-2, -1, 1, 2, 5, 6):
        check(computer, "aten::linalg_matrix_power", square, exponent, relative=1e-4)
    check(computer, "aten::linalg_tensorinv", torch.randn(2, 3, 6), 2, relative=1e-4)
    check(computer, "aten::linalg_tensorsolve", torch.randn(2, 3, 6), torch.randn(2, 3), relative=1e-4)
    check(computer, "aten::linalg_tensorsolve", torch.randn(2, 6, 3), torch.randn(2, 3), [1], relative=1e-4)


def test_running_sums_without_dimensions(computer: Any) -> None:
    check(computer, "aten::logcumsumexp", torch.tensor(1.5), 0)
    check(computer, "aten::logcumsumexp", torch.randn(0, 3), 0)
