"""The interface of onnx.backend.base over mobopt."""

from __future__ import annotations

from typing import Any

import numpy
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from mobopt import onnx_backend
from mobopt.errors import InputError, UnsupportedError
from mobopt.runtimes.vulkan.engine.device import Device


def two_outputs(kind: int = TensorProto.FLOAT) -> Any:
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["the_sum"]), helper.make_node("Sub", ["a", "b"], ["rest"])],
        "pair",
        [helper.make_tensor_value_info(name, kind, ["n", 3]) for name in ("a", "b")],
        [helper.make_tensor_value_info(name, kind, ["n", 3]) for name in ("the_sum", "rest")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("name", ["VULKAN", "CPU"])
def test_a_model_runs_by_names_and_by_order(name: str, device: Device) -> None:
    prepared = onnx_backend.prepare(two_outputs(), name)
    for rows in (1, 5):
        a, b = (numpy.random.rand(rows, 3).astype(numpy.float32) for _ in range(2))
        for inputs in ([a, b], {"b": b, "a": a}):
            outputs = prepared.run(inputs)
            numpy.testing.assert_allclose(outputs.the_sum, a + b, rtol=1e-6)
            numpy.testing.assert_allclose(outputs[1], a - b, rtol=1e-6, atol=1e-7)


def test_bfloat16_comes_and_goes_as_onnx_has_it() -> None:
    kind = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    a = numpy.array([[1.0, 2.0, 3.0]], dtype=numpy.float32).astype(kind)
    found = onnx_backend.run_model(two_outputs(TensorProto.BFLOAT16), [a, a], "CPU")
    assert found[0].dtype == kind
    assert found[0].astype(numpy.float32).tolist() == [[2.0, 4.0, 6.0]]


def test_one_node() -> None:
    x = numpy.array([[3.0, -1.0, 2.0]], dtype=numpy.float32)
    values, indices = onnx_backend.run_node(
        helper.make_node("TopK", ["x", "k"], ["values", "indices"]), [x, numpy.array([2])], "CPU"
    )
    assert values.tolist() == [[3.0, 2.0]]
    assert indices.tolist() == [[0, 2]]


def test_devices() -> None:
    assert onnx_backend.supports_device("CPU")
    assert onnx_backend.supports_device("VULKAN:0")
    assert not onnx_backend.supports_device("VULKAN:99")
    assert not onnx_backend.supports_device("CUDA")


def test_what_is_not_translated_is_not_compatible() -> None:
    assert onnx_backend.is_compatible(two_outputs(), "CPU")
    strings = two_outputs(TensorProto.STRING)
    assert not onnx_backend.is_compatible(strings, "CPU")
    with pytest.raises(UnsupportedError, match="string"):
        onnx_backend.prepare(strings, "CPU")


@pytest.mark.parametrize(
    ("inputs", "words"),
    [([], "has 0 inputs"), ({"a": numpy.zeros(3)}, "lacks 'b'"), ({"a": 0, "b": 0, "c": 0}, "has 'c'")],
)
def test_wrong_inputs_are_named(inputs: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        onnx_backend.prepare(two_outputs(), "CPU").run(inputs)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: onnx_backend.prepare(two_outputs(), "CUDA"), "'CUDA' is unknown"),
        (lambda: onnx_backend.prepare(two_outputs(), "CPU", threads=4), "no 'threads'"),
        (lambda: onnx_backend.prepare(two_outputs(), "CPU").run([torch.zeros(1, 3)] * 2, verbose=True), "no 'verbose'"),
    ],
)
def test_unknown_arguments_are_named(call: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


def test_it_is_a_backend_of_onnx() -> None:
    assert issubclass(onnx_backend.MoboptBackend, onnx.backend.base.Backend)


@pytest.mark.parametrize("given", [[], [numpy.ones(3, numpy.float32)]])
def test_sequences(given: list[Any]) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("SequenceInsert", ["items", "x"], ["more"]),
            helper.make_node("SequenceLength", ["more"], ["n"]),
        ],
        "sequence",
        [
            helper.make_tensor_sequence_value_info("items", TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [3]),
        ],
        [helper.make_tensor_value_info("n", TensorProto.INT64, [])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    [found] = onnx_backend.run_model(model, [given, numpy.zeros(3, numpy.float32)], "CPU")
    assert found == len(given) + 1


@pytest.mark.parametrize("name", ["INT4", "UINT4", "INT2", "UINT2"])
def test_arrays_of_few_bits(name: str) -> None:
    kind = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name))
    low, high = (-2, 1) if "2" in name else (-8, 7)
    if name.startswith("U"):
        low, high = 0, high - low
    held = numpy.array([low, high, 1, 0]).astype(kind)
    node = helper.make_node("DequantizeLinear", ["x", "s"], ["y"])
    found = onnx_backend.run_node(node, [held, numpy.float32(0.5)], "CPU")[0]
    assert found.tolist() == [low / 2, high / 2, 0.5, 0.0]
    x = numpy.array([-99.0, 99.0, 0.5, 1.5], dtype=numpy.float32)
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
    found = onnx_backend.run_node(node, [x, numpy.float32(1), numpy.array(0).astype(kind)], "CPU")[0]
    assert found.tolist() == [low, high, 0, min(2, high)]
