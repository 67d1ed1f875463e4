"""ONNX models that can't be used, with the error and the words that name what is wrong; one that can, to compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

from mobopt.errors import BundleError, MoboptError, UnsupportedError

FLOAT = TensorProto.FLOAT


def tensor_info(name: str, sizes: Any = None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, sizes)


def model_of(nodes: Any, inputs: Any, outputs: Any, initializers: Any = (), opset: int = 17, **settings: Any) -> Any:
    graph = helper.make_graph(nodes, "net", inputs, outputs, list(initializers))
    imports = settings.pop("opset_imports", [helper.make_opsetid("", opset)])
    return helper.make_model(graph, opset_imports=imports, ir_version=8, **settings)


def linear_model() -> Any:
    weight = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    return model_of(
        [helper.make_node("MatMul", ["data.in", "w"], ["mid:0"]), helper.make_node("Relu", ["mid:0"], ["out"])],
        [tensor_info("data.in", ["batch", 2])],
        [tensor_info("out")],
        [numpy_helper.from_array(weight, "w")],
    )


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
        r"Add y has inputs that do not fit: .*'x' is float32, 'n' is int64\); correct the node",
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
    "opset of none": (
        lambda: _of(helper.make_node("Relu", ["x"], ["y"]), opset_imports=[]),
        BundleError,
        "imports no opset of the domain 'ai.onnx'; add it",
    ),
    "initialisers": (
        lambda: model_of(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            [tensor_info("x")],
            [tensor_info("y")],
            [numpy_helper.from_array(numpy.zeros(3, numpy.float32), "w")] * 2,
        ),
        BundleError,
        "several initialisers named 'w'; give each",
    ),
    "sizes": (
        lambda: model_of(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            [tensor_info("x", [1, 4])],
            [tensor_info("y")],
            [numpy_helper.from_array(numpy.zeros((3, 3), numpy.float32), "w")],
        ),
        BundleError,
        r"'x' is float32\[1, 4\], 'w' is float32\[3, 3\]\); correct the node",
    ),
    "attribute": (
        lambda: _of(helper.make_node("Softmax", ["x"], ["y"], axis=7)),
        BundleError,
        "Softmax y has inputs that do not fit",
    ),
    "element type": (
        lambda: model_of(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            [tensor_info("x")],
            [tensor_info("y")],
            [TensorProto(name="w", data_type=77, dims=[2], raw_data=bytes(8))],
        ),
        UnsupportedError,
        "the tensor 'w': tensors of number 77",
    ),
    "huge": (_huge, BundleError, "has 4 bytes, and its sizes"),
    "bomb": (_bomb, BundleError, "steps"),
    "recursion": (_recursion, BundleError, "nested more than"),
    "empty": (onnx.ModelProto, BundleError, "has no graph"),
}
