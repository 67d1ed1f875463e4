from __future__ import annotations

import torch
from harness import assert_close, run_calls

from mobopt.runtimes.call import Call, TensorRef, Trace
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.compile.fusion_pointwise import FUSED, FusedPointwise, fuse_pointwise
from mobopt.runtimes.vulkan.compile.simplify import simplify
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings

load_lowerings()

SIZES = (2, 5, 7, 6)


def ref(*sizes: int, dtype: torch.dtype = torch.float32) -> TensorRef:
    return TensorRef(dtype, sizes or SIZES)


def test_a_chain_becomes_one_call(any_device):
    x, y, bias, a, b, c, d = ref(), ref(), ref(5, 1, 1), ref(), ref(), ref(), ref()
    trace = Trace(
        [x, y, bias],
        [
            Call("aten::add.Tensor", (x, bias, 1), (a,)),
            Call("aten::silu", (a,), (b,)),
            Call("aten::mul.Tensor", (b, y), (c,)),
            Call("aten::clamp", (c, -0.5, 0.7), (d,)),
        ],
        d,
    )
    fused = fuse_pointwise(trace)
    assert [call.op for call in fused.calls] == [FUSED]
    values = torch.randn(SIZES), torch.randn(SIZES), torch.randn(5, 1, 1)
    (found,) = run_calls(any_device, fused.calls, list(zip(trace.inputs, values, strict=True)), [d])
    assert_close(found, (torch.nn.functional.silu(values[0] + values[2]) * values[1]).clamp(-0.5, 0.7))


def test_a_diamond_becomes_one_call_only_if_nothing_else_reads_its_parts(device):
    x, a, b, c = ref(), ref(), ref(), ref()
    calls = [
        Call("aten::sigmoid", (x,), (a,)),
        Call("aten::mul.Tensor", (a, a), (b,)),
        Call("aten::add.Tensor", (b, x, 1), (c,)),
    ]
    assert len(fuse_pointwise(Trace([x], calls, c)).calls) == 1
    kept = fuse_pointwise(Trace([x], calls, (c, b))).calls
    assert [call.op for call in kept] == [FUSED, "aten::add.Tensor"]
    value = torch.randn(SIZES)
    found = run_calls(device, kept, [(x, value)], [c, b])
    assert_close(found[0], value.sigmoid() ** 2 + value)
    assert_close(found[1], value.sigmoid() ** 2)


def test_operands_that_grow_are_not_computed_again():
    x, small, gate, result = ref(), ref(2, 5, 1, 1), ref(2, 5, 1, 1), ref()
    calls = [Call("aten::sigmoid", (small,), (gate,)), Call("aten::mul.Tensor", (x, gate), (result,))]
    assert fuse_pointwise(Trace([x, small], calls, result)).calls == calls


def test_kinds_change_within_a_chain(device):
    x, mask, count, result = ref(), ref(dtype=torch.bool), ref(dtype=torch.int64), ref()
    calls = [
        Call("aten::gt.Scalar", (x, 0.25), (mask,)),
        Call("aten::mul.Scalar", (mask, 3), (count,)),
        Call("aten::div.Scalar", (count, 2), (result,)),
    ]
    fused = fuse_pointwise(Trace([x], calls, result)).calls
    assert len(fused) == 1
    value = torch.randn(SIZES)
    (found,) = run_calls(device, fused, [(x, value)], [result])
    assert_close(found, (value > 0.25) * 3 / 2)


def test_long_chains_are_cut_where_the_shader_is_full(device):
    refs = [ref() for _ in range(26)]
    calls = [Call("aten::add.Scalar", (refs[i], float(i), 1), (refs[i + 1],)) for i in range(25)]
    fused = fuse_pointwise(Trace([refs[0]], calls, refs[-1])).calls
    assert 3 <= len(fused) <= 4
    value = torch.randn(SIZES)
    (found,) = run_calls(device, fused, [(refs[0], value)], [refs[-1]])
    assert_close(found, value + sum(range(25)))


def test_writes_in_place_stop_fusion():
    x, a, b = ref(), ref(), ref()
    calls = [Call("aten::relu", (x,), (a,)), Call("aten::add_.Tensor", (x, a, 1), (b,))]
    assert fuse_pointwise(Trace([x], calls, b)).calls == calls


def test_copies_go_unless_something_is_written():
    x, a, b, c = ref(), ref(), ref(), ref()
    calls = [Call("aten::relu", (x,), (a,)), Call("aten::clone", (a, None), (b,)), Call("aten::neg", (b,), (c,))]
    simple = simplify(Trace([x], calls, c)).calls
    assert [(call.op, call.args[0]) for call in simple] == [("aten::relu", x), ("aten::neg", a)]
    writing = [*calls[:2], Call("aten::neg_", (b,), (c,))]
    assert [call.op for call in simplify(Trace([x], writing, c)).calls] == [call.op for call in writing]


def test_a_copy_of_an_input_that_is_returned_stays():
    x, a = ref(), ref()
    calls = [Call("aten::clone", (x, None), (a,))]
    assert simplify(Trace([x], calls, a)).calls[0].op == "aten::clone"


def test_batch_norm_and_relu_are_one_dispatch(any_device):
    torch.manual_seed(0)
    parts = [torch.randn(5), torch.randn(5), torch.randn(5), torch.rand(5) + 0.5]
    x, a, b = ref(), ref(), ref()
    constants = [TensorRef(torch.float32, (5,), part) for part in parts]
    calls = [
        Call("aten::batch_norm", (x, *constants, False, 0.1, 1e-5, False), (a,)),
        Call("aten::relu", (a,), (b,)),
    ]
    trace = fuse_pointwise(simplify(Trace([x], calls, b)))
    assert len(trace.calls) == 1 and isinstance(trace.calls[0], FusedPointwise)
    value = torch.randn(SIZES)
    (found,) = run_calls(any_device, trace.calls, [(x, value)], [b])
    weight, bias, mean, var = parts
    assert_close(found, torch.nn.functional.batch_norm(value, mean, var, weight, bias).relu())


def test_results_go_where_they_are_reserved(any_device):
    """A slice of channels of something larger, whose neighbours must stay."""
    x, pooled, bent = ref(1, 8, 4, 4), ref(1, 8, 4, 4), ref(1, 8, 4, 4)
    whole = ref(1, 16, 4, 4)
    calls = [
        Call("aten::max_pool2d", (x, [3, 3], [1, 1], [1, 1], [1, 1], False), (pooled,)),
        Call("aten::silu", (x,), (bent,)),
        Call("aten::cat", ([pooled, bent], 1), (whole,)),
    ]
    value = torch.randn(1, 8, 4, 4)
    built = build_stream(Trace([x], calls, whole), any_device.info, ConstantStore())
    operations = [operation.label for operation in built.stream.operations if isinstance(operation, Dispatch)]
    executable = Executable(any_device, built.stream)
    (found,) = executable.run([value])
    executable.close()
    expected = torch.cat([torch.nn.functional.max_pool2d(value, 3, 1, 1), torch.nn.functional.silu(value)], 1)
    assert_close(found, expected)
    # Two kernels, and the two copies between the caller's layout and the device's.
    assert len(operations) <= 4
