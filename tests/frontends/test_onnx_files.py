"""ONNX files: what is kept of them, external data, and files that are damaged, hostile or not translated."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from mobopt.errors import BundleError, InputError, MoboptError, UnsupportedError
from mobopt.frontends.onnx_source import OnnxSource
from mobopt.frontends.open_source import source_of
from mobopt.ir import print_graph
from mobopt.runtimes.cpu import Interpreter

FLOAT = TensorProto.FLOAT


def tensor_info(name: str, sizes: Any = None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, sizes)


def model_of(nodes: Any, inputs: Any, outputs: Any, initializers: Any = (), opset: int = 17, **settings: Any) -> Any:
    graph = helper.make_graph(nodes, "net", inputs, outputs, list(initializers))
    imports = settings.pop("opset_imports", [helper.make_opsetid("", opset)])
    return helper.make_model(graph, opset_imports=imports, ir_version=8, **settings)


def run(model: Any, *inputs: Any) -> Any:
    return Interpreter(source_of(model).program).run("forward", [torch.as_tensor(item) for item in inputs])


def linear_model() -> Any:
    weight = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    return model_of(
        [helper.make_node("MatMul", ["data.in", "w"], ["mid:0"]), helper.make_node("Relu", ["mid:0"], ["out"])],
        [tensor_info("data.in", ["batch", 2])],
        [tensor_info("out")],
        [numpy_helper.from_array(weight, "w")],
    )


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


def external(location: str, folder: Path, offset: int = 0, length: int = 24) -> Path:
    model = linear_model()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        weight.external_data.add(key=key, value=value)
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


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


def _of(node: Any, **settings: Any) -> Any:
    return model_of([node], [tensor_info("x", [2, 3])], [tensor_info("y")], **settings)


def _huge() -> Any:
    weight = TensorProto(name="w", data_type=FLOAT, dims=[1 << 40, 1 << 20], raw_data=b"1234")
    return model_of([helper.make_node("Add", ["x", "w"], ["y"])], [tensor_info("x")], [tensor_info("y")], [weight])


def _bomb() -> Any:
    """Functions that call the one before twice each."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = [helper.make_function("f", "F0", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], imports)]
    for depth in range(1, 22):
        calls = [
            helper.make_node(f"F{depth - 1}", ["a"], ["c"], domain="f"),
            helper.make_node(f"F{depth - 1}", ["c"], ["b"], domain="f"),
        ]
        functions.append(helper.make_function("f", f"F{depth}", ["a"], ["b"], calls, imports))
    return _of(helper.make_node("F21", ["x"], ["y"], domain="f"), opset_imports=imports, functions=functions)


def _recursion() -> Any:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    call = [helper.make_node("F", ["a"], ["b"], domain="f")]
    function = helper.make_function("f", "F", ["a"], ["b"], call, imports)
    return _of(helper.make_node("F", ["x"], ["y"], domain="f"), opset_imports=imports, functions=[function])


BAD: dict[str, tuple[Any, type[MoboptError], str]] = {
    "opset": (lambda: _of(helper.make_node("Relu", ["x"], ["y"]), opset=6), BundleError, "opset 6, and mobopt reads 7"),
    "future": (lambda: _of(helper.make_node("Relu", ["x"], ["y"]), opset=999), BundleError, "opset 999"),
    "domain": (
        lambda: _of(helper.make_node("Blur", ["x"], ["y"], domain="acme")),
        BundleError,
        "imports no opset of the domain 'acme'",
    ),
    "operator": (
        lambda: _of(
            helper.make_node("Blur", ["x"], ["y"], domain="acme"),
            opset_imports=[helper.make_opsetid("acme", 1), helper.make_opsetid("", 17)],
        ),
        UnsupportedError,
        "acme::Blur of opset 1 is unknown",
    ),
    "cycle": (
        lambda: model_of(
            [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])],
            [tensor_info("x")],
            [tensor_info("b")],
        ),
        BundleError,
        "reads 'b', which nothing before it makes",
    ),
    "twice": (
        lambda: model_of(
            [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["y"])],
            [tensor_info("x")],
            [tensor_info("y")],
        ),
        BundleError,
        "makes 'y', which is made already",
    ),
    "inputs": (
        lambda: model_of([helper.make_node("Neg", ["x"], ["y"])], [tensor_info("x")] * 2, [tensor_info("y")]),
        BundleError,
        "2 inputs named 'x'",
    ),
    "output": (
        lambda: model_of([helper.make_node("Neg", ["x"], ["y"])], [tensor_info("x")], [tensor_info("z")]),
        BundleError,
        "returns 'z', which no node makes",
    ),
    "types": (
        lambda: model_of(
            [helper.make_node("Add", ["x", "n"], ["y"])],
            [tensor_info("x"), tensor_info("n", None, TensorProto.INT64)],
            [tensor_info("y")],
        ),
        BundleError,
        "Add y has inputs that do not fit",
    ),
    "strings": (
        lambda: model_of(
            [helper.make_node("Identity", ["x"], ["y"])],
            [tensor_info("x", None, TensorProto.STRING)],
            [tensor_info("y")],
        ),
        UnsupportedError,
        "the input 'x': tensors of string",
    ),
    "huge": (_huge, BundleError, "has 4 bytes, and its sizes"),
    "bomb": (_bomb, BundleError, "steps"),
    "recursion": (_recursion, BundleError, "nested more than"),
    "empty": (onnx.ModelProto, BundleError, "has no graph"),
}


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
