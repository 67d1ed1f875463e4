"""Images at places of a grid, beside torch: modes, edges, corners, volumes, strides."""

from __future__ import annotations

import itertools

import pytest
import torch
from harness import check_op
from torch import Tensor

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, why_unsupported

load_lowerings()

_RANDOM = torch.Generator().manual_seed(0)


def _randn(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=_RANDOM)


IMAGE, GRID = _randn(2, 5, 7, 11), _randn(2, 3, 13, 2)
VOLUME, PLACES = _randn(2, 3, 5, 7, 4), _randn(2, 3, 2, 5, 3)
EDGES = torch.tensor([-1.0, 1.0, 0.0, -1.1, 1.1, 3.7, -5.2, 100.0])
CORNERS = torch.cartesian_prod(EDGES, EDGES).reshape(1, 8, 8, 2)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(("mode", "padding"), list(itertools.product(range(3), range(3))))
def test_images(any_device, mode, padding, aligned):
    check_op(any_device, "aten::grid_sampler_2d", IMAGE, GRID, mode, padding, aligned)
    check_op(any_device, "aten::grid_sampler", IMAGE[:1, :1, :1], CORNERS, mode, padding, aligned)
    turned = GRID.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)
    check_op(any_device, "aten::grid_sampler", IMAGE.mT.contiguous().mT, turned, mode, padding, aligned)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(("mode", "padding"), list(itertools.product(range(2), range(3))))
def test_volumes(any_device, mode, padding, aligned):
    check_op(any_device, "aten::grid_sampler_3d", VOLUME, PLACES, mode, padding, aligned)


def test_halves_are_left_to_the_cpu():
    values = [Value.of_tensor(torch.float16, tuple(tensor.shape)) for tensor in (IMAGE, GRID)]
    output = Value.of_tensor(torch.float16, (2, 5, 3, 13))
    reason = why_unsupported(Node.call("aten::grid_sampler_2d", (*values, 0, 0, False), (output,)))
    assert reason is not None and "torch.float16" in reason


def test_no_places(any_device):
    check_op(any_device, "aten::grid_sampler_2d", IMAGE, GRID[:, :0], 0, 0, False)
