from __future__ import annotations

import pytest
import torch
from harness import assert_close, check_op, run_op
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import sampled

from mobopt.ir import Node, Value
from mobopt.ir.schemas import schema_of, schemas_of
from mobopt.runtimes.vulkan.lowerings.pointwise import expression_of
from mobopt.runtimes.vulkan.lowerings.pointwise_expressions import EXPRESSIONS
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, supported_operators, why_unsupported

load_lowerings()

NAN, INF = float("nan"), float("inf")
SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 3.0, -3.5, 2.5, 0.5, -0.5, 1e-3, -1e-4, 20.0, -30.0])
SPREAD = torch.cat([SPECIAL, torch.randn(37, generator=torch.Generator().manual_seed(0)) * 3])


def unary_operators() -> list[str]:
    """Every functional pointwise operator that needs one tensor and nothing else."""
    found = []
    for op in supported_operators():
        if expression_of(op) is None or op in ("aten::bitwise_not", "aten::clip", "aten::clamp"):
            continue
        arguments = schema_of(op).arguments
        if all(argument.has_default for argument in arguments[1:]):
            found.append(op)
    return [op for op in found if not op.startswith(("aten::clamp", "aten::clip", "aten::fill", "aten::to"))]


@pytest.mark.parametrize("op", sampled(unary_operators(), one_in=4))
def test_unary(any_device, op):
    # torch's vectorised gelu gives NaN at infinity, where its scalar code gives the limit.
    x = SPREAD[~SPREAD.isinf()] if op == "aten::gelu" else SPREAD
    check_op(any_device, op, x, device_layout=False)


@pytest.mark.parametrize("op", ["aten::relu", "aten::neg", "aten::abs", "aten::sign", "aten::square", "aten::sqrt"])
def test_unary_integers(any_device, op):
    check_op(any_device, op, torch.tensor([0, 1, 7, 2, 5]) - (0 if op == "aten::sqrt" else 3), device_layout=False)


X, Y = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 5, 7)
K, J = torch.randint(-9, 9, (3, 7)), torch.tensor([-3, -2, -1, 1, 2, 3, 4])

CALLS = [
    ("add.Tensor", (X, Y), {"alpha": 2.5}),
    ("add.Tensor", (K, J), {"alpha": 3}),
    ("add.Tensor", (K, Y[0, 0, :3]), {}),
    ("add.Scalar", (X, 2, 3), {}),
    ("sub.Tensor", (X, Y[:, :, :1]), {}),
    ("sub.Scalar", (X, 1.5), {}),
    ("rsub.Scalar", (X, 1.5, 2), {}),
    ("rsub.Tensor", (X, Y), {}),
    ("mul.Tensor", (X, torch.tensor(3)), {}),
    ("mul.Tensor", (K, K > 0), {}),
    ("mul.Scalar", (K, 2.5), {}),
    ("div.Tensor", (K, J), {}),
    ("div.Tensor_mode", (X, Y), {"rounding_mode": "floor"}),
    ("div.Tensor_mode", (X, Y), {"rounding_mode": "trunc"}),
    ("div.Tensor_mode", (K, J), {"rounding_mode": "floor"}),
    ("div.Tensor_mode", (K, J), {"rounding_mode": "trunc"}),
    ("floor_divide", (K, J), {}),
    ("remainder.Tensor", (K, J), {}),
    ("remainder.Scalar", (X, -1.5), {}),
    ("fmod.Tensor", (K, J), {}),
    ("fmod.Scalar", (X, 0.7), {}),
    ("pow.Tensor_Scalar", (X, 2), {}),
    ("pow.Tensor_Scalar", (X, 3.0), {}),
    ("pow.Tensor_Scalar", (X.abs() + 0.1, -1.7), {}),
    ("pow.Tensor_Tensor", (X, torch.tensor([2.0, 3.0, 0.0, 1.0, -1.0, 0.5, -2.0])), {}),
    ("pow.Tensor_Tensor", (K, J.abs()), {}),
    ("pow.Scalar", (2.0, X), {}),
    ("atan2", (X, Y), {}),
    ("atan2", (torch.tensor([0.0, -0.0, 0.0, -0.0, 1.0]), torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0])), {}),
    ("maximum", (SPREAD, SPREAD.flip(0)), {}),
    ("minimum", (SPREAD, SPREAD.flip(0)), {}),
    ("maximum", (K, J), {}),
    ("max.other", (X, Y), {}),
    ("eq.Scalar", (K, 2), {}),
    ("ne.Tensor", (X, X), {}),
    ("lt.Tensor", (SPREAD, SPREAD.flip(0)), {}),
    ("le.Scalar", (K, 2.5), {}),
    ("gt.Tensor", (X, Y), {}),
    ("ge.Tensor", (K, J), {}),
    ("logical_and", (X > 0, K[0] > 0), {}),
    ("logical_xor", (K, J), {}),
    ("bitwise_and.Tensor", (K, J), {}),
    ("bitwise_or.Scalar", (K, 5), {}),
    ("bitwise_not", (K,), {}),
    ("bitwise_not", (K > 0,), {}),
    ("__lshift__.Scalar", (K.abs(), 2), {}),
    ("clamp", (SPREAD, -1, 2), {}),
    ("clamp", (SPREAD, None, 2), {}),
    ("clamp", (SPREAD, 2, -1), {}),
    ("clamp", (K, -2, 3), {}),
    ("clamp", (K, None, 2.5), {}),
    ("clamp.Tensor", (X, Y, None), {}),
    ("clamp.Tensor", (X, Y, Y + 1), {}),
    ("clamp_min", (SPREAD, 0.5), {}),
    ("clamp_max", (SPREAD, 0.5), {}),
    ("hardtanh", (SPREAD, -0.3, 0.8), {}),
    ("threshold", (SPREAD, 0.5, -7), {}),
    ("leaky_relu", (SPREAD, 0.2), {}),
    ("elu", (X, 0.7, 1.3, 0.9), {}),
    ("celu", (X, 0.7), {}),
    ("softplus", (SPREAD, 2, 3), {}),
    ("hardshrink", (SPREAD, 0.4), {}),
    ("softshrink", (X, 0.4), {}),
    ("gelu", (X,), {"approximate": "tanh"}),
    ("round.decimals", (X,), {"decimals": 1}),
    ("where.self", (X > 0, X, Y[:1]), {}),
    ("where.ScalarOther", (X > 0, X, 2.0), {}),
    ("where.Scalar", (X > 0, 1.0, 2.0), {}),
    ("masked_fill.Scalar", (X, Y[:, :1] > 0, -INF), {}),
    ("masked_fill.Tensor", (K, K > 0, torch.tensor(7)), {}),
    ("lerp.Scalar", (X, Y, 0.3), {}),
    ("lerp.Tensor", (X, Y, Y.abs()), {}),
    ("addcmul", (X, Y, Y), {"value": 0.5}),
    ("addcdiv", (X, Y, X.abs() + 1), {"value": 0.5}),
    ("nan_to_num", (SPREAD, 1.0, 2.0, -3.0), {}),
    ("isfinite", (SPREAD,), {}),
    ("fill.Scalar", (X, 3), {}),
    ("add.Tensor", (torch.tensor(2.0), torch.tensor(3)), {}),
    ("add.Tensor", (torch.randn(2, 0, 3), torch.randn(3)), {}),
    ("add.Tensor", (torch.randn(1, 2, 1, 3, 1, 4), torch.randn(3, 2, 2, 1, 2, 1)), {}),
    ("add.Tensor", (torch.tensor([250, 3], dtype=torch.uint8), torch.tensor([9, 1], dtype=torch.uint8)), {}),
    ("mul.Tensor", (torch.tensor([100, -3], dtype=torch.int8), torch.tensor([3, 50], dtype=torch.int8)), {}),
]


