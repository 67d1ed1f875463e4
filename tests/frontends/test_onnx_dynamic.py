"""Layers whose inputs are rounded in each call, as onnxruntime's ``quantize_dynamic`` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor
from torch.nn import functional

from mobopt.frontends.open_source import source_of
from mobopt.ir import Program
from mobopt.ops.quantized import DEQUANTIZE
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

node = helper.make_node
ROUNDED = node("DynamicQuantizeLinear", ["x"], ["q", "step", "zero"])


def layer(operator: str, held: dict[str, Tensor], bias_first: bool = False, **attributes: Any) -> list[Any]:
    """The nodes of a layer with a bias, if one is held."""
    inputs = ["q", "w", "zero", "wz"] if "wz" in held else ["q", "w", "zero"]
    sums = ["bias", "scaled"] if bias_first else ["scaled", "bias"]
    return [
        ROUNDED,
        node(operator, inputs, ["sums"], **attributes),
        node("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT),
        node("Mul", ["step", "ws"], ["scales"]),
        node("Mul", ["floats", "scales"], ["scaled"]),
        *([node("Add", sums, ["y"])] if "bias" in held else [node("Identity", ["scaled"], ["y"])]),
    ]


def program_of(nodes: Sequence[Any], held: dict[str, Tensor], sizes: Sequence[int | str], *outputs: str) -> Program:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(item.numpy(), name) for name, item in held.items()],
    )
    return source_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)).program


def in_steps(x: Tensor) -> Tensor:
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    step = (high - low) / 255
    zero = (-low / step).round().clamp(0, 255)
    return (((x / step).round() + zero).clamp(0, 255) - zero) * step


def operators(program: Program) -> list[str]:
    return [item.qualified_op for item in program.methods["forward"].walk()]


def assert_runs(program: Program, device: Device, x: Tensor, expected: Tensor) -> None:
    runtime = VulkanProgram(program, device)
    for found in (Interpreter(program).run("forward", [x]), runtime.run("forward", [x])):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    runtime.close()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def integers(*sizes: int, dtype: torch.dtype = torch.int8) -> Tensor:
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max + 1, sizes, dtype=dtype, generator=seeded(1))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bias", [None, "after", "before"])
def test_products(dtype: torch.dtype, per_channel: bool, bias: str | None, device: Device) -> None:
    """Weights stay integers, and are a linear layer's: 26 dispatches of a layer became 9."""
    weight, count = integers(53, 31, dtype=dtype), 31 if per_channel else 1
    point = integers(count, dtype=dtype) if per_channel else integers(1, dtype=dtype)[0]
    held = {"w": weight, "wz": point, "ws": torch.rand(count, generator=seeded()) / 50}
    held |= {"bias": torch.randn(31, generator=seeded(2))} if bias else {}
    program = program_of(layer("MatMulInteger", held, bias == "before"), held, ["n", "t", 53], "y")
    found = operators(program)
    assert found.count("aten::linear") == found.count(DEQUANTIZE) == 1
    assert "aten::matmul" not in found
    assert ("aten::add" in str(found[found.index("aten::linear") :])) is False
    floats = (weight.float() - point.float()) * held["ws"]
    for sizes in ((2, 7, 53), (1, 1, 53)):
        x = torch.randn(sizes, generator=seeded(3))
        expected = in_steps(x) @ floats + held.get("bias", torch.zeros(1))
        assert_runs(program, device, x, expected)


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("per_channel", [False, True])
def test_convolutions(spatial: int, per_channel: bool, device: Device) -> None:
    """The bias has the form of a channel's, ahead of the spatial dimensions."""
    count, ones = 13, [1] * spatial
    weight = integers(count, 37, *[3] * spatial)
    scales = torch.rand(count, *ones, generator=seeded()) / 50 if per_channel else torch.tensor(0.01)
    held = {"w": weight, "ws": scales, "bias": torch.randn(1, count, *ones, generator=seeded(2))}
    nodes = layer("ConvInteger", held, pads=[1] * 2 * spatial)
    program = program_of(nodes, held, ["n", 37, *"abc"[:spatial]], "y")
    found = operators(program)
    assert found.count(f"aten::conv{spatial}d") == found.count(DEQUANTIZE) == 1
    assert "aten::add" not in str(found[found.index(f"aten::conv{spatial}d") :])
    x = torch.randn(2, 37, *[7] * spatial, generator=seeded(3))
    convolution = (functional.conv1d, functional.conv2d, functional.conv3d)[spatial - 1]
    floats = weight.float() * scales.reshape(-1, 1, *ones) if per_channel else weight.float() * 0.01
    assert_runs(program, device, x, convolution(in_steps(x), floats, padding=1) + held["bias"])


