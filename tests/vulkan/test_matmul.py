"""Matrix products against torch on the CPU, with every family of kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional
from harness import check_op, run_calls
from products import check_product, family  # noqa: F401

from mobopt.ir import Node, Value
from mobopt.ops.contexts import LinearPackedContext
from mobopt.runtimes.vulkan.kernels.activation import Activation
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.shaders.enumerations import Opcode


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("sizes", [(1, 17), (3, 64), (2, 5, 7), (2, 3, 4, 16), (13,), (3, 0), (0, 7)])
def test_linear(any_device, family, sizes, has_bias, constant):  # noqa: F811
    weight = torch.randn(10, sizes[-1])
    bias = torch.randn(10) if has_bias else None
    constants = (1, 2) if constant else ()
    check_product(any_device, "aten::linear", torch.randn(sizes), weight, bias, constants=constants)


def test_linear_of_strided_input(device):
    weight, bias = torch.randn(12, 8), torch.randn(12)
    for source in (torch.randn(8, 5).t(), torch.randn(5, 2, 8)[:, 1], torch.randn(5, 13)[:, 4:12]):
        check_product(device, "aten::linear", source, weight, bias, constants=(1, 2), device_layout=False)


@pytest.mark.parametrize("rows, inner, columns", [(1, 1, 1), (5, 7, 3), (33, 130, 65), (128, 64, 96), (2, 1000, 4)])
@pytest.mark.parametrize("constants", [(), (1,)])
def test_mm(any_device, family, rows, inner, columns, constants):  # noqa: F811
    left, right = torch.randn(rows, inner), torch.randn(inner, columns)
    check_product(any_device, "aten::mm", left, right, constants=constants)


@pytest.mark.parametrize(
    "left, right",
    [
        ((5,), (5,)),
        ((3, 5), (5,)),
        ((5,), (5, 3)),
        ((2, 3, 5), (5,)),
        ((5,), (2, 5, 3)),
        ((2, 3, 5), (5, 4)),
        ((3, 5), (2, 5, 4)),
        ((2, 3, 5), (2, 5, 4)),
        ((2, 1, 3, 8), (7, 8, 4)),
        ((2, 2, 3, 8), (1, 1, 8, 6)),
        ((2, 3, 0), (2, 0, 4)),
        ((0, 3, 5), (0, 5, 4)),
    ],
)
def test_matmul(device, family, left, right):  # noqa: F811
    a, b = torch.randn(left), torch.randn(right)
    check_op(device, "aten::matmul", a, b)
    check_product(device, "aten::matmul", a, b, constants=(1,))


def test_strided_operands(device, family):  # noqa: F811
    wide = torch.randn(2, 7, 3, 16)
    query, key = wide[..., :8].transpose(1, 2), wide[..., 8:].transpose(1, 2)
    check_op(device, "aten::matmul", query, key.transpose(-2, -1))
    check_op(device, "aten::bmm", torch.randn(5, 3, 4).transpose(1, 2), torch.randn(3, 9, 5).permute(2, 0, 1)[:, :, 2:])


@pytest.mark.parametrize("constants", [(0, 2), (2,), ()])
@pytest.mark.parametrize("addend", [(7,), (1, 7), (5, 7), (5, 1), (1,)])
@pytest.mark.parametrize("beta, alpha", [(1, 1), (0.5, -2.0), (0, 1)])
def test_addmm(device, addend, constants, beta, alpha):
    left, right, added = torch.randn(5, 6), torch.randn(6, 7), torch.randn(addend)
    check_product(device, "aten::addmm", added, left, right, beta=beta, alpha=alpha, constants=constants)


def test_baddbmm(device):
    left, right, added = torch.randn(3, 5, 6), torch.randn(3, 6, 7), torch.randn(5, 1)
    check_product(device, "aten::baddbmm", added, left, right, beta=0.5, alpha=2)
    check_product(device, "aten::baddbmm", torch.randn(7), left, right, constants=(0, 2))


@pytest.mark.parametrize("op", ["mv", "dot", "addmv"])
def test_vectors(device, op):
    matrix, vector = torch.randn(5, 7), torch.randn(7)
    if op == "mv":
        check_op(device, "aten::mv", matrix, vector)
    elif op == "dot":
        check_op(device, "aten::dot", vector, torch.randn(7))
    else:
        check_op(device, "aten::addmv", torch.randn(5), matrix, vector, beta=2, alpha=3)


@pytest.mark.parametrize("sizes", [(5, 9), (2, 3, 9), (2, 3, 4, 9)])
def test_epilogue(device, family, sizes):  # noqa: F811
    source, weight, bias = torch.randn(sizes), torch.randn(11, 9), torch.randn(11)
    sums = functional.linear(source, weight, bias)
    residual = torch.randn_like(sums)
    ref = Value.of_tensor(residual.dtype, tuple(residual.shape))
    check_product(
        device,
        "aten::linear",
        source,
        weight,
        bias,
        constants=(1, 2),
        epilogue=Epilogue(Activation(Opcode.GELU), ref, Activation(Opcode.TANH)),
        expected=(functional.gelu(sums) + residual).tanh(),
        residual=residual,
    )


def test_packed_context(device):
    source, weight, bias = torch.randn(3, 9), torch.randn(9, 6), torch.randn(6)
    operand = Value.of_tensor(source.dtype, tuple(source.shape))
    output = Value.of_tensor(source.dtype, (3, 6))
    call = Node.call("vulkan_prepack::run_linear_context", (operand, LinearPackedContext(weight, bias)), (output,))
    (found,) = run_calls(device, [call], [(operand, source)], [output])
    torch.testing.assert_close(found, source @ weight + bias, rtol=1e-4, atol=1e-4)