@pytest.mark.parametrize(
    "number", sampled(range(len(CALLS)), one_in=2), ids=[f"{op}-{n}" for n, (op, *_) in enumerate(CALLS)]
)
def test_parameters(any_device, number):
    op, args, kwargs = CALLS[number]
    check_op(any_device, f"aten::{op}", *args, device_layout=True, **kwargs)


@pytest.mark.parametrize("layout", [True, False])
def test_layouts(any_device, layout):
    strided = torch.randn(4, 10, 9, 6)[1:, ::2, 1:8, :]
    check_op(any_device, "aten::mul.Tensor", strided.transpose(1, 3), torch.randn(7, 5), device_layout=layout)
    check_op(any_device, "aten::add.Tensor", strided, torch.randn(5, 1, 1), device_layout=layout)
    check_op(any_device, "aten::relu", torch.randn(3, 1).expand(3, 5), device_layout=layout)


def test_specials_where_layouts_have_padding(device):
    x = torch.randn(2, 3, 4, 5)
    x[0, 1, 2, 3] = NAN
    check_op(device, "aten::relu", x)


def test_no_lowering_writes_in_place():
    assert not [op for op in supported_operators() if op.startswith("aten::") and schema_of(op).is_mutating]


def test_reasons():
    double = Value.of_tensor(torch.float64, (3,))
    assert "float64" in str(why_unsupported(Node.call("aten::relu", (double,), (double,))))
    deep = Value.of_tensor(torch.float32, (1,) * 9)
    assert "rank 9" in str(why_unsupported(Node.call("aten::relu", (deep,), (deep,))))


def test_every_expression_names_an_operator():
    assert [name for name in EXPRESSIONS if not schemas_of(name)] == []


@st.composite
def broadcast_views(draw):
    """Two tensors that broadcast, each a strided view of something larger."""
    rank = draw(st.integers(0, 4))
    sizes = draw(st.lists(st.integers(1, 6), min_size=rank, max_size=rank))
    views = []
    for _ in range(2):
        kept = sizes[draw(st.integers(0, rank)) :]
        shape = [size if draw(st.booleans()) else 1 for size in kept]
        steps = [draw(st.integers(1, 2)) for _ in shape]
        starts = [draw(st.integers(0, 2)) for _ in shape]
        order = draw(st.permutations(range(len(shape))))
        base = torch.randn([shape[d] * steps[d] + starts[d] for d in order]).permute(
            [order.index(d) for d in range(len(shape))]
        )
        window = tuple(slice(s, s + n * k, k) for s, n, k in zip(starts, shape, steps, strict=True))
        views.append(base[window] if window else base)
    return views


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(views=broadcast_views(), layout=st.booleans())
def test_any_strides_broadcast(device, views, layout):
    (found,) = run_op(device, "aten::sub.Tensor", *views, device_layout=layout)
    assert_close(found, views[0] - views[1])