def test_small_weights_are_floats_with_their_scale() -> None:
    weight, scale = integers(5, 3), torch.tensor([0.5])
    held = {"w": weight, "ws": scale}
    program = program_of(layer("MatMulInteger", held), held, ["n", 5], "y")
    x = torch.randn(7, 5, generator=seeded())
    found = Interpreter(program).run("forward", [x])
    torch.testing.assert_close(found, in_steps(x) @ (weight.float() * scale))


def test_sums_that_are_read_as_integers_stay_exact() -> None:
    """They pass 2**24, up to which float32 has all integers."""
    weight = torch.full((4001, 3), 127, dtype=torch.int8)
    weight[::2, 1] = -128
    held = {"w": weight, "ws": torch.tensor(0.25)}
    program = program_of(layer("MatMulInteger", held), held, ["n", 4001], "sums", "y")
    x = torch.rand(2, 4001, generator=seeded())
    sums, y = Interpreter(program).run("forward", [x])
    step = x.amax() / 255
    exact = (x / step).round().long() @ weight.long()
    assert exact.abs().max() > 1 << 24
    assert torch.equal(sums.long(), exact)
    torch.testing.assert_close(y, exact.float() * step * 0.25, rtol=1e-6, atol=1e-2)


def test_scales_of_something_else_stay_outside() -> None:
    """The factor is another tensor's step."""
    held = {"w": integers(53, 31), "ws": torch.tensor(0.25)}
    nodes = layer("MatMulInteger", held)
    nodes[3] = node("Mul", ["other", "ws"], ["scales"])
    nodes.insert(0, node("DynamicQuantizeLinear", ["double"], ["unread", "other", "unread_zero"]))
    nodes.insert(0, node("Add", ["x", "x"], ["double"]))
    program = program_of(nodes, held, ["n", 53], "y")
    x = torch.randn(7, 53, generator=seeded())
    found = Interpreter(program).run("forward", [x])
    torch.testing.assert_close(found, in_steps(x) @ held["w"].float() * 0.5, rtol=1e-5, atol=1e-3)


def test_a_bias_of_another_form_is_added() -> None:
    """One of rows, and one that gives the result a dimension more."""
    held = {"w": integers(53, 31), "ws": torch.tensor(0.25)}
    for bias in (torch.randn(7, 1, generator=seeded()), torch.randn(1, 1, 31, generator=seeded())):
        with_bias = held | {"bias": bias}
        program = program_of(layer("MatMulInteger", with_bias), with_bias, ["n", 53], "y")
        x = torch.randn(7, 53, generator=seeded())
        expected = in_steps(x) @ (held["w"].float() / 4) + bias
        torch.testing.assert_close(Interpreter(program).run("forward", [x]), expected, rtol=1e-5, atol=1e-3)


def test_a_bias_after_a_weight_of_4_bits() -> None:
    """It is the layer's; numbers are those of the layer without one, and the bias."""
    rows, columns = 37, 64
    held = {
        "w": torch.randint(0, 256, (rows, 2, 16), dtype=torch.uint8, generator=seeded()),
        "s": torch.rand(rows * 2, generator=seeded(1)) / 10,
        "bias": torch.randn(rows, generator=seeded(2)),
    }
    product = node(
        "MatMulNBits", ["x", "w", "s"], ["p"], domain="com.microsoft", K=columns, N=rows, bits=4, block_size=32
    )
    graph = helper.make_graph(
        [product, node("Add", ["p", "bias"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", columns])],
        [helper.make_empty_tensor_value_info(name) for name in "yp"],
        [numpy_helper.from_array(item.numpy(), name) for name, item in held.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    program = source_of(helper.make_model(graph, opset_imports=imports, ir_version=8)).program
    assert operators(program).count("aten::linear") == 2
    assert not any(name.startswith("aten::add") for name in operators(program))
    y, p = Interpreter(program).run("forward", [torch.randn(7, columns, generator=seeded(3))])
    torch.testing.assert_close(y, p + held["bias"])
