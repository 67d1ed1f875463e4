from __future__ import annotations

import pytest
import torch
from harness import assert_close, check_op, run_op
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import sampled

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, why_unsupported

load_lowerings()

X = torch.randn(2, 5, 7, 11)
WIDE = torch.randn(1, 32, 14, 14)
ROWS = torch.randn(13, 37)
WITH_NAN = torch.randn(2, 3, 4, 5)
WITH_NAN[0, 1, 2, 3] = float("nan")
INTEGERS = torch.randint(-5, 9, (3, 4, 5))
BOOLS = torch.rand(4, 5) > 0.5

CALLS = [
    ("mean.dim", (X, [2, 3], True)),
    ("mean.dim", (WIDE, [-1, -2])),
    ("mean.dim", (X, [1])),
    ("mean.dim", (X, [0, 3])),
    ("mean", (X,)),
    ("mean.dim", (torch.randn(2, 0), [1])),
    ("sum", (ROWS,)),
    ("sum", (torch.tensor(3.5),)),
    ("sum", (BOOLS,)),
    ("sum.dim_IntList", (INTEGERS, [1])),
    ("sum.dim_IntList", (torch.randn(0, 3), [0])),
    ("sum.dim_IntList", (torch.randn(0, 3), [1])),
    ("sum.dim_IntList", (torch.randn(2, 3, 4, 5, 3, 2).permute(3, 1, 5, 0, 2, 4), [0, 2, 4])),
    ("sum.dim_IntList", (X.expand(3, 2, 5, 7, 11), [0, 3])),
    ("amax", (X, [1, 3])),
    ("amax", (X[:, 1:4, ::2, 1:], [0, 2])),
    ("amax", (WITH_NAN, [2])),
    ("amin", (INTEGERS, [0])),
    ("max", (WITH_NAN,)),
    ("min", (torch.randn(1, 40, 60, 50),)),
    ("prod", (ROWS * 0.3 + 1,)),
    ("prod.dim_int", (INTEGERS, 2)),
    ("max.dim", (X, 1)),
    ("max.dim", (WITH_NAN, 3, True)),
    ("min.dim", (INTEGERS, 0)),
    ("argmax", (X,)),
    ("argmax", (INTEGERS, 1)),
    ("argmax", (WITH_NAN, 1)),
    ("argmin", (X, 2)),
    ("any", (BOOLS,)),
    ("any.dim", (ROWS, 0)),
    ("all.dim", (BOOLS, 1)),
    ("all", (BOOLS,)),
    ("var", (X, True)),
    ("var.correction", (X, [1])),
    ("std.correction", (X, [2, 3])),
    ("std.dim", (ROWS, [1], False, True)),
    ("var_mean.correction", (ROWS, [1])),
    ("norm.Scalar", (ROWS, 2)),
    ("norm.Scalar", (ROWS, 3)),
    ("norm.Scalar", (ROWS, 0)),
    ("norm.ScalarOpt_dim", (X, 1, [1])),
    ("linalg_vector_norm", (ROWS, float("inf"), [0])),
    ("logsumexp", (X * 50, [1])),
    ("cumsum", (X, 1)),
    ("cumsum", (INTEGERS, 2)),
    ("cumprod", (ROWS, 1)),
    ("softmax.int", (X, 1)),
    ("softmax.int", (WIDE, 3)),
    ("softmax.int", (torch.randn(3, 130), 0)),
    ("softmax.int", (torch.randn(3, 130), 1)),
    ("softmax.int", (torch.tensor(3.5), 0)),
    ("softmax.int", (torch.tensor([[1.0, -float("inf"), 2.0]]), 1)),
    ("log_softmax.int", (X, 2)),
    ("_softmax", (X.transpose(1, 3), -1, False)),
]


NUMBERED = {f"{op}-{n}": (op, args) for n, (op, args) in enumerate(CALLS)}


@pytest.mark.parametrize("name", sampled(NUMBERED, one_in=2))
def test_operators(any_device, name):
    op, args = NUMBERED[name]
    check_op(any_device, f"aten::{op}", *args)


def test_dtype_of_the_result(any_device):
    check_op(any_device, "aten::mean.dim", INTEGERS, [0], dtype=torch.float32)
    check_op(any_device, "aten::sum.dim_IntList", INTEGERS, [0], dtype=torch.float32)
    check_op(any_device, "aten::softmax.int", INTEGERS, 1, dtype=torch.float32)


def test_reasons():
    integers = Value.of_tensor(torch.int64, (3, 4))
    result = Value.of_tensor(torch.float32, (4,))
    assert "int64" in str(why_unsupported(Node.call("aten::var.correction", (integers, [0], 1, False), (result,))))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_dims_of_any_permutation(device, data):
    rank = data.draw(st.integers(1, 5))
    sizes = data.draw(st.lists(st.integers(1, 7), min_size=rank, max_size=rank))
    order = data.draw(st.permutations(range(rank)))
    dims = data.draw(st.lists(st.integers(0, rank - 1), min_size=1, unique=True))
    x = torch.randn(sizes).permute(order)
    for op in ("aten::sum.dim_IntList", "aten::amax"):
        (found,) = run_op(device, op, x, dims, device_layout=data.draw(st.booleans()))
        assert_close(found, x.sum(dims) if "sum" in op else x.amax(dims))


@pytest.mark.parametrize("steps", [1, 3, 130, 1000])
def test_threads_that_share_an_item(device, monkeypatch, steps):
    """The kernels of GPUs, on a CPU driver."""
    monkeypatch.setattr(DeviceInfo, "is_cpu", property(lambda self: False))
    for x, dim in ((torch.randn(5, steps), 1), (torch.randn(steps, 5), 0), (torch.randn(2, 6, steps, 3), 2)):
        check_op(device, "aten::sum.dim_IntList", x, [dim])
        check_op(device, "aten::max.dim", x, dim)
        check_op(device, "aten::softmax.int", x, dim)
        check_op(device, "aten::var_mean.correction", x, [dim], correction=0)
