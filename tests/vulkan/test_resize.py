from __future__ import annotations

import pytest
import torch
from harness import check_op

from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings

load_lowerings()

ODD, ROUND = torch.randn(2, 5, 13, 11), torch.randn(1, 8, 14, 14)
IMAGE_CALLS = [
    ("upsample_nearest2d", ([28, 28],)),
    ("upsample_nearest2d", ([7, 9],)),
    ("upsample_nearest2d.vec", (None, [2.0, 2.0])),
    ("upsample_nearest2d.vec", (None, [1.7, 2.3])),
    ("upsample_nearest2d.vec", ([26, 20], None)),
    ("_upsample_nearest_exact2d", ([9, 31],)),
    ("upsample_bilinear2d", ([27, 31], False)),
    ("upsample_bilinear2d", ([27, 31], True)),
    ("upsample_bilinear2d", ([5, 1], True)),
    ("upsample_bilinear2d.vec", (None, False, [1.7, 2.0])),
    ("upsample_bicubic2d", ([27, 9], False)),
    ("upsample_bicubic2d", ([27, 9], True)),
    ("_upsample_bilinear2d_aa", ([5, 8], False)),
    ("_upsample_bicubic2d_aa", ([5, 20], False)),
    ("reflection_pad2d", ([1, 2, 3, 4],)),
    ("replication_pad2d", ([1, 2, 3, 4],)),
    ("constant_pad_nd", ([1, -2, 0, 3], 0.5)),
    ("pad", ([2, 2, 1, 1], "circular")),
    ("pad", ([2, 2, 1, 1], "reflect")),
    ("pad", ([2, 2, 1, 1],)),
]
OTHER_CALLS = [
    ("upsample_nearest1d", (torch.randn(2, 3, 7), [15])),
    ("upsample_nearest1d.vec", (torch.randn(2, 3, 7), None, [3.0])),
    ("upsample_linear1d", (torch.randn(2, 3, 7), [15], False)),
    ("upsample_trilinear3d", (torch.randn(1, 2, 3, 4, 5), [5, 6, 7], False)),
    ("upsample_nearest3d", (torch.randn(1, 2, 3, 4, 5), [5, 6, 7])),
    ("reflection_pad1d", (torch.randn(2, 3, 7), [2, 3])),
    ("replication_pad3d", (torch.randn(1, 2, 3, 4, 5), [1, 1, 1, 1, 1, 1])),
    ("constant_pad_nd", (torch.randn(3, 4), [1, 1, 2, 2])),
    ("constant_pad_nd", (torch.arange(6).reshape(2, 3), [1, 1], 7)),
]


@pytest.mark.parametrize("x", [ODD, ROUND], ids=["odd", "round"])
@pytest.mark.parametrize("op, args", IMAGE_CALLS, ids=[f"{op}-{n}" for n, (op, _) in enumerate(IMAGE_CALLS)])
def test_images(any_device, op, args, x):
    check_op(any_device, f"aten::{op}", x, *args)


@pytest.mark.parametrize("op, args", OTHER_CALLS, ids=[f"{op}-{n}" for n, (op, _) in enumerate(OTHER_CALLS)])
def test_other_ranks(any_device, op, args):
    check_op(any_device, f"aten::{op}", *args)
