"""Rewrites of pools and convolutions over all small parameters: numbers against eager, and nothing wrong left."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from layer_cases import findings, legalized
from torch import nn

pytestmark = pytest.mark.sweep


def check(module: nn.Module, x: torch.Tensor, runtime: str) -> None:
    """The legalised module gives what eager gives, and each operator left has a kernel that is right."""
    program, _ = legalized(module, [x], runtime)
    bad = [(node, finding.why) for node, finding in findings(program, [x], runtime) if not finding.is_good]
    assert not [item for item in bad if item[0].op != "aten::size"]


POOLS = [
    (kernel, stride, padding, ceil)
    for kernel, stride, padding, ceil in product((1, 2, 3, 5), (1, 2, 3), (0, 1, 2), (False, True))
    if padding <= kernel // 2
]


@pytest.mark.parametrize("runtime", ["1.13", "2.6"])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize(("kernel", "stride", "padding", "ceil"), POOLS)
def test_max_pooling(kernel: int, stride: int, padding: int, ceil: bool, dilation: int, runtime: str) -> None:
    for size in ((1, 5, 11, 13), (2, 5, 12, 14)):
        module = nn.MaxPool2d(kernel, stride, padding, dilation, ceil_mode=ceil)
        check(module, -torch.rand(size) - 1, runtime)


@pytest.mark.parametrize("runtime", ["1.13", "2.6"])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding", "ceil"), POOLS)
def test_average_pooling(kernel: int, stride: int, padding: int, ceil: bool, counted: bool, runtime: str) -> None:
    for size in ((1, 5, 11, 13), (2, 5, 12, 14)):
        module = nn.AvgPool2d(kernel, stride, padding, ceil, counted)
        check(module, torch.randn(size), runtime)


@pytest.mark.parametrize("runtime", ["1.13", "2.6"])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "groups"),
    list(product((1, 2, 3), (1, 2), (0, 1, 2), (1, 2), (1, 2, 3, 6))),
)
def test_convolutions(kernel: int, stride: int, padding: int, dilation: int, groups: int, runtime: str) -> None:
    for out, batch in ((6, 1), (12, 2)):
        x = torch.randn(batch, 6, 7, 11)
        check(nn.Conv2d(6, out, kernel, stride, padding, dilation, groups), x, runtime)
        check(nn.ConvTranspose2d(6, out, kernel, stride, padding, 0, groups, dilation=dilation), x, runtime)
