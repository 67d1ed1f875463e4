"""Convolutions against torch on the CPU, with every family of kernels, on sizes that divide nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional
from harness import run_calls
from products import check_product, family  # noqa: F401

from mobopt.ir import Node, Value
from mobopt.ops.contexts import Conv1dPackedContext, Conv2dPackedContext
from mobopt.runtimes.vulkan.kernels.activation import Activation, clamp
from mobopt.runtimes.vulkan.kernels.convolution_parameters import phases
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.shaders.enumerations import Opcode

# input, filter, stride, padding, dilation, groups
PLAIN = [
    ((1, 3, 13, 11), (16, 3, 3, 3), (2, 2), (1, 1), (1, 1), 1),
    ((3, 5, 7, 9), (7, 5, 3, 5), (1, 2), (2, 0), (2, 1), 1),
    ((2, 8, 6, 5), (12, 8, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((2, 8, 6, 5), (9, 8, 1, 1), (2, 1), (0, 0), (1, 1), 1),
    ((1, 17, 4, 3), (131, 17, 1, 1), (1, 1), (1, 2), (1, 1), 1),
    ((1, 64, 14, 14), (68, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((1, 4, 1, 1), (4, 4, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((1, 2, 31, 1), (3, 2, 7, 1), (3, 1), (3, 0), (1, 1), 1),
    ((2, 16, 9, 7), (24, 8, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    ((1, 24, 5, 5), (24, 8, 3, 3), (2, 2), (1, 1), (1, 1), 3),
    ((1, 16, 5, 5), (64, 4, 1, 1), (1, 1), (0, 0), (1, 1), 4),
    ((2, 6, 5, 7), (9, 2, 3, 3), (1, 1), (1, 1), (1, 1), 3),
    ((1, 5, 6, 6), (10, 1, 3, 3), (1, 1), (1, 1), (1, 1), 5),
]
DEPTHWISE = [
    ((1, 32, 14, 14), (32, 1, 3, 3), (1, 1), (1, 1), (1, 1), 32),
    ((3, 7, 11, 13), (7, 1, 3, 3), (2, 2), (1, 1), (1, 1), 7),
    ((1, 12, 7, 7), (12, 1, 5, 5), (1, 1), (2, 2), (1, 1), 12),
    ((1, 12, 9, 8), (12, 1, 5, 3), (2, 1), (0, 2), (1, 1), 12),
    ((2, 5, 17, 16), (5, 1, 3, 3), (1, 1), (2, 2), (2, 2), 5),
    ((1, 3, 16, 16), (3, 1, 7, 7), (1, 1), (3, 3), (1, 1), 3),
    ((1, 1, 9, 9), (1, 1, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((1, 4, 40, 40), (4, 1, 17, 17), (1, 1), (8, 8), (1, 1), 4),
    ((1, 6, 1, 10), (6, 1, 1, 3), (1, 1), (0, 1), (1, 1), 6),
    ((1, 64, 13, 11), (64, 2, 3, 3), (1, 1), (1, 1), (1, 1), 32),
    ((3, 6, 11, 13), (6, 2, 3, 3), (2, 2), (1, 1), (1, 1), 3),
    ((2, 10, 9, 8), (10, 2, 5, 3), (2, 1), (0, 2), (1, 1), 5),
    ((1, 14, 17, 5), (14, 2, 3, 3), (1, 1), (2, 2), (2, 2), 7),
    ((2, 2, 7, 7), (2, 2, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((1, 4, 30, 30), (4, 2, 9, 9), (1, 1), (4, 4), (1, 1), 2),
]


@pytest.mark.parametrize("case", PLAIN)
def test_convolution(any_device, family, case):  # noqa: F811
    source, weight, bias = torch.randn(case[0]), torch.randn(case[1]), torch.randn(case[1][0])
    check_product(any_device, "aten::conv2d", source, weight, bias, *case[2:], constants=(1, 2))


@pytest.mark.parametrize("case", DEPTHWISE)
def test_depthwise(any_device, case):
    source, weight = torch.randn(case[0]), torch.randn(case[1])
    check_product(any_device, "aten::conv2d", source, weight, None, *case[2:], constants=(1,))


@pytest.mark.parametrize("case", [*PLAIN, *DEPTHWISE[:5]])
def test_contiguous_input_computed_weight(device, case):
    source, weight, bias = torch.randn(case[0]), torch.randn(case[1]), torch.randn(case[1][0])
    check_product(device, "aten::conv2d", source, weight, bias, *case[2:], device_layout=False)


@pytest.mark.parametrize("tail", [float("nan"), float("inf")])
def test_channel_padding_is_not_read(device, family, tail):  # noqa: F811
    whole = torch.full((1, 6, 5, 8), tail)
    whole[..., :5] = torch.randn(1, 6, 5, 5)
    source = whole.permute(0, 3, 1, 2)[:, :5]
    for shape, groups in (((9, 5, 3, 3), 1), ((5, 1, 3, 3), 5)):
        weight = torch.randn(shape)
        check_product(
            device, "aten::conv2d", source, weight, None, 1, 1, 1, groups, constants=(1,), device_layout=False
        )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_groups_do_not_mix(device, family, bad):  # noqa: F811
    """What is no number in a channel reaches the results of its own group alone."""
    source = torch.randn(1, 6, 5, 7)
    source[:, 3] = bad
    for weight, groups in ((torch.randn(6, 2, 3, 3), 3), (torch.randn(6, 1, 3, 3), 6), (torch.randn(9, 2, 3, 3), 3)):
        check_product(device, "aten::conv2d", source, weight, None, 1, 1, 1, groups, constants=(1,))


@pytest.mark.parametrize(
    "view", [lambda t: t[:, 4:12], lambda t: t[:, 1:9], lambda t: t.transpose(2, 3)[:, :8], lambda t: t[1:, :8, ::2]]
)
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_strided_input(device, view, groups):
    source = view(torch.randn(2, 13, 8, 8).contiguous(memory_format=torch.channels_last))
    weight = torch.randn(16 if groups < 8 else 8, 8 // groups, 3, 3)
    check_product(device, "aten::conv2d", source, weight, None, 1, 1, 1, groups, constants=(1,), device_layout=False)


def test_no_batch_dimension(device):
    weight, bias = torch.randn(6, 5, 3, 3), torch.randn(6)
    check_product(device, "aten::conv2d", torch.randn(5, 7, 6), weight, bias, constants=(1, 2))
    check_product(device, "aten::conv_transpose2d.input", torch.randn(6, 7, 6), weight, None, 2, constants=(1,))


def test_nothing_to_compute(device):
    weight = torch.randn(6, 5, 3, 3)
    check_product(device, "aten::conv2d", torch.randn(0, 5, 7, 6), weight, None, constants=(1,))


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("taps, dilation", [((3, 3), (1, 1)), ((2, 4), (1, 1)), ((4, 3), (3, 2))])
def test_named_padding(device, padding, taps, dilation):
    source, weight = torch.randn(1, 5, 11, 12), torch.randn(6, 5, *taps)
    check_product(device, "aten::conv2d.padding", source, weight, None, 1, padding, dilation, 1, constants=(1,))


@pytest.mark.parametrize("constants", [(1, 2), ()])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_one_dimension(device, groups, constants):
    source, weight, bias = torch.randn(2, 4, 19), torch.randn(8, 4 // groups, 5), torch.randn(8)
    check_product(device, "aten::conv1d", source, weight, bias, 2, 3, 2, groups, constants=constants)
    turned = torch.randn(4, 8 // groups, 5)
    check_product(device, "aten::conv_transpose1d", source, turned, bias, 2, 1, 1, groups, constants=constants)


@pytest.mark.parametrize("groups", [1, 2])
def test_three_dimensions(device, groups):
    """Computed weights; those that are constants make it a convolution of images: see ``test_volumes.py``."""
    source, weight, bias = torch.randn(2, 4, 5, 6, 7), torch.randn(6, 4 // groups, 2, 3, 3), torch.randn(6)
    check_product(device, "aten::conv3d", source, weight, bias, (1, 2, 1), (1, 0, 2), (2, 1, 1), groups, constants=())
    turned = torch.randn(4, 3, 2, 3, 3)
    check_product(
        device, "aten::conv_transpose3d.input", source, turned, None, (1, 2, 2), 1, (0, 1, 1), groups, constants=(1,)
    )


# input, filter, stride, padding, output_padding, groups, dilation
TRANSPOSED = [
    ((1, 16, 5, 4), (16, 12, 2, 2), (2, 2), (0, 0), (0, 0), 1, (1, 1)),
    ((2, 5, 4, 7), (5, 3, 3, 3), (2, 2), (1, 1), (1, 1), 1, (1, 1)),
    ((1, 8, 5, 5), (8, 4, 4, 3), (3, 1), (2, 1), (1, 0), 2, (1, 1)),
    ((1, 6, 4, 4), (6, 2, 3, 3), (2, 2), (1, 0), (0, 1), 3, (1, 1)),
    ((1, 4, 6, 5), (4, 7, 3, 2), (2, 3), (1, 1), (1, 2), 1, (2, 3)),
    ((1, 4, 6, 5), (4, 8, 3, 5), (2, 4), (0, 1), (0, 0), 1, (3, 2)),
    ((1, 4, 3, 3), (4, 4, 1, 1), (3, 2), (0, 0), (0, 0), 1, (1, 1)),
    ((1, 8, 5, 5), (8, 1, 4, 4), (2, 2), (1, 1), (0, 0), 8, (1, 1)),
]


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed(any_device, family, case, constant):  # noqa: F811
    source, weight, bias = torch.randn(case[0]), torch.randn(case[1]), torch.randn(case[1][1] * case[5])
    check_product(
        any_device,
        "aten::conv_transpose2d.input",
        source,
        weight,
        bias,
        *case[2:],
        constants=(1, 2) if constant else (),
    )


@pytest.mark.parametrize("size, taps, stride, padding, dilation", [(9, 3, 2, 1, 1), (11, 5, 4, 1, 2), (7, 2, 3, 0, 3)])
def test_phases_cover_every_result_once(size, taps, stride, padding, dilation):
    pairs = set()
    for phase in phases(size, taps, stride, padding, dilation):
        for t in range(phase.count):
            for j, tap in enumerate(phase.taps):
                pairs.add((phase.start + t * stride, tap, t + phase.first + j * phase.step))
    wanted = {
        (o, tap, (o + padding - tap * dilation) // stride)
        for o in range(size)
        for tap in range(taps)
        if (o + padding - tap * dilation) % stride == 0
    }
    assert pairs == wanted


@pytest.mark.parametrize("transposed", [False, True])
def test_general_operators(device, transposed):
    source, weight, bias = torch.randn(2, 8, 6, 5), torch.randn(8, 8, 3, 3), torch.randn(8)
    parameters = ([2, 1], [1, 1], [1, 1], transposed, [0, 0], 1)
    check_product(device, "aten::convolution", source, weight, bias, *parameters, constants=(1, 2))
    check_product(
        device, "aten::_convolution", source, weight, bias, *parameters, False, False, True, True, constants=(1, 2)
    )


EPILOGUES = [
    (Epilogue(Activation(Opcode.RELU)), functional.relu),
    (Epilogue(clamp(-0.5, 0.75)), lambda x: x.clamp(-0.5, 0.75)),
    (Epilogue(clamp(0.25, None)), lambda x: x.clamp(min=0.25)),
    (Epilogue(Activation(Opcode.HARDSWISH)), functional.hardswish),
    (Epilogue(Activation(Opcode.SILU)), functional.silu),
    (Epilogue(Activation(Opcode.PRELU, 0.1)), lambda x: functional.leaky_relu(x, 0.1)),
]
EPILOGUE_SHAPES = [((9, 5, 3, 3), 1), ((5, 1, 3, 3), 5), ((10, 1, 3, 3), 5)]


@pytest.mark.parametrize("epilogue, reference", EPILOGUES)
@pytest.mark.parametrize("weight_sizes, groups", EPILOGUE_SHAPES)
def test_activation(device, family, weight_sizes, groups, epilogue, reference):  # noqa: F811
    source, weight = torch.randn(2, 5, 7, 6), torch.randn(weight_sizes)
    expected = reference(functional.conv2d(source, weight, None, 1, 1, 1, groups))
    check_product(
        device,
        "aten::conv2d",
        source,
        weight,
        None,
        1,
        1,
        1,
        groups,
        constants=(1,),
        epilogue=epilogue,
        expected=expected,
    )


@pytest.mark.parametrize("device_layout", [True, False])
@pytest.mark.parametrize("weight_sizes, groups", [*EPILOGUE_SHAPES, ((9, 5, 1, 1), 1)])
def test_residual(any_device, family, weight_sizes, groups, device_layout):  # noqa: F811
    source, weight, bias = torch.randn(2, 5, 7, 6), torch.randn(weight_sizes), torch.randn(weight_sizes[0])
    sums = functional.conv2d(source, weight, bias, 1, 0, 1, groups)
    residual = torch.randn_like(sums)
    ref = Value.of_tensor(residual.dtype, tuple(residual.shape))
    check_product(
        any_device,
        "aten::conv2d",
        source,
        weight,
        bias,
        1,
        0,
        1,
        groups,
        constants=(1, 2),
        device_layout=device_layout,
        epilogue=Epilogue(Activation(Opcode.SIGMOID), ref, Activation(Opcode.RELU)),
        expected=functional.relu(sums.sigmoid() + residual),
        residual=residual,
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_packed_context(device, transposed):
    source, weight, bias = torch.randn(1, 8, 6, 5), torch.randn(8, 8, 3, 3), torch.randn(8)
    context = Conv2dPackedContext(weight, bias, [2, 2], [1, 1], [1, 1], transposed, False, [1, 1], 1, 0.0, 6.0)
    if transposed:
        expected = functional.conv_transpose2d(source, weight, bias, 2, 1, 1).clamp(0, 6)
    else:
        expected = functional.conv2d(source, weight, bias, 2, 1).clamp(0, 6)
    op = "vulkan_prepack::run_tconv2d_context" if transposed else "vulkan_prepack::run_conv2d_context"
    _check_context(device, op, source, context, expected)


def test_packed_context_1d(device):
    source, weight = torch.randn(1, 8, 11), torch.randn(8, 4, 3)
    context = Conv1dPackedContext(weight, None, [2], [1], [1], 2)
    expected = functional.conv1d(source, weight, None, 2, 1, 1, 2)
    _check_context(device, "vulkan_prepack::run_conv1d_context", source, context, expected)


def _check_context(device, op, source, context, expected):
    operand = Value.of_tensor(source.dtype, tuple(source.shape))
    call = Node.call(op, (operand, context), (Value.of_tensor(expected.dtype, tuple(expected.shape)),))
    (found,) = run_calls(device, [call], [(operand, source)], list(call.outputs))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
