from __future__ import annotations

import pytest
import torch
from harness import check_op

from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings

load_lowerings()

ODD, ROUND = torch.randn(2, 5, 13, 11), torch.randn(1, 16, 14, 14)
WITH_NAN = torch.randn(1, 4, 6, 6)
WITH_NAN[0, 1, 2, 2] = float("nan")

IMAGE_CALLS = [
    ("max_pool2d", ([3, 3], [2, 2], [1, 1])),
    ("max_pool2d", ([2, 2],)),
    ("max_pool2d", ([3, 3], [2, 2], [1, 1], [1, 1], True)),
    ("max_pool2d_with_indices", ([3, 2], [2, 1], [1, 0], [1, 2], True)),
    ("avg_pool2d", ([3, 3], [2, 2], [1, 1])),
    ("avg_pool2d", ([3, 2], [2, 2], [1, 1], True, False)),
    ("avg_pool2d", ([3, 3], [2, 2], [1, 1], True, True)),
    ("avg_pool2d", ([2, 2], [], [0, 0], False, True, 3)),
    ("adaptive_avg_pool2d", ([1, 1],)),
    ("_adaptive_avg_pool2d", ([7, 7],)),
    ("adaptive_avg_pool2d", ([3, 4],)),
    ("adaptive_max_pool2d", ([3, 5],)),
]
OTHER_CALLS = [
    ("max_pool2d", (torch.randn(3, 9, 9), [3, 3])),
    ("max_pool2d", (WITH_NAN, [2, 2])),
    ("max_pool2d", (ODD.transpose(1, 3), [3, 3])),
    ("adaptive_avg_pool2d", (torch.randn(3, 9, 9), [1, 1])),
    ("adaptive_avg_pool2d", (torch.randn(1, 8, 112, 112), [1, 1])),
    ("avg_pool2d", (torch.randn(0, 3, 8, 8), [2, 2])),
    ("max_pool1d", (torch.randn(2, 3, 17), [3], [2], [1])),
    ("avg_pool1d", (torch.randn(3, 17), [3], [2], [1], True)),
    ("max_pool3d", (torch.randn(2, 3, 5, 6, 7), [2, 2, 2])),
    ("max_pool3d_with_indices", (torch.randn(2, 3, 5, 6, 7), [2, 2, 3], [1, 2, 2])),
    ("avg_pool3d", (torch.randn(2, 3, 5, 6, 7), [2, 3, 2])),
    ("adaptive_avg_pool1d", (torch.randn(2, 3, 17), [5])),
    ("adaptive_avg_pool3d", (torch.randn(2, 3, 5, 6, 7), [2, 2, 3])),
    ("adaptive_max_pool1d", (torch.randn(2, 3, 17), [5])),
    ("adaptive_max_pool3d", (torch.randn(2, 3, 5, 6, 7), [2, 2, 3])),
]


@pytest.mark.parametrize("x", [ODD, ROUND], ids=["odd", "round"])
@pytest.mark.parametrize("op, args", IMAGE_CALLS, ids=[f"{op}-{n}" for n, (op, _) in enumerate(IMAGE_CALLS)])
def test_images(any_device, op, args, x):
    check_op(any_device, f"aten::{op}", x, *args)


@pytest.mark.parametrize("op, args", OTHER_CALLS, ids=[f"{op}-{n}" for n, (op, _) in enumerate(OTHER_CALLS)])
def test_other_ranks(any_device, op, args):
    check_op(any_device, f"aten::{op}", *args)
