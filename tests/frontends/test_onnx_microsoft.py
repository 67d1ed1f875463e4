"""Operators of com.microsoft that exporters write, beside onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from onnx import helper, numpy_helper

from mobopt.frontends.open_source import source_of
from mobopt.runtimes.cpu import Interpreter

runtime = pytest.importorskip("onnxruntime")


def floats(*sizes: int) -> Any:
    return numpy.random.randn(*sizes).astype(numpy.float32)


def integers(low: int, high: int, sizes: tuple[int, ...], kind: Any = numpy.int64) -> Any:
    return numpy.random.randint(low, high, sizes).astype(kind)


def scale(value: float = 0.02) -> Any:
    return numpy.array(value, dtype=numpy.float32)


def zero(value: int = 120, kind: Any = numpy.uint8) -> Any:
    return numpy.array(value, dtype=kind)


def bytes_of(*sizes: int) -> Any:
    return integers(0, 256, sizes, numpy.uint8)


def lstm(directions: int, steps: int, columns: bool = False, batch: int = 1) -> list[Any]:
    """Inputs of DynamicQuantizeLSTM, 8 to 16."""
    shape = (directions, 64) if columns else (directions,)
    given: list[Any] = [floats(steps, batch, 8)]
    given += [integers(-128, 128, (directions, size, 64), numpy.int8) for size in (8, 16)]
    given += [floats(directions, 128), None, floats(directions, batch, 16), floats(directions, batch, 16), None]
    for _ in range(2):
        steps_of = (numpy.abs(numpy.random.randn(*shape)) * 0.002 + 0.001).astype(numpy.float32)
        given += [steps_of, numpy.zeros(shape, numpy.int8)]
    return given


def experts(bits: int, rows: int, hidden: int, inner: int, block: int = 0, zeros: bool = False) -> list[Any]:
    """Inputs of QMoE with five experts: seven tokens."""

    def layer(outputs: int, inputs: int) -> list[Any]:
        scales = (5, outputs, inputs // block) if block else (5, outputs)
        return [bytes_of(5, outputs, inputs * bits // 8), numpy.abs(floats(*scales)) * 0.01, floats(5, outputs)]

    def points(outputs: int, inputs: int) -> Any:
        if not zeros:
            return None
        return bytes_of(5, outputs, inputs // block * bits // 8) if block else bytes_of(5, outputs * bits // 8)

    given = [floats(7, hidden), floats(7, 5), *layer(rows, hidden), *layer(hidden, inner), None, None, None]
    return [*given, points(rows, hidden), points(hidden, inner)]


CASES: dict[str, tuple[str, Any, int, dict[str, Any]]] = {
    "gelu": ("Gelu", lambda: [floats(2, 5)], 1, {}),
    "fast gelu": ("FastGelu", lambda: [floats(2, 5), floats(5)], 2, {}),
    "bias gelu": ("BiasGelu", lambda: [floats(2, 5), floats(5)], 2, {}),
    "quick gelu": ("QuickGelu", lambda: [floats(2, 5)], 1, {"alpha": 1.5}),
    "skip norm": ("SkipLayerNormalization", lambda: [floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8)], 2, {}),
    "skip norm with bias": (
        "SkipLayerNormalization",
        lambda: [floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8), floats(8)],
        2,
        {"epsilon": 1e-5},
    ),
    "skip rms norm": (
        "SkipSimplifiedLayerNormalization",
        lambda: [floats(2, 3, 8), floats(2, 3, 8), floats(8)],
        2,
        {"epsilon": 1e-5},
    ),
    "product": ("FusedMatMul", lambda: [floats(2, 4, 3), floats(2, 5, 4)], 2, {"transA": 1, "transB": 1, "alpha": 0.5}),
    "convolution": (
        "FusedConv",
        lambda: [floats(1, 3, 6, 7), floats(4, 3, 3, 3), floats(4)],
        1,
        {"activation": "Relu", "pads": [1, 0, 1, 2]},
    ),
    "four bits": (
        "MatMulNBits",
        lambda: [floats(3, 40), bytes_of(6, 3, 8), numpy.abs(floats(18))],
        1,
        {"K": 40, "N": 6, "bits": 4, "block_size": 16},
    ),
    "four bits with zero points": (
        "MatMulNBits",
        lambda: [floats(3, 40), bytes_of(6, 3, 8), numpy.abs(floats(18)), bytes_of(12)],
        1,
        {"K": 40, "N": 6, "bits": 4, "block_size": 16},
    ),
    "attention": (
        "Attention",
        lambda: [floats(2, 5, 8), floats(8, 24), floats(24)],
        1,
        {"num_heads": 2},
    ),
    "attention with a mask": (
        "Attention",
        lambda: [floats(2, 5, 8), floats(8, 24), floats(24), numpy.array([[1, 1, 1, 0, 0], [1] * 5], numpy.int32)],
        1,
        {"num_heads": 2},
    ),
    "causal attention": (
        "Attention",
        lambda: [floats(2, 5, 8), floats(8, 24), floats(24)],
        1,
        {"num_heads": 2, "unidirectional": 1},
    ),
    "heads": (
        "MultiHeadAttention",
        lambda: [floats(2, 4, 8), floats(2, 6, 8), floats(2, 6, 8), floats(24)],
        3,
        {"num_heads": 2},
    ),
    "heads with padding": (
        "MultiHeadAttention",
        lambda: [
            floats(2, 4, 8),
            floats(2, 6, 8),
            floats(2, 6, 8),
            None,
            numpy.array([[1] * 6, [1, 1, 1, 1, 0, 0]], numpy.int32),
        ],
        3,
        {"num_heads": 2},
    ),
    "rotary": (
        "RotaryEmbedding",
        lambda: [floats(2, 3, 8), integers(0, 10, (2, 3)), floats(10, 2), floats(10, 2)],
        2,
        {},
    ),
    "rotary, interleaved": (
        "RotaryEmbedding",
        lambda: [floats(2, 2, 3, 8), integers(0, 10, (2, 3)), floats(10, 4), floats(10, 4)],
        2,
        {"interleaved": 1},
    ),
    "quantised sum": (
        "QLinearAdd",
        lambda: [bytes_of(2, 5), scale(), zero(), bytes_of(2, 5), scale(0.03), zero(90), scale(0.04), zero(100)],
        4,
        {},
    ),
    "quantised pool": (
        "QLinearGlobalAveragePool",
        lambda: [bytes_of(1, 3, 4, 4), scale(), zero(), scale(0.01), zero(100)],
        1,
        {},
    ),
    "quantised pool, channels last": (
        "QLinearGlobalAveragePool",
        lambda: [bytes_of(1, 4, 5, 3), scale(), zero(), scale(0.01), zero(100)],
        1,
        {"channels_last": 1},
    ),
    "quantised windows": (
        "QLinearAveragePool",
        lambda: [bytes_of(1, 3, 7, 5), scale(), zero(), scale(0.01), zero(100)],
        1,
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "count_include_pad": 1},
    ),
    "quantised windows, channels last": (
        "QLinearAveragePool",
        lambda: [bytes_of(1, 7, 5, 3), scale(), zero(), scale(0.01), zero(100)],
        1,
        {"kernel_shape": [3, 2], "channels_last": 1},
    ),
    "quantised sigmoid": ("QLinearSigmoid", lambda: [bytes_of(2, 5), scale(), zero(), scale(0.01), zero(3)], 1, {}),
    "quantised leaky relu": (
        "QLinearLeakyRelu",
        lambda: [integers(-128, 128, (2, 5), numpy.int8), scale(), zero(-3, numpy.int8), scale(), zero(9, numpy.int8)],
        1,
        {"alpha": 0.2},
    ),
    "quantised softmax": (
        "QLinearSoftmax",
        lambda: [bytes_of(2, 3, 5), scale(), zero(), scale(1 / 256), zero(0)],
        1,
        {"axis": -1, "opset": 13},
    ),
    "quantised softmax of old": (
        "QLinearSoftmax",
        lambda: [bytes_of(2, 3, 5), scale(), zero(), scale(1 / 256), zero(0)],
        1,
        {"axis": 1, "opset": 11},
    ),
    "quantised choice": (
        "QLinearWhere",
        lambda: [
            integers(0, 2, (2, 1), numpy.bool_),
            bytes_of(2, 5),
            scale(),
            zero(),
            bytes_of(5),
            scale(0.03),
            zero(90),
            scale(0.05),
            zero(100),
        ],
        2,
        {},
    ),
    "quantised attention": (
        "QAttention",
        lambda: [
            bytes_of(2, 5, 64),
            integers(-128, 128, (64, 96), numpy.int8),
            floats(96),
            scale(0.01),
            numpy.linspace(0.001, 0.004, 96).astype(numpy.float32),
            None,
            zero(),
            numpy.zeros(96, numpy.int8),
        ],
        1,
        {"num_heads": 4},
    ),
    "quantised attention with a mask": (
        "QAttention",
        lambda: [
            bytes_of(2, 5, 64),
            bytes_of(64, 96),
            floats(96),
            scale(0.01),
            scale(0.003),
            numpy.array([3, 5], numpy.int32),
            zero(),
            zero(99),
        ],
        1,
        {"num_heads": 4},
    ),
    "dynamic product": (
        "DynamicQuantizeMatMul",
        lambda: [floats(3, 32), integers(-128, 128, (32, 40), numpy.int8), numpy.abs(floats(40)), None, floats(40)],
        1,
        {},
    ),
    "dynamic product of nothing but zeros": (
        "DynamicQuantizeMatMul",
        lambda: [floats(3, 4) * 0, bytes_of(4, 5), scale(), zero(100), floats(5)],
        1,
        {},
    ),
    "dynamic lstm": ("DynamicQuantizeLSTM", lambda: lstm(1, 4), 1, {"hidden_size": 16}),
    "dynamic lstm of columns": (
        "DynamicQuantizeLSTM",
        lambda: lstm(2, 6, columns=True),
        1,
        {"hidden_size": 16, "direction": "bidirectional"},
    ),
    "dynamic lstm of a batch": ("DynamicQuantizeLSTM", lambda: lstm(1, 4, batch=3), 1, {"hidden_size": 16}),
    "dynamic lstm backwards": (
        "DynamicQuantizeLSTM",
        lambda: lstm(1, 5),
        1,
        {"hidden_size": 16, "direction": "reverse"},
    ),
    "quantised product": (
        "QGemm",
        lambda: [bytes_of(3, 8), scale(), zero(), bytes_of(8, 4), scale(0.01), zero(100), None, scale(0.2), zero()],
        1,
        {},
    ),
    "experts": (
        "MoE",
        lambda: [floats(7, 8), floats(7, 5), floats(5, 16, 8), floats(5, 16), floats(5, 8, 16), floats(5, 8)],
        2,
        {"k": 2, "activation_type": "gelu", "normalize_routing_weights": 1},
    ),
    "gated experts": (
        "MoE",
        lambda: [floats(2, 3, 8), floats(6, 5), floats(5, 32, 8), floats(5, 32), floats(5, 8, 16), floats(5, 8)],
        2,
        {"k": 1, "activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.5, "swiglu_limit": 2.0},
    ),
    "experts of four bits": (
        "QMoE",
        lambda: experts(4, 64, 32, 64),
        2,
        {"k": 2, "activation_type": "silu", "expert_weight_bits": 4, "normalize_routing_weights": 1},
    ),
    "experts of eight bits": (
        "QMoE",
        lambda: experts(8, 64, 32, 64, zeros=True),
        2,
        {"k": 3, "activation_type": "relu", "expert_weight_bits": 8},
    ),
    "experts that others weigh": (
        "QMoE",
        lambda: [*experts(4, 64, 32, 64), None, numpy.abs(floats(7, 5))],
        2,
        {"k": 2, "activation_type": "relu"},
    ),
    "gated experts of four bits with zero points": (
        "QMoE",
        lambda: experts(4, 128, 32, 64, block=16, zeros=True),
        2,
        {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "expert_weight_bits": 4, "block_size": 16},
    ),
    "experts with zero points of rows": (
        "QMoE",
        lambda: experts(4, 64, 32, 64, zeros=True),
        2,
        {"k": 1, "activation_type": "identity", "expert_weight_bits": 4},
    ),
    "embeddings with a mask": (
        "EmbedLayerNormalization",
        lambda: [
            *(integers(0, limit, (2, 5), numpy.int32) for limit in (11, 3)),
            *(floats(limit, 8) for limit in (11, 7, 3)),
            *(floats(8), floats(8), integers(0, 2, (2, 5), numpy.int32)),
        ],
        2,
        {"epsilon": 1e-5},
    ),
    "quantised embeddings": (
        "QEmbedLayerNormalization",
        lambda: [
            *(integers(0, limit, (2, 5), numpy.int32) for limit in (11, 3)),
            *(bytes_of(limit, 8) for limit in (11, 7, 3)),
            *(bytes_of(8), bytes_of(8), integers(0, 2, (2, 5), numpy.int32)),
            *(scale(0.01 * number) for number in range(1, 6)),
            *(zero(100 + number) for number in range(5)),
        ],
        2,
        {"epsilon": 1e-5},
    ),
    "quantised embeddings without segments": (
        "QEmbedLayerNormalization",
        lambda: [
            *(integers(0, 11, (2, 5), numpy.int32), None, bytes_of(11, 8), bytes_of(7, 8), None),
            *(bytes_of(8), bytes_of(8), None, scale(0.01), scale(0.02), None, scale(0.03), scale(0.04)),
            *(zero(100), zero(101), None, zero(102), zero(103)),
        ],
        1,
        {"epsilon": 1e-5},
    ),
    "greatest elements, channels last": (
        "NhwcMaxPool",
        lambda: [bytes_of(2, 7, 5, 3)],
        1,
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_as_in_onnxruntime(name: str) -> None:
    operator, make, live, attributes = CASES[name]
    arrays = make()
    names = [f"i{number}" if array is not None else "" for number, array in enumerate(arrays)]
    given = {item: array for item, array in list(zip(names, arrays, strict=True))[:live] if item}
    given.update({item: array for item, array in zip(names, arrays, strict=True) if array is not None and item == "i4"})
    held = {item: array for item, array in zip(names, arrays, strict=True) if item and item not in given}
    if operator.startswith("Q") and "i4" in given and not operator.endswith("Add"):
        held["i4"] = given.pop("i4")
    outputs = ["y", "lengths"] if "EmbedLayer" in operator else ["y"]
    node = helper.make_node(operator, names, outputs, domain="com.microsoft", **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(item, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for item, array in given.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, item) for item, array in held.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1  # of more, DynamicQuantizeLSTM rounds each's rows by themselves
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    expected, *lengths = map(torch.from_numpy, session.run(None, given))
    found = Interpreter(source_of(model).program).run("forward", [torch.from_numpy(array) for array in given.values()])
    if lengths:
        found, others = found
        assert torch.equal(others, lengths[0])
    if expected.dtype == torch.uint8:
        assert found.dtype == expected.dtype
        assert int((found.int() - expected.int()).abs().max()) <= 1  # halves may be rounded either way
    else:
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_a_mean_which_onnxruntime_does_not_compute() -> None:
    x = torch.randint(0, 256, (2, 3, 5), dtype=torch.uint8)
    held = {"s": scale(), "z": zero(), "t": scale(0.01), "y0": zero(100)}
    attributes = {"axes": [1, -1], "keepdims": 0}
    node = helper.make_node("QLinearReduceMean", ["x", *held], ["y"], "n", domain="com.microsoft", **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", 2, x.shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    program = source_of(helper.make_model(graph, opset_imports=imports, ir_version=8)).program
    mean = (x.double() - 120).mean((1, 2)) * float(held["s"])
    expected = (mean / float(held["t"])).round().add(100).clamp(0, 255).to(torch.uint8)
    assert torch.equal(Interpreter(program).run("forward", [x]), expected)


@pytest.mark.parametrize("last", [0, 1])
def test_group_norm_which_onnxruntime_has_on_gpus_alone(last: int) -> None:
    x, weight, bias = torch.randn(2, 8, 4, 5), torch.randn(8), torch.randn(8)
    node = helper.make_node("GroupNorm", ["x", "w", "b"], ["y"], "n", domain="com.microsoft", groups=2, activation=1)
    node.attribute.append(helper.make_attribute("channels_last", last))
    given = x.permute(0, 2, 3, 1).contiguous() if last else x
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", 1, given.shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(item.numpy(), name) for item, name in ((weight, "w"), (bias, "b"))],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    program = source_of(helper.make_model(graph, opset_imports=imports, ir_version=8)).program
    expected = torch.nn.functional.silu(torch.nn.functional.group_norm(x, 2, weight, bias))
    found = Interpreter(program).run("forward", [given])
    torch.testing.assert_close(found.permute(0, 3, 1, 2) if last else found, expected)


def test_the_largest_mask_of_16_bits_stays_finite() -> None:
    """65535 steps of it round to more than there is; times the zeros of a mask that were NaN, onnxruntime has 0."""
    steps = torch.tensor([torch.finfo(torch.float32).max / 65535])
    assert (65535 * steps).isinf()
    held = {"most": torch.tensor(-torch.finfo(torch.float32).max), "s": steps[0], "z": torch.tensor(65535)}
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["most", "s", "z"], ["q"], domain="com.microsoft"),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], domain="com.microsoft"),
            helper.make_node("Mul", ["x", "d"], ["y"]),
        ],
        "mask",
        [helper.make_tensor_value_info("x", 1, [2, 3])],
        [helper.make_empty_tensor_value_info("y")],
        [
            numpy_helper.from_array(item.numpy().astype("uint16" if name == "z" else "float32"), name)
            for name, item in held.items()
        ],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    program = source_of(helper.make_model(graph, opset_imports=imports, ir_version=8)).program
    x = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.5]])
    assert torch.equal(Interpreter(program).run("forward", [x]), x * -torch.finfo(torch.float32).max)


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("turned", ["transBatchA", "transBatchB"])
@pytest.mark.parametrize("transposed", [0, 1])
def test_products_of_factors_whose_rows_come_before_the_batches(rank: int, turned: str, transposed: int) -> None:
    """As onnxruntime's optimiser writes attention of tokens x items x heads; orders were compared with its own."""
    generator = torch.Generator().manual_seed(rank)
    batches = (2, 5)[: rank - 2]
    factors = [torch.randn(*batches, *sizes, generator=generator) for sizes in ((3, 7), (7, 11))]
    place = turned.endswith("B")
    given = list(factors)
    x = factors[place].mT if transposed else factors[place]
    given[place] = x.movedim(-2, 0).contiguous()
    attributes = {turned: 1, f"trans{turned[-1]}": transposed, "alpha": 0.5}
    node = helper.make_node("FusedMatMul", ["a", "b"], ["y"], domain="com.microsoft", **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(name, 1, x.shape) for name, x in zip("ab", given, strict=True)],
        [helper.make_empty_tensor_value_info("y")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    program = source_of(helper.make_model(graph, opset_imports=imports, ir_version=8)).program
    torch.testing.assert_close(Interpreter(program).run("forward", given), factors[0] @ factors[1] / 2)
