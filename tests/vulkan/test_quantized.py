"""Weights of few bits on the device, for every class of shapes: beside float64 on the floats that they stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from device_infos import device_info, known_device
from harness import torch_operator, with_defaults
from products import family  # noqa: F401

from mobopt.ir import Graph, Node, Value
from mobopt.ir.nests import map_leaves
from mobopt.ops.quantized import DEQUANTIZE, Quantized, packed, quantized
from mobopt.runtimes.segment import Segment
from mobopt.runtimes.vulkan.compile import quantized as compile_quantized
from mobopt.runtimes.vulkan.compile.build import Built, build_stream
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore

RELATIVE = 2e-6
"""Of the result's scale, for sums in float32."""


def segment_of(op: str, *args: Any, **kwargs: Any) -> tuple[Segment, list[torch.Tensor], torch.Tensor]:
    """A graph of one operator, whose weights of few bits are constants; its inputs; and its result in float64."""
    graph, inputs = Graph(), []

    def value_of(item: Any) -> Any:
        if isinstance(item, Quantized):
            given = map_leaves(item.arguments, torch.Tensor, Value.of_elements)
            node = Node.call(DEQUANTIZE, given, [Value.of_tensor(torch.float32, item.sizes)])
            graph.block.append(node)
            return node.output
        if item.dim() == 1:  # a bias
            return Value.of_elements(item)
        inputs.append(item)
        return graph.block.add_parameter(Value.of_tensor(item.dtype, tuple(item.shape), f"x{len(inputs)}"))

    def exact(item: Any) -> torch.Tensor:
        floats = item.floats() if isinstance(item, Quantized) else item
        return floats.double() if floats.is_floating_point() else floats

    leaves = (torch.Tensor, Quantized)
    expected = torch_operator(op)(*map_leaves(tuple(args), leaves, exact), **kwargs)
    result = Value.of_tensor(torch.float32, tuple(expected.shape))
    given = map_leaves(with_defaults(op, args, kwargs), leaves, value_of)
    graph.block.append(Node.call(op, given, [result]))
    graph.block.returns.set_inputs([result])
    return Segment(graph, [result]), inputs, expected


def check(device: Any, op: str, *args: Any, **kwargs: Any) -> list[str]:
    """Compare an operator on the device with float64; returns the shaders that ran."""
    segment, inputs, expected = segment_of(op, *args, **kwargs)
    built = build_stream(segment, device.info, ConstantStore(), allow_fallback=False)
    executable = Executable(device, built.stream)
    try:
        (made,) = executable.run([inputs[number] for number in built.inputs])
    finally:
        executable.close()
    error = (made.double() - expected).abs().max() / expected.abs().max()
    assert error < RELATIVE, f"differs by {error:.1e} of the scale"
    return shaders_of(built)


def shaders_of(built: Built) -> list[str]:
    return [operation.shader for operation in built.stream.operations if isinstance(operation, Dispatch)]


def reads_integers(shaders: list[str]) -> bool:
    """Whether no weight became floats."""
    is_read = any("quantized" in name or name.startswith("product_row_units") for name in shaders)
    return is_read and "dequantize" not in shaders


def random(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


SIZES = [(1, 67, 37), (2, 67, 41), (5, 131, 129)]
MORE_SIZES = [(1, 64, 32), (33, 100, 7), (1, 256, 1021), (64, 96, 80), (3, 1, 5), (2, 5, 1), (1, 2048, 64)]
"""Vectors and matrices, even and odd numbers of vec4s, whole and partial groups, primes, one column, one element of the
inner dimension."""


@pytest.mark.parametrize(
    "rows, inner, columns", [*SIZES, *(pytest.param(*sizes, marks=pytest.mark.sweep) for sizes in MORE_SIZES)]
)
@pytest.mark.parametrize("bits, group", [(8, 0), (4, 32), (4, 64), (4, 128), (4, 0), (8, 32)])
def test_linear_layers(device: Any, family: str, rows: int, inner: int, columns: int, bits: int, group: int) -> None:  # noqa: F811
    weight = quantized(random(columns, inner), bits, (1, group or inner))
    shaders = check(device, "aten::linear", random(rows, inner, seed=1), weight, random(columns, seed=2))
    assert reads_integers(shaders)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [4, 16, 256, 77])
def test_groups_of_other_sizes(device: Any, family: str, bits: int, group: int) -> None:  # noqa: F811
    weight = quantized(random(19, 77), bits, (1, group))
    check(device, "aten::linear", random(2, 3, 77, seed=1), weight, None)


