"""Epilogues: what is folded into convolutions and products, and that the result is the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional
from harness import assert_close, run_calls
from products import constant_call

from mobopt.runtimes.call import Call, TensorRef, Trace
from mobopt.runtimes.vulkan.compile.fusion import fold_epilogues
from mobopt.runtimes.vulkan.kernels.epilogue import CallWithEpilogue, epilogue_of
from mobopt.runtimes.vulkan.kernels.pointwise_program import Opcode

SIZES = (1, 4, 5, 6)
WEIGHT = torch.randn(4, 4, 3, 3)


def _input() -> TensorRef:
    return TensorRef(torch.float32, SIZES)


def _conv(source: TensorRef) -> Call:
    args = (torch.empty(SIZES), WEIGHT, None, [1, 1], [1, 1], [1, 1], 1)
    call = constant_call("aten::conv2d", args, (1,), torch.empty(SIZES))
    return Call(call.op, (source, *call.args[1:]), call.outputs)


def _call(op: str, *args: object) -> Call:
    return Call(op, args, (TensorRef(torch.float32, SIZES),))


def _run(device, trace: Trace, *inputs: torch.Tensor) -> torch.Tensor:
    (found,) = run_calls(device, trace.calls, list(zip(trace.inputs, inputs, strict=True)), [trace.result])
    return found


def test_residual_block(device):
    x = _input()
    first = _conv(x)
    middle = _call("aten::relu", first.output)
    second = _conv(middle.output)
    added = _call("aten::add.Tensor", second.output, x, 1)
    last = _call("aten::hardtanh", added.output, 0.0, 6.0)
    trace = fold_epilogues(Trace([x], [first, middle, second, added, last], last.output))
    assert [type(call) for call in trace.calls] == [CallWithEpilogue] * 2
    assert epilogue_of(trace.calls[1]).residual is x
    value = torch.randn(SIZES)
    inner = functional.conv2d(functional.conv2d(value, WEIGHT, None, 1, 1).relu(), WEIGHT, None, 1, 1)
    assert_close(_run(device, trace, value), (inner + value).clamp(0, 6))


def test_residual_made_after_the_product(device):
    x = _input()
    first, other = _conv(x), _call("aten::sigmoid", x)
    added = _call("aten::add.Tensor", other.output, first.output, 1)
    trace = fold_epilogues(Trace([x], [first, other, added], added.output))
    assert [call.op for call in trace.calls] == ["aten::sigmoid", "aten::conv2d"]
    value = torch.randn(SIZES)
    assert_close(_run(device, trace, value), value.sigmoid() + functional.conv2d(value, WEIGHT, None, 1, 1))


def test_sum_of_two_products_folds_one(device):
    x = _input()
    first, second = _conv(x), _conv(x)
    added = _call("aten::add.Tensor", first.output, second.output, 1)
    trace = fold_epilogues(Trace([x], [first, second, added], added.output))
    assert len(trace.calls) == 2
    value = torch.randn(SIZES)
    assert_close(_run(device, trace, value), 2 * functional.conv2d(value, WEIGHT, None, 1, 1))


@pytest.mark.parametrize("make", ["used twice", "returned", "scaled", "broadcast", "itself", "full"])
def test_what_is_not_folded(make):
    x = _input()
    conv = _conv(x)
    relu = _call("aten::relu", conv.output)
    calls, result = [conv, relu], relu.output
    if make == "used twice":
        calls.append(_call("aten::add.Tensor", relu.output, conv.output, 1))
        result = calls[-1].output
        expected = 3
    elif make == "returned":
        result, expected = (relu.output, conv.output), 2
    elif make == "scaled":
        calls[1] = _call("aten::add.Tensor", conv.output, x, 2)
        result, expected = calls[1].output, 2
    elif make == "broadcast":
        calls[1] = _call("aten::add.Tensor", conv.output, TensorRef(torch.float32, (1, 4, 1, 1)), 1)
        result, expected = calls[1].output, 2
    elif make == "itself":
        calls[1] = _call("aten::add.Tensor", conv.output, conv.output, 1)
        result, expected = calls[1].output, 2
    else:
        calls.append(_call("aten::sigmoid", relu.output))
        result, expected = calls[-1].output, 2
    assert len(fold_epilogues(Trace([x], calls, result)).calls) == expected


def test_activation_keeps_its_operands():
    x = _input()
    conv = _conv(x)
    clamp = _call("aten::clamp", conv.output, -1.0, None)
    (folded,) = fold_epilogues(Trace([x], [conv, clamp], clamp.output)).calls
    before = epilogue_of(folded).before
    assert (before.opcode, before.first, before.second) == (Opcode.CLAMP, -1.0, float("inf"))
    assert folded.output is clamp.output
