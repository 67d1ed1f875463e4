from __future__ import annotations

import pytest
import torch
from harness import check_op

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, why_unsupported

load_lowerings()

IMAGE = torch.randn(2, 12, 5, 3)
ROWS = torch.randn(13, 37)
W, B, MEAN, VAR = torch.randn(12), torch.randn(12), torch.randn(12), torch.rand(12) + 0.5

CALLS = [
    ("layer_norm", (IMAGE, [3], torch.randn(3), torch.randn(3))),
    ("layer_norm", (IMAGE, [5, 3], None, None)),
    ("layer_norm", (torch.randn(2, 9, 64), [64], torch.randn(64), None)),
    ("native_layer_norm", (ROWS, [37], torch.randn(37), torch.randn(37), 1e-5)),
    ("group_norm", (IMAGE, 3, W, B)),
    ("group_norm", (IMAGE, 4, None, None)),
    ("group_norm", (torch.randn(2, 6, 9), 2, torch.randn(6), torch.randn(6))),
    ("native_group_norm", (IMAGE, W, B, 2, 12, 15, 3, 1e-5)),
    ("instance_norm", (IMAGE, W, B, None, None, True, 0.1, 1e-5, False)),
    ("instance_norm", (IMAGE, W, B, MEAN, VAR, False, 0.1, 1e-5, False)),
    ("batch_norm", (IMAGE, W, B, MEAN, VAR, False, 0.1, 1e-5, False)),
    ("batch_norm", (IMAGE, None, None, MEAN, VAR, False, 0.1, 1e-5, False)),
    ("batch_norm", (ROWS, None, torch.randn(37), torch.randn(37), torch.rand(37) + 0.5, False, 0.1, 1e-5, False)),
    ("rms_norm", (ROWS, [37], torch.randn(37), 1e-6)),
]


@pytest.mark.parametrize("op, args", CALLS, ids=[f"{op}-{n}" for n, (op, _) in enumerate(CALLS)])
def test_operators(any_device, op, args):
    check_op(any_device, f"aten::{op}", *args)


def test_training_is_refused():
    x, vector = Value.of_tensor(torch.float32, (2, 3, 4, 4)), Value.of_tensor(torch.float32, (3,))
    call = Node.call("aten::batch_norm", (x, None, None, vector, vector, True, 0.1, 1e-5, False), (x,))
    assert "eval()" in str(why_unsupported(call))