@pytest.mark.parametrize("is_small", [True, False])
def test_groups_that_kernels_do_not_take_become_floats_first(
    device: Any, monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    """Ahead of time if they are few, else in each call."""
    monkeypatch.setattr(compile_quantized, "_MEMORY_SHARE", 1 << 60)
    monkeypatch.setattr(compile_quantized, "_MOST_EXPANDED", 19 * 77 if is_small else 0)
    weight = quantized(random(19, 77), 4, (1, 24))
    shaders = check(device, "aten::linear", random(3, 77, seed=1), weight, None)
    assert ("dequantize" in shaders) is not is_small and not any("quantized" in name for name in shaders)


@pytest.mark.parametrize("is_small", [True, False])
def test_what_is_added_is_floats_ahead_of_time(device: Any, monkeypatch: pytest.MonkeyPatch, is_small: bool) -> None:
    monkeypatch.setattr(compile_quantized, "_MEMORY_SHARE", 1 << 60)
    monkeypatch.setattr(compile_quantized, "_MOST_EXPANDED", 19 * 77 if is_small else 0)
    weight = quantized(random(19, 77), 8, (19, 77))
    shaders = check(device, "aten::mul.Tensor", random(3, 19, 77, seed=1), weight)
    assert ("dequantize" in shaders) is not is_small


def asymmetrical(bits: int, columns: int, inner: int, group: int, dtype: torch.dtype = torch.uint8) -> Quantized:
    """Integers of all sizes, with zero points, which needn't be whole."""
    generator = torch.Generator().manual_seed(3)
    low, high = (0, 16) if bits == 4 else (torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1)
    integers = torch.randint(low, high, (columns, inner), generator=generator).to(dtype)
    counts = (columns, -(-inner // group))
    zeros = torch.randint(low, high, counts, generator=generator) + random(*counts, seed=5)
    values = packed(integers) if bits == 4 else integers
    return Quantized(values, random(*counts, seed=4), zeros, (1, group), bits, inner)


@pytest.mark.parametrize(
    "bits, group, dtype",
    [(4, 16, torch.uint8), (4, 32, torch.uint8), (8, 64, torch.uint8), (8, 67, torch.int8), (8, 67, torch.uint8)],
)
def test_zero_points(device: Any, family: str, bits: int, group: int, dtype: torch.dtype) -> None:  # noqa: F811
    weight = asymmetrical(bits, 13, 67, group, dtype)
    shaders = check(device, "aten::linear", random(3, 67, seed=1), weight, random(13))
    assert reads_integers(shaders)


def test_unsigned_bytes_without_zero_points(device: Any) -> None:
    values = torch.arange(13 * 20, dtype=torch.int32).remainder(256).to(torch.uint8).reshape(13, 20)
    check(device, "aten::linear", random(3, 20), Quantized(values, random(13, 1), None, (1, 20), 8, 20), None)


CONVOLUTIONS = [
    ((2, 5, 9, 11), (7, 5, 3, 3), {"stride": [2, 1], "padding": [1, 0]}),
    ((1, 16, 13, 7), (12, 16, 1, 1), {}),
    ((1, 8, 9, 9), (16, 4, 3, 3), {"groups": 2, "padding": [2, 2], "dilation": [2, 2]}),
    ((1, 3, 17, 17), (4, 3, 7, 7), {"stride": [2, 2], "padding": [3, 3]}),
]


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of convolutions stay integers where kernels read those."""
    monkeypatch.setattr(compile_quantized, "_MEMORY_SHARE", 1 << 60)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("sizes, filters, options", CONVOLUTIONS)
def test_convolutions(device: Any, family: str, sizes: Any, filters: Any, options: Any) -> None:  # noqa: F811
    weight = quantized(random(*filters), 8, (1, *filters[1:]))
    shaders = check(device, "aten::conv2d", random(*sizes, seed=1), weight, random(filters[0], seed=2), **options)
    assert reads_integers(shaders)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions(device: Any, family: str, groups: int) -> None:  # noqa: F811
    weight = quantized(random(8, 12, 3, 2), 8, (8 // groups, 1, 3, 2))
    args = (random(1, 8, 5, 6, seed=1), weight, random(12 * groups), [2, 2], [1, 0], [0, 0], groups)
    shaders = check(device, "aten::conv_transpose2d.input", *args)
    assert reads_integers(shaders)


@pytest.mark.usefixtures("little_memory")
def test_convolutions_in_one_dimension(device: Any) -> None:
    weight = quantized(random(6, 5, 3), 8, (1, 5, 3))
    shaders = check(device, "aten::conv1d", random(2, 5, 23, seed=1), weight, random(6), [2], [1])
    assert reads_integers(shaders)


@pytest.mark.parametrize("sizes, filters, options", CONVOLUTIONS)
def test_weights_of_convolutions_are_floats_where_there_is_room(
    device: Any, sizes: Any, filters: Any, options: Any
) -> None:
    weight = quantized(random(*filters), 8, (1, *filters[1:]))
    shaders = check(device, "aten::conv2d", random(*sizes, seed=1), weight, random(filters[0], seed=2), **options)
    assert not reads_integers(shaders) and "dequantize" not in shaders


@pytest.mark.parametrize("rows, bits", [(31, 8), (32, 8), (197, 8), (197, 4)])
@pytest.mark.parametrize("has_room", [True, False])
def test_matrix_units_multiply_many_rows_by_floats(
    monkeypatch: pytest.MonkeyPatch, rows: int, bits: int, has_room: bool
) -> None:
    if not has_room:
        monkeypatch.setattr(compile_quantized, "_MEMORY_SHARE", 1 << 60)
    weight = quantized(random(96, 64), bits, (1, 64))
    segment, _, _ = segment_of("aten::linear", random(rows, 64), weight, None)
    built = build_stream(segment, known_device("nvidia_h200"), ConstantStore())
    assert reads_integers(shaders_of(built)) is not (has_room and rows >= 32)


@pytest.mark.parametrize("rows", [32, 67])
def test_many_rows_by_floats_give_the_same(units: Device, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(units, "info", replace(units.info, kind="discrete"))
    weight = quantized(random(37, 61), 8, (1, 61))
    shaders = check(units, "aten::linear", random(rows, 61, seed=1), weight, random(37, seed=2))
    assert not reads_integers(shaders) and "dequantize" not in shaders


def test_a_weight_that_a_sum_reads_too_stays_one() -> None:
    segment, _, _ = segment_of("aten::linear", random(3, 32), quantized(random(8, 32), 8, (1, 32)), None)
    graph = segment.graph
    floats = next(node.output for node in graph.block.nodes if node.op == DEQUANTIZE)
    doubled = graph.block.append(Node.call("aten::add.Tensor", (floats, floats, 1), [Value("", floats.type)]))
    graph.block.returns.set_inputs([doubled.output, *graph.block.returns.inputs])
    compile_quantized.expand_weights(graph, device_info("discrete"), ConstantStore())
    assert any(node.op == DEQUANTIZE for node in graph.block.nodes)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize(
    "op, sizes, filters, options",
    [
        ("aten::conv2d", (1, 6, 7, 7), (6, 1, 3, 3), {"groups": 6}),
        ("aten::conv2d", (1, 6, 7, 7), (4, 3, 3, 3), {"groups": 2}),
        ("aten::conv3d", (1, 3, 4, 5, 6), (4, 3, 3, 2, 2), {}),
    ],
)
def test_convolutions_that_need_floats(
    device: Any,
    monkeypatch: pytest.MonkeyPatch,
    op: str,
    sizes: Any,
    filters: Any,
    options: Any,
    is_small: bool,
) -> None:
    monkeypatch.setattr(compile_quantized, "_MOST_EXPANDED", 1000 if is_small else 0)
    weight = quantized(random(*filters), 8, (1, *filters[1:]))
    shaders = check(device, op, random(*sizes, seed=1), weight, None, **options)
    assert ("dequantize" in shaders) is not is_small


@pytest.mark.parametrize("places", [[[0, 49, 7], [3, 3, 21]], [5, 0], [[49]], 7], ids=str)
@pytest.mark.parametrize("bits, block", [(8, (1, 37)), (4, (1, 32)), (4, (1, 37)), (8, (50, 37)), (4, (50, 32))])
def test_tables_of_embeddings(device: Any, bits: int, block: tuple[int, int], places: Any) -> None:
    """The rows that are chosen become floats, also where all rows share a scale."""
    weight = quantized(random(50, 37), bits, block)
    shaders = check(device, "aten::embedding", weight, torch.tensor(places, dtype=torch.int32))
    assert shaders[-1] == "dequantize" and len(shaders) <= 3


def test_tables_with_a_zero_point(device: Any) -> None:
    """As onnxruntime makes of one."""
    integers = torch.randint(0, 256, (50, 37), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    table = Quantized(integers, torch.tensor([[0.03]]), torch.tensor([[117.0]]), (50, 37), 8, 37)
    shaders = check(device, "aten::embedding", table, torch.tensor([[0, 49, 7]], dtype=torch.int32))
    assert shaders[-1] == "dequantize" and len(shaders) <= 2


def test_a_weight_that_two_layers_read() -> None:
    segment, _, _ = segment_of("aten::linear", random(3, 32), quantized(random(8, 32), 8, (1, 32)), None)
    graph = segment.graph
    (x,), linear = graph.inputs, list(graph.block.nodes)[-1]
    other = Node.call("aten::linear", (x, linear["weight"], None), [Value.of_tensor(torch.float32, (3, 8))])
    graph.block.append(other)
    graph.block.returns.set_inputs([linear.output, other.output])
    built = build_stream(segment, device_info("cpu"), ConstantStore())
    assert [name for name in shaders_of(built) if "quantized" not in name] == []


def test_only_packed_weights_are_on_the_device() -> None:
    weight = quantized(random(512, 1024), 4, (1, 32))
    segment, _, _ = segment_of("aten::linear", random(1, 1024), weight, None)
    built = build_stream(segment, device_info("cpu"), ConstantStore())
    constants = {
        binding.storage
        for item in built.stream.operations
        for binding in item.bindings
        if binding.storage.data is not None
    }
    assert sum(storage.nbytes for storage in constants) == 512 * 1024 // 2 + 512 * 32 * 4
