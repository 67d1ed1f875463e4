"""ONNX files: what is kept of them, external data, and files that are damaged, hostile or not translated."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
import torch
from bad_onnx_models import BAD, external, linear_model, model_of, tensor_info
from onnx import helper, numpy_helper

from mobopt import optimize_for_mobile
from mobopt.errors import BundleError, InputError
from mobopt.frontends.onnx.order import in_order
from mobopt.frontends.onnx_source import OnnxSource
from mobopt.frontends.open_source import source_of
from mobopt.ir import print_graph
from mobopt.runtimes.cpu import Interpreter
from mobopt.samples.example_inputs import DECLARED, TRACED, choose_inputs


def run(model: Any, *inputs: Any) -> Any:
    return Interpreter(source_of(model).program).run("forward", [torch.as_tensor(item) for item in inputs])


def test_names_of_inputs_outputs_and_weights_are_kept(tmp_path: Path) -> None:
    onnx.save(linear_model(), tmp_path / "net.onnx")
    source = source_of(tmp_path / "net.onnx")
    assert isinstance(source, OnnxSource)
    assert source.name == "net.onnx"
    assert [(item.name, item.sizes) for item in source.inputs] == [("data.in", ("batch", 2))]
    assert source.outputs == ("out",)
    assert [value.name for value in source.program.methods["forward"].inputs[1:]] == ["data.in"]
    text = print_graph(source.program.methods["forward"], sources=True)
    assert "%out : Tensor = aten::relu" in text
    assert "# MatMul mid:0" in text


@pytest.mark.parametrize("batch", [1, "n"])
def test_files_are_made_for_the_sizes_that_a_model_declares(batch: Any) -> None:
    """Of a window that dwarfs every image, as transformers' EfficientNet has it, but for sizes that stay open."""
    window = {"kernel_shape": [2560, 2560], "strides": [2560, 2560], "ceil_mode": 1, "count_include_pad": 1}
    nodes = [helper.make_node("AveragePool", ["x"], ["y"], **window)]
    model = model_of(nodes, [tensor_info("x", [batch, 3, 5, 7])], [tensor_info("y")], [])
    inputs = choose_inputs(source_of(model))
    assert inputs.origin == (DECLARED if batch == 1 else TRACED) and inputs.examples.are_random
    assert inputs.examples.are_guessed == (batch != 1)
    if batch == 1:
        made = optimize_for_mobile(model, backend="vulkan")
        assert "constant_pad_nd" not in made.code
        x = torch.rand(1, 3, 5, 7, generator=torch.Generator().manual_seed(0))
        assert torch.allclose(made(x), x.mean((2, 3), keepdim=True), rtol=1e-5)


def test_random_numbers_calibrate_nothing() -> None:
    nodes = [helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2])]
    model = model_of(nodes, [tensor_info("x", [1, 3, 5, 7])], [tensor_info("y")], [])
    with pytest.raises(InputError, match="learns from example inputs"):
        optimize_for_mobile(model, backend="cpu", quantize="int8_static")


def test_sizes_are_numbers_of_the_host() -> None:
    """Shape, Gather, Concat and Reshape leave no tensor of sizes."""
    two, minus = (numpy_helper.from_array(numpy.array([number]), name) for number, name in ((2, "two"), (-1, "minus")))
    zero = numpy_helper.from_array(numpy.array(0), "zero")
    axis = numpy_helper.from_array(numpy.array([0]), "axis")
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["first"]),
        helper.make_node("Unsqueeze", ["first", "axis"], ["row"]),
        helper.make_node("Mul", ["row", "two"], ["double"]),
        helper.make_node("Concat", ["double", "minus"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    model = model_of(nodes, [tensor_info("x", ["n", 6])], [tensor_info("y")], [two, minus, zero, axis])
    operators = [node.qualified_op for node in source_of(model).program.methods["forward"].walk()]
    assert operators == ["aten::size.int", "aten::mul.int", "prim::ListConstruct", "aten::reshape"]
    assert run(model, torch.zeros(5, 6)).shape == (10, 3)


def test_external_data_lies_beside_the_file(tmp_path: Path) -> None:
    onnx.save(linear_model(), tmp_path / "net.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert (tmp_path / "w.bin").is_file()
    x = torch.randn(3, 2)
    found = run(tmp_path / "net.onnx", x)
    torch.testing.assert_close(found, (x @ torch.arange(6.0).reshape(2, 3)).relu())


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("../secret.bin", "does not lie beside the model"),
        ("/etc/passwd", "does not lie beside the model"),
        ("link.bin", "does not lie beside the model"),
        ("", "does not lie beside the model"),
        ("missing.bin", "is missing"),
        ("folder", "is missing"),
    ],
)
def test_external_data_elsewhere_is_refused(tmp_path: Path, location: str, words: str) -> None:
    folder = tmp_path / "models"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "secret.bin").write_bytes(bytes(24))
    os.symlink(tmp_path / "secret.bin", folder / "link.bin")
    with pytest.raises(BundleError, match=words):
        source_of(external(location, folder))


