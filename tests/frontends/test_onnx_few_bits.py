"""ONNX weights of few bits: they stay integers, for the device too, and give what ONNX's own reference gives."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from mobopt import MobileModule
from mobopt.frontends.open_source import source_of
from mobopt.ops.quantized import DEQUANTIZE
from mobopt.optimizer import optimize
from mobopt.options import Settings
from mobopt.runtimes.cpu import Interpreter

OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
NUMBERS = numpy.random.default_rng(0)


def model_of(nodes: list[Any], constants: dict[str, Any], x: Any) -> Any:
    """A model of nodes from ``x`` to ``y``; constants are arrays or tensors of ONNX."""
    tensors = [
        numpy_helper.from_array(numpy.asarray(v), k) if isinstance(v, (numpy.ndarray, numpy.generic)) else v
        for k, v in constants.items()
    ]
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    ends = [
        helper.make_tensor_value_info("x", kind, x.shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(nodes, "net", [ends[0]], [ends[1]], tensors)
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=10)


def bytes_of(*sizes: int, kind: Any = numpy.uint8) -> Any:
    limits = numpy.iinfo(kind)
    return NUMBERS.integers(limits.min, limits.max + 1, sizes).astype(kind)


def floats(*sizes: int) -> Any:
    return NUMBERS.normal(size=sizes).astype(numpy.float32)


def nibbles(name: str, kind: Any, low: int, high: int, *sizes: int) -> Any:
    return helper.make_tensor(name, kind, sizes, NUMBERS.integers(low, high, sizes).reshape(-1).tolist())


def dequantized(node: str, *inputs: str, attributes: dict[str, Any], **parts: Any) -> tuple[list[Any], dict[str, Any]]:
    """A weight ``w``, and a node that reads its floats."""
    names = ["w", "s", *(["z"] if "z" in parts else [])]
    nodes = [
        helper.make_node("DequantizeLinear", names, ["f"], **attributes),
        helper.make_node(node, list(inputs), ["y"]),
    ]
    return nodes, parts


def bits_case(bits: int, block: int, zeros: bool) -> tuple[list[Any], dict[str, Any], Any]:
    columns, inner = 29, 75
    blocks = -(-inner // block)
    inputs, constants = (
        ["x", "w", "s"],
        {"w": bytes_of(columns, blocks, block * bits // 8), "s": abs(floats(columns * blocks))},
    )
    if zeros:
        constants["z"] = bytes_of(columns * -(-blocks * bits // 8))
        inputs.append("z")
    options = {"K": inner, "N": columns, "bits": bits, "block_size": block, "domain": "com.microsoft"}
    return [helper.make_node("MatMulNBits", inputs, ["y"], **options)], constants, floats(3, inner)


def expected_of(model: Any, constants: dict[str, Any], x: Any) -> Any:
    """By ONNX's reference, which has no product of bits: that by the definition of onnxruntime's documentation."""
    (*_, node) = model.graph.node
    if node.op_type != "MatMulNBits":
        return ReferenceEvaluator(model).run(None, {"x": x})[0]
    options = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    bits, block = options["bits"], options["block_size"]
    weight = _spread(constants["w"], bits).reshape(options["N"], -1, block).astype(numpy.float64)
    blocks = weight.shape[1]
    zeros = numpy.full((options["N"], blocks), 1 << (bits - 1))
    if "z" in constants:
        zeros = _spread(constants["z"].reshape(options["N"], -1), bits)[:, :blocks]
    weight = (weight - zeros[..., None]) * constants["s"].reshape(options["N"], blocks, 1)
    return (x @ weight.reshape(options["N"], -1)[:, : options["K"]].T).astype(numpy.float32)


def _spread(held: Any, bits: int) -> Any:
    """Integers that lie two in a byte, the lower bits first."""
    return held if bits == 8 else numpy.stack([held & 15, held >> 4], -1).reshape(*held.shape[:-1], -1)


X = floats(3, 80)
CASES: dict[str, Any] = {
    "4 bits": lambda: bits_case(4, 32, False),
    "4 bits, zero points": lambda: bits_case(4, 16, True),
    "8 bits": lambda: bits_case(8, 32, False),
    "int8 columns": lambda: (
        *dequantized(
            "MatMul", "x", "f", attributes={"axis": 1}, w=bytes_of(80, 37, kind=numpy.int8), s=abs(floats(37))
        ),
        X,
    ),
    "uint8 and a zero point": lambda: (
        *dequantized("MatMul", "x", "f", attributes={}, w=bytes_of(80, 37), s=floats(1)[0], z=bytes_of(1)[0]),
        X,
    ),
    "blocks of int4": lambda: (
        *dequantized(
            "MatMul",
            *("x", "f"),
            attributes={"axis": 0, "block_size": 16},
            w=nibbles("w", TensorProto.INT4, -8, 8, 80, 37),
            s=abs(floats(5, 37)),
        ),
        X,
    ),
    "blocks of uint4": lambda: (
        *dequantized(
            "MatMul",
            *("x", "f"),
            attributes={"axis": 0, "block_size": 16},
            w=nibbles("w", TensorProto.UINT4, 0, 16, 80, 37),
            s=abs(floats(5, 37)),
            z=nibbles("z", TensorProto.UINT4, 0, 16, 5, 37),
        ),
        X,
    ),
    "a convolution": lambda: (
        *dequantized(
            "Conv", "x", "f", attributes={"axis": 0}, w=bytes_of(12, 11, 3, 3, kind=numpy.int8), s=abs(floats(12))
        ),
        floats(1, 11, 9, 9),
    ),
    "a table": lambda: (
        *dequantized(
            "Gather", "f", "x", attributes={"axis": 0}, w=bytes_of(40, 37, kind=numpy.int8), s=abs(floats(40))
        ),
        numpy.array([[3, 39, 0]], dtype=numpy.int64),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_weights_stay_integers(name: str) -> None:
    nodes, constants, x = CASES[name]()
    model = model_of(nodes, constants, x)
    expected = torch.from_numpy(expected_of(model, constants, x))
    source = source_of(model)
    kept = [
        node
        for node in source.program.methods["forward"].walk()
        if node.qualified_op == DEQUANTIZE and node.output.is_used
    ]
    assert len(kept) == 1
    made = Interpreter(source.program).run("forward", [torch.from_numpy(x)])
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    module = MobileModule(optimize(source, Settings("vulkan", "mobopt"), [torch.from_numpy(x)]).program)
    torch.testing.assert_close(module(torch.from_numpy(x)), made, rtol=1e-5, atol=1e-5 * float(made.abs().max()))
    assert not module.plan_report(torch.from_numpy(x)).fallbacks


def test_phones_get_floats() -> None:
    nodes, constants, x = CASES["4 bits"]()
    source = source_of(model_of(nodes, constants, x))
    program = optimize(source, Settings("vulkan", "2.6"), [torch.from_numpy(x)]).program
    assert not any(node.qualified_op == DEQUANTIZE for node in program.methods["forward"].walk())


CONVOLUTIONS = {
    # sizes of the input and the weight, groups, whether the weight is constant, how many convolutions of floats
    "few products": ((2, 3, 7, 5), (4, 3, 3, 3), 1, False, 1),
    "many channels": ((1, 67, 5, 7), (3, 67, 3, 3), 1, False, 3),
    "small weights": ((1, 67, 5, 7), (3, 67, 3, 3), 1, True, 1),
    "groups": ((1, 6, 11), (9, 2, 5), 3, True, 1),
    "sums of 2**24 and more in a group": ((1, 300, 3), (2, 150, 2), 2, False, 0),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_integers_are_exact(name: str) -> None:
    """Also where a sum is beyond what float32 has of integers; on the device, unless float64 must do it."""
    sizes, weights, groups, is_constant, count = CONVOLUTIONS[name]
    x = torch.randint(0, 2, sizes, dtype=torch.uint8) * 255  # the largest sums
    weight = torch.randint(-7, 8, weights, dtype=torch.int8)
    weight = weight if is_constant else torch.full_like(weight, 127)
    node = helper.make_node("ConvInteger", ["x", "w", "zero"], ["y"], group=groups)
    tensors = {"w": weight, "zero": torch.tensor(3, dtype=torch.uint8)}
    held = ["w", "zero"] if is_constant else ["zero"]
    given = [helper.make_tensor_value_info("x", TensorProto.UINT8, sizes)]
    given += [] if is_constant else [helper.make_tensor_value_info("w", TensorProto.INT8, weights)]
    result = [helper.make_tensor_value_info("y", TensorProto.INT32, [None] * len(sizes))]
    initializers = [numpy_helper.from_array(tensors[item].numpy(), item) for item in held]
    graph = helper.make_graph([node], "one", given, result, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    program = source_of(model).program
    made = [node for node in program.methods["forward"].walk() if node.op.startswith("aten::conv")]
    assert len(made) == (count or 1)
    inputs = [x] if is_constant else [x, weight]
    function = getattr(torch.nn.functional, f"conv{len(sizes) - 2}d")
    expected = function(x.double() - 3, weight.double(), groups=groups).to(torch.int32)
    assert torch.equal(Interpreter(program).run("forward", inputs), expected)
    module = MobileModule(program)
    assert torch.equal(module(*inputs), expected)
    assert bool(module.plan_report(*inputs).fallbacks) is (count == 0)
