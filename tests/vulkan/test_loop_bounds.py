"""How often an invocation of any kernel goes round loops, and how many workgroups there are, for tensors of any size.

Nothing runs here: calls on huge tensors are lowered for a CPU driver and for GPUs, and what each dispatch states is
looked at. Plan.dispatch refuses what doesn't state it, or states too much.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from device_infos import device_info
from harness import torch_operator, with_defaults
from sampling import sampled

from mobopt.ir import Node, Value
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ops.contexts import LinearPackedContext
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.limits import LimitError
from mobopt.runtimes.vulkan.engine.stream import MAX_ITERATIONS, USUAL_ITERATIONS, Dispatch
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, StorageKind, default_strides
from mobopt.runtimes.vulkan.kernels.loops import loop_boxes, loop_iterations
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.lowerings import convolution, registry

registry.load_lowerings()

FAMILIES = (
    "reductions",
    "softmax",
    "normalization",
    "pooling",
    "matmul",
    "convolution",
    "resize",
    "indexing",
    "scatter",
    "attention",
    "sorting",
    "recurrent",
    "fold",
)
DEVICES = ("cpu", "integrated", "discrete")
GROUPS = 65535


def meta(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


LONG, ROWS, COLUMNS, IMAGE = meta(16_777_213), meta(3, 1_000_003), meta(1_000_003, 3), meta(1, 3, 2053, 2039)
SLICED = meta(302, 304, 306)[1:, 1:, 1:]  # three dimensions that no view makes one
K = 2_000_003
INDICES = meta(5_000_001, dtype=torch.int64)


def _along_dims() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Reductions of one or several dimensions: of all elements, along rows and columns, and of what can't be one."""
    for x, dims in (
        (LONG, [0]),
        (ROWS, [1]),
        (COLUMNS, [0]),
        (IMAGE, [2, 3]),
        (IMAGE, [0, 1, 2, 3]),
        (SLICED, [0, 1, 2]),
    ):
        for op in ("sum.dim_IntList", "mean.dim", "amax", "amin", "any.dims", "all.dims", "var.dim", "std.dim"):
            yield op, (x, dims)
        for op in ("var.correction", "std.correction", "var_mean.correction", "std_mean.correction"):
            yield op, (x, dims)
        yield from ((f"{op}.dim", (x, dims)) for op in ("var_mean", "std_mean"))
        yield from (("linalg_vector_norm", (x, order, dims)) for order in (0, 1, 2, 3, float("inf")))
        yield "norm.ScalarOpt_dim", (x, 2, dims)
        yield "logsumexp", (x, dims)
    for x, dim in ((LONG, 0), (ROWS, 1), (COLUMNS, 0), (IMAGE, 3), (SLICED, 1)):
        yield from ((op, (x, dim)) for op in ("prod.dim_int", "max.dim", "min.dim", "argmax", "argmin"))
        yield from ((op, (x, dim)) for op in ("any.dim", "all.dim", "cumsum", "cumprod"))
        yield from ((op, (x, dim)) for op in ("softmax.int", "log_softmax.int"))
        yield from ((op, (x, dim, False)) for op in ("_softmax", "_log_softmax"))
    for x in (LONG, IMAGE, SLICED):
        yield from (
            (op, (x,)) for op in ("sum", "mean", "prod", "max", "min", "aminmax", "any", "all", "argmax", "argmin")
        )
        yield from ((op, (x, True)) for op in ("var", "std", "var_mean", "std_mean"))
        yield "norm.Scalar", (x, 2)