@pytest.mark.parametrize(("offset", "length"), [(0, 25), (1, 24), (-1, 24), (1 << 60, 24)])
def test_external_data_beyond_the_file_is_refused(tmp_path: Path, offset: int, length: int) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(24))
    with pytest.raises(BundleError, match="'w'"):
        source_of(external("w.bin", tmp_path, offset, length))


@pytest.mark.parametrize("seed", range(4))
def test_nodes_come_in_any_order(seed: int) -> None:
    """As tools leave them that append casts to halves; a branch reads what is made around it."""
    one, yes = (helper.make_node("Neg", [name], ["branch"]) for name in ("square", "sum"))
    branches = [helper.make_graph([item], "branch", [], [tensor_info("branch")]) for item in (one, yes)]
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("Add", ["square", "x"], ["sum"]),
        helper.make_node("ReduceMax", ["sum"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["any"], to=onnx.TensorProto.BOOL),
        helper.make_node("If", ["any"], ["chosen"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Sub", ["chosen", "x"], ["y"]),
    ]
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(seed))
    random.Random(seed).shuffle(nodes)
    model = model_of(nodes, [tensor_info("x", [3, 5])], [tensor_info("y")])
    torch.testing.assert_close(run(model, x), -x * x - x)


def test_sorted_nodes_stay_as_they_are() -> None:
    nodes = [helper.make_node("Neg", [name], [result]) for name, result in ("xa", "ab", "xc", "bd")]
    assert in_order(nodes) == nodes
    moved = [nodes[3], nodes[2], nodes[1], nodes[0]]
    assert [node.output[0] for node in in_order(moved)] == ["a", "b", "d", "c"]


@pytest.mark.parametrize("name", BAD)
def test_bad_models_are_named(name: str, tmp_path: Path) -> None:
    make, kind, words = BAD[name]
    with pytest.raises(kind, match=words):
        source_of(make())


def test_damaged_files_are_named(tmp_path: Path) -> None:
    data = linear_model().SerializeToString()
    path = tmp_path / "net.onnx"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(BundleError, match=r"net\.onnx"):
        source_of(path)


def test_a_large_constant_is_made_when_it_is_asked_for() -> None:
    sizes = numpy_helper.from_array(numpy.array([1 << 20, 1 << 20]), "sizes")
    model = model_of(
        [helper.make_node("ConstantOfShape", ["sizes"], ["big"]), helper.make_node("Add", ["x", "big"], ["y"])],
        [tensor_info("x")],
        [tensor_info("y")],
        [sizes],
    )
    operators = [node.qualified_op for node in source_of(model).program.methods["forward"].walk()]
    assert operators == ["aten::full", "aten::add.Tensor"]


def test_a_method_to_preserve_does_not_exist() -> None:
    with pytest.raises(InputError, match="encode"):
        source_of(linear_model(), ["encode"])


@pytest.mark.parametrize(("rows", "expected"), [(12, 2), (7, 0), (6, 0), (4, -1), (2, -2)])
def test_integers_are_divided_toward_zero(rows: int, expected: int) -> None:
    """As ONNX does; the language's division rounds down."""
    constants = [numpy_helper.from_array(numpy.array(number), name) for number, name in ((7, "seven"), (2, "two"))]
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], end=1),
        helper.make_node("Sub", ["shape", "seven"], ["less"]),
        helper.make_node("Div", ["less", "two"], ["y"]),
    ]
    model = model_of(nodes, [tensor_info("x", ["n", 6])], [tensor_info("y")], constants)
    assert run(model, torch.zeros(rows, 6)).tolist() == [expected]


def test_sizes_of_minus_one_are_open() -> None:
    """As older exporters write them, and onnxruntime takes them."""
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [tensor_info("x", [-1, 3])], [tensor_info("y")])
    source = source_of(model)
    assert isinstance(source, OnnxSource)
    assert source.inputs[0].sizes == (None, 3)
    for rows in (1, 5):
        assert run(model, torch.ones(rows, 3)).shape == (rows, 3)