def _normalizations() -> Iterator[tuple[str, tuple[Any, ...]]]:
    for x in (ROWS, IMAGE):
        shape = list(x.shape[1:])
        yield "layer_norm", (x, shape)
        yield "native_layer_norm", (x, shape, None, None, 1e-5)
        yield "rms_norm", (x, shape)
    yield "group_norm", (meta(2, 6, 1009, 1013), 3)
    yield "native_group_norm", (meta(2, 6, 1009, 1013), None, None, 2, 6, 1009 * 1013, 3, 1e-5)
    yield "instance_norm", (IMAGE, None, None, None, None, True, 0.1, 1e-5, False)
    channels = [meta(3) for _ in range(4)]
    yield "batch_norm", (IMAGE, *channels, False, 0.1, 1e-5, False)
    yield "native_batch_norm", (IMAGE, *channels, False, 0.1, 1e-5)
    yield "_native_batch_norm_legit_no_training", (IMAGE, *channels, 0.1, 1e-5)
    yield "_batch_norm_impl_index", (IMAGE, *channels, False, 0.1, 1e-5, False)


def _pools() -> Iterator[tuple[str, tuple[Any, ...]]]:
    volumes = {1: meta(1, 3, 300_007), 2: meta(1, 3, 1009, 1013), 3: meta(1, 3, 101, 103, 107)}
    kernels = {1: [100_003], 2: [601, 607], 3: [51, 53, 59]}
    for n, x in volumes.items():
        kernel, step = kernels[n], [7] * n
        yield f"avg_pool{n}d", (x, kernel, step)
        yield f"max_pool{n}d", (x, kernel, step)
        yield f"max_pool{n}d", (x, kernel, step, [size // 2 for size in kernel])
        for sizes in ([1] * n, [3] * n, list(x.shape[2:])):
            yield f"adaptive_avg_pool{n}d", (x, sizes)
            yield f"adaptive_max_pool{n}d", (x, sizes)
        if n > 1:
            yield f"max_pool{n}d_with_indices", (x, kernel, step)
            yield f"_adaptive_avg_pool{n}d", (x, [3] * n)
    yield "max_pool1d_with_indices", (volumes[1], [100_003], [7])
    for taps in ([7, 7], [1, 2048]):
        step, pad = taps if taps[1] > 7 else [1, 1], [taps[0] // 2, taps[1] // 2]
        count = ((1009 + 2 * pad[0] - taps[0]) // step[0] + 1) * ((2053 + 2 * pad[1] - taps[1]) // step[1] + 1)
        yield "col2im", (meta(1, 3 * taps[0] * taps[1], count), [1009, 2053], taps, [1, 1], pad, step)


def _attentions() -> Iterator[tuple[str, tuple[Any, ...]]]:
    for queries, keys, head in ((9, 1_000_003, 64), (20_011, 20_011, 64), (1, 3_000_017, 8), (131, 137, 10_007)):
        x, y = meta(1, 2, queries, head), meta(1, 2, keys, head)
        yield "scaled_dot_product_attention", (x, y, y)
        yield "scaled_dot_product_attention", (x, y, y, None, 0.0, True)
    x, y = meta(100_003, 5, 4), meta(100_003, 7, 4)
    yield "scaled_dot_product_attention", (x, y, y)


def _recurrent() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Many steps, and many units: their weights are constants."""
    for steps, units in ((211, 3), (2, 40_009)):
        x, state = meta(steps, 2, 5), meta(2, 2, units)
        for op, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
            sizes = ((gates * units, 5), (gates * units, units), (gates * units,), (gates * units,))
            weights = [torch.zeros(1).expand(*each) for each in sizes] * 2
            states = [state, state] if op == "lstm" else state
            yield f"{op}.input", (x, states, weights, True, 1, 0.0, False, True, False)
            one = [state[0], state[0]] if op == "lstm" else state[0]
            yield f"{op}_cell", (x[0], one, *weights[:4])


def _products() -> Iterator[tuple[str, tuple[Any, ...]]]:
    yield "dot", (meta(K), meta(K))
    yield "mv", (meta(5, K), meta(K))
    yield "linear", (meta(3, K), meta(7, K))
    yield "linear", (meta(5_000_001, 8), meta(8, 8))  # rows
    yield "linear", (meta(3, 4), meta(4_000_001, 4))  # columns
    yield "mm", (meta(3, K), meta(K, 7))
    yield "matmul", (meta(2, 3, K), meta(2, K, 7))
    yield "bmm", (meta(70_000, 2, 3), meta(70_000, 3, 2))
    yield "bmm", (meta(1000, 1, 40_000), meta(1000, 40_000, 1))
    yield "addmm", (meta(7), meta(3, K), meta(K, 7))
    yield "baddbmm", (meta(70_000, 2, 2), meta(70_000, 2, 3), meta(70_000, 3, 2))
    yield "addmv", (meta(3), meta(3, K), meta(K))
    filters = {1: meta(5, 40_001, 9), 2: meta(5, 10_001, 7, 7), 3: meta(5, 1001, 5, 5, 5)}
    for n, weight in filters.items():
        x = meta(1, weight.shape[1], *[11] * n)
        yield f"conv{n}d", (x, weight)
        yield f"conv{n}d.padding", (x, weight, None, [1] * n, "same")
        turned = meta(weight.shape[1], 5, *weight.shape[2:])
        yield f"conv_transpose{n}d{'' if n == 1 else '.input'}", (x, turned)
        rest = ([1] * n, [0] * n, [1] * n, False, [0] * n, 1)
        yield "convolution", (x, weight, None, *rest)
        yield "_convolution", (x, weight, None, *rest, False, False, False, False)
        yield "_convolution.deprecated", (x, weight, None, *rest, False, False, False)
    yield "conv2d", (meta(1, 3, 4099, 4093), meta(8, 3, 3, 3))
    yield "conv2d", (meta(1, 1, 701, 703), meta(8, 1, 601, 607))
    yield "conv2d", (meta(3, 64, 1999, 1999), meta(64, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], 64)


def _samplings() -> Iterator[tuple[str, tuple[Any, ...]]]:
    lines = {1: meta(1, 3, 300_007), 2: meta(1, 3, 2003, 2011), 3: meta(1, 3, 101, 103, 107)}
    for n, x in lines.items():
        small, large = [2] * n, [size * 2 for size in x.shape[2:]]
        smooth = f"upsample_{('linear', 'bilinear', 'trilinear')[n - 1]}{n}d"
        for sizes in (small, large):
            yield f"upsample_nearest{n}d", (x, sizes)
            yield f"upsample_nearest{n}d.vec", (x, sizes, None)
            yield f"_upsample_nearest_exact{n}d", (x, sizes)
            yield f"_upsample_nearest_exact{n}d.vec", (x, sizes, None)
            yield smooth, (x, sizes, False)
            yield f"{smooth}.vec", (x, sizes, False, None)
        yield from ((f"{mode}_pad{n}d", (x, [50] * (2 * n))) for mode in ("reflection", "replication"))
    for mode in ("upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
        yield mode, (lines[2], [2, 3], False)
        yield f"{mode}.vec", (lines[2], [2, 3], False, None)


def _choices() -> Iterator[tuple[str, tuple[Any, ...]]]:
    yield "index_select", (meta(100, 7), 0, INDICES)
    yield "embedding", (meta(100, 7), INDICES)
    yield "gather", (meta(5_000_001, 3), 1, meta(5_000_001, 3, dtype=torch.int64))
    for op in ("index.Tensor", "index.Tensor_hacked_twin"):
        yield op, (meta(100, 7), [INDICES])
    for dtype in (torch.float32, torch.int32):
        x, source = meta(100, dtype=dtype), meta(5_000_001, dtype=dtype)
        yield "scatter.src", (x, 0, INDICES, source)
        yield "scatter_add", (x, 0, INDICES, source)
        yield "scatter_reduce.two", (x, 0, INDICES, source, "mean")
        yield "index_copy", (x, 0, INDICES, source)
        yield "index_add", (x, 0, INDICES, source)
        yield "index_reduce", (x, 0, INDICES, source, "amax")
        yield "index_put", (meta(100, 7, dtype=dtype), [INDICES, INDICES], source, True)
    for x, dim in ((LONG, 0), (ROWS, 1), (COLUMNS, 0)):
        yield "sort", (x, dim, True)
        yield "argsort", (x, dim)
    yield "searchsorted.Tensor", (LONG, ROWS)


CASES = [
    *(*_along_dims(), *_normalizations(), *_pools()),
    *(*_products(), *_attentions(), *_recurrent(), *_samplings(), *_choices()),
    *(("relu", (x,)) for x in (LONG, meta(300_000_001), SLICED)),
    *(("pow.Tensor_Tensor", (x, x)) for x in (meta(2_000_003, dtype=torch.int64),)),
]
OPERATORS = sorted({op for op, _ in CASES})

# Composite or without a meta kernel: what their results are.
_RESULTS: dict[str, Any] = {
    "lstm.input": lambda x, states, *_: (x.new_empty(*x.shape[:2], 2 * states[0].shape[2]), *states),
    **dict.fromkeys(
        ("gru.input", "rnn_tanh.input", "rnn_relu.input"),
        lambda x, state, *_: (x.new_empty(*x.shape[:2], 2 * state.shape[2]), state),
    ),
    "sort.stable": lambda x, stable, dim, descending: torch.sort(x, stable=stable, dim=dim, descending=descending),
    "max_pool1d_with_indices": lambda x, kernel, step: torch.ops.aten.max_pool2d_with_indices(
        x.unsqueeze(2), [1, *kernel], [1, *step]
    ),
}


@pytest.fixture(autouse=True)
def nothing_is_packed(monkeypatch):
    """Nobody reads the constants here, and to pack huge ones takes long."""
    monkeypatch.setattr(Plan, "packed", lambda plan, sources, packing, pack: plan.empty((4,)))


def lowered(kind: str | DeviceInfo, op: str, args: tuple[Any, ...]) -> list[Dispatch]:
    """The dispatches of a call on a device, or one of a kind; tensors that aren't on the meta device are constants."""
    name = f"aten::{op}"
    result = _RESULTS.get(op, torch_operator(name))(*map_leaves(args, torch.Tensor, lambda tensor: tensor.to("meta")))
    if op == "max_pool1d_with_indices":
        result = [tensor.squeeze(2) for tensor in result]
    plan = Plan(device_info(kind) if isinstance(kind, str) else kind)

    def placed(tensor: torch.Tensor) -> Value:
        if not tensor.is_meta:
            return Value.of_elements(tensor)
        ref = Value.of_tensor(tensor.dtype, tuple(tensor.shape))
        strides = default_strides(ref.sizes, ref.dtype) if tensor.is_contiguous() else tensor.stride()
        view = DeviceTensor(Storage(0, StorageKind.INPUT), ref.dtype, ref.sizes, strides)
        view.storage.nbytes = -(-view.span[1] // 4) * 16
        plan.place(ref, view)
        return ref

    outputs = tuple(Value.of_tensor(tensor.dtype, tuple(tensor.shape)) for tensor in leaves_of(result, torch.Tensor))
    call = Node.call(name, map_leaves(with_defaults(name, args, {}), torch.Tensor, placed), outputs)
    registry.lower(plan, call)
    return dispatches_of(plan)


def dispatches_of(plan: Plan) -> list[Dispatch]:
    return [operation for operation in plan.stream.operations if isinstance(operation, Dispatch)]


def check(dispatches: list[Dispatch]) -> None:
    assert dispatches
    for dispatch in dispatches:
        assert 0 <= dispatch.iterations <= 4 * USUAL_ITERATIONS < MAX_ITERATIONS, dispatch
        assert all(1 <= count <= GROUPS for count in dispatch.groups), dispatch


@pytest.mark.parametrize(("op", "kind"), sampled(itertools.product(OPERATORS, DEVICES), one_in=2))
def test_huge_tensors(kind, op, monkeypatch):
    monkeypatch.setattr(convolution, "road_of", lambda *_: None)  # the kernel that convolutions have if all else fails
    for name, args in CASES:
        if name == op:
            check(lowered(kind, op, args))


@pytest.mark.parametrize("kind", DEVICES)
def test_constant_weights(kind):
    ones = [1, 1]
    for op, args in (
        ("linear", (meta(3, 300_007), torch.zeros(5, 300_007))),
        ("linear", (meta(5_000_001, 8), torch.zeros(8, 8))),
        ("conv1d", (meta(1, 40_001, 11), torch.zeros(1, 40_001, 9))),
        ("conv2d", (meta(1, 10_001, 11, 11), torch.zeros(1, 10_001, 7, 7))),
        ("conv2d", (meta(1, 1, 701, 703), torch.zeros(8, 1, 601, 607))),
        ("conv2d", (meta(1, 3, 4099, 4093), torch.zeros(8, 3, 3, 3))),
        ("conv2d", (meta(1, 8000, 9, 9), torch.zeros(8, 4000, 5, 5), None, ones, ones, ones, 2)),
        ("conv2d", (meta(3, 64, 1999, 1999), torch.zeros(64, 1, 3, 3), None, ones, ones, ones, 64)),
        ("conv_transpose2d.input", (meta(1, 10_001, 11, 11), torch.zeros(10_001, 1, 7, 7))),
    ):
        check(lowered(kind, op, args))


@pytest.mark.parametrize("kind", DEVICES)
def test_packed_layer(kind):
    plan = Plan(device_info(kind) if isinstance(kind, str) else kind)
    source = Value.of_tensor(torch.float32, (3, 300_007))
    plan.place(source, plan.empty(source.sizes))
    context = LinearPackedContext(torch.zeros(300_007, 5), None)
    call = Node.call("vulkan_prepack::run_linear_context", (source, context), (Value.of_tensor(torch.float32, (3, 5)),))
    registry.lower(plan, call)
    check(dispatches_of(plan))


@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("dim", [0, 1])
def test_vectors_of_length_one(kind, dim):
    for sizes in ((300_007, 5), (3, 5_000_001), (2, 3, 1009, 1013)):
        plan = Plan(device_info(kind) if isinstance(kind, str) else kind)
        source = Value.of_tensor(torch.float32, sizes)
        plan.place(source, plan.empty(sizes))
        call = Node.call("mobopt::l2_normalize", (source, dim, 1e-12, None), (Value.of_tensor(torch.float32, sizes),))
        registry.lower(plan, call)
        check(dispatches_of(plan))


def test_every_lowering_of_these_families_has_a_case():
    functions = {registry._LOWERINGS[f"aten::{op}"].function for op in OPERATORS}
    missing = {
        op
        for op, lowering in registry._LOWERINGS.items()
        if lowering.function.__module__.rsplit(".", 1)[1] in FAMILIES and lowering.function not in functions
    }
    assert missing == {"vulkan_prepack::run_linear_context", "mobopt::l2_normalize"}, "add a case with huge tensors"


def test_a_dispatch_says_how_often_it_loops():
    plan = Plan(device_info("cpu"))
    with pytest.raises(TypeError, match="iterations"):
        plan.dispatch("reduce", (), (1, 1, 1))  # type: ignore[call-arg]
    with pytest.raises(LimitError, match="would loop 65536 times, but drivers end loops after 65535"):
        plan.dispatch("reduce", (), (1, 1, 1), iterations=MAX_ITERATIONS + 1)
    assert not plan.stream.operations


@pytest.mark.parametrize("lengths", [(1,), (7, 11), (1, 1, 100_003), (3, 50_000), (90_000, 2, 2), (601, 607), (0, 5)])
def test_boxes_are_the_nest_in_order(lengths):
    boxes = list(loop_boxes(lengths, 1000))
    visited = [place for box in boxes for place in itertools.product(*(range(begin, end) for begin, end in box))]
    assert visited == list(itertools.product(*map(range, lengths)))
    assert all(loop_iterations([end - begin for begin, end in box]) <= 1000 + len(lengths) for box in boxes)


def test_iterations_of_a_nest():
    assert loop_iterations([3, 4]) == 3 + 3 * 4
    assert loop_iterations([2, 3, 5]) == 2 + 2 * 3 + 2 * 3 * 5
