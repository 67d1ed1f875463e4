"""Roundings of quantised models: how they are found, what epilogues make of several, and what the device computes."""

from __future__ import annotations

import itertools
import textwrap
from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import run_graph
from products import family  # noqa: F401
from torch import Tensor
from torch.nn import functional

from mobopt.ir import Graph, parse_graph, print_graph, verify_graph
from mobopt.ops.fake_quantize import fake_quantized, rounded_gate
from mobopt.runtimes.vulkan.compile.fake_quantize import drop_repeated, find_fake_quantize
from mobopt.runtimes.vulkan.compile.fusion import fold_epilogues
from mobopt.runtimes.vulkan.compile.views_after_steps import move_views_after_steps
from mobopt.runtimes.vulkan.kernels.activation import IDENTITY, Activation, activation_of, clamp
from mobopt.runtimes.vulkan.kernels.epilogue import folded_epilogue, parts_of
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.shaders.enumerations import Opcode

load_lowerings()

F = "Float(2, 6, 5, 7)"
SIZES = (2, 6, 5, 7)


def graph_of(body: str, returned: str = "%y", constants: dict[str, Tensor] | None = None) -> Graph:
    """A graph of nodes ``%name = op(...)`` that make tensors of one size."""
    lines = []
    for line in textwrap.dedent(body).strip().splitlines():
        name, _, node = line.partition(" = ")
        lines.append(f"  {name} : {F} = {node}")
    given = constants or {}
    known = [
        f"  %{name} : Float({', '.join(map(str, value.shape))}) = prim::Constant[value=<Tensor>]()\n"
        for name, value in given.items()
    ]
    head = f"graph(%x : {F}, %z : {F}):\n" + "".join(known)
    return parse_graph(head + "\n".join(lines) + f"\n  return ({returned})\n", given)


def found(graph: Graph) -> list[str]:
    find_fake_quantize(graph)
    verify_graph(graph)
    return [line.strip() for line in print_graph(graph, digests=False).splitlines() if "mobopt::" in line]


FORMS = {
    "as torch's kernels": (
        """
        %a = aten::mul.Scalar(%x, 20.0)
        %b = aten::round(%a)
        %c = aten::clamp(%b, -120, 135)
        %y = aten::mul.Scalar(%c, 0.05)
        """,
        "(%x, 0.05000000074505806, -120, 135, 20.0)",
    ),
    "a zero point": (
        """
        %a = aten::mul.Scalar(%x, 20.0)
        %b = aten::round(%a)
        %c = aten::add.Scalar(%b, 120, 1)
        %d = aten::clamp(%c, 0, 255)
        %e = aten::sub.Scalar(%d, 120, 1)
        %y = aten::mul.Scalar(%e, 0.05)
        """,
        "(%x, 0.05000000074505806, -120, 135, 20.0)",
    ),
    "as ONNX": (
        """
        %a = aten::div.Tensor(%x, %scale)
        %b = aten::round(%a)
        %c = aten::add.Tensor(%b, %point, 1)
        %d = aten::clamp(%c, 0, 255)
        %e = aten::sub.Tensor(%d, %point, 1)
        %y = aten::mul.Tensor(%e, %scale)
        """,
        "(%x, 0.05000000074505806, -120, 135, None)",
    ),
    "a power of two": (
        """
        %a = aten::div.Tensor(%x, %eighth)
        %b = aten::round(%a)
        %c = aten::clamp(%b, -8, 7)
        %y = aten::mul.Tensor(%c, %eighth)
        """,
        "(%x, 0.125, -8, 7, 8.0)",
    ),
    "two bounds": (
        """
        %a = aten::mul.Scalar(%x, 4.0)
        %b = aten::round(%a)
        %c = aten::clamp(%b, -128, 127)
        %d = aten::relu(%c)
        %e = aten::clamp(%d, None, 60)
        %y = aten::mul.Scalar(%e, 0.25)
        """,
        "(%x, 0.25, 0, 60, 4.0)",
    ),
    "bounds apart": (
        """
        %a = aten::mul.Scalar(%x, 4.0)
        %b = aten::round(%a)
        %c = aten::clamp(%b, -128, -7)
        %d = aten::clamp(%c, -5, 3)
        %y = aten::mul.Scalar(%d, 0.25)
        """,
        "(%x, 0.25, -5, -5, 4.0)",
    ),
}
CONSTANTS = {"scale": torch.tensor(0.05), "point": torch.tensor(120.0), "eighth": torch.tensor(0.125)}


@pytest.mark.parametrize("body, expected", FORMS.values(), ids=FORMS)
def test_forms(device: Any, body: str, expected: str) -> None:
    graph = graph_of(body, constants=CONSTANTS)
    value = 4 * torch.randn(SIZES, generator=torch.Generator().manual_seed(0))
    before = run_graph(device, graph_of(body, constants=CONSTANTS), [value, value])[0]
    assert found(graph) == [f"%y : {F} = mobopt::fake_quantize{expected}"]
    assert torch.equal(run_graph(device, graph, [value, value])[0], before)


OTHERS = {
    "the zero point stays": ("sub.Scalar(%d, 120, 1)", "sub.Scalar(%d, 119, 1)"),
    "bounds between integers": ("clamp(%c, 0, 255)", "clamp(%c, 0.5, 255)"),
    "no upper bound": ("clamp(%c, 0, 255)", "clamp(%c, 0, None)"),
    "not rounded": ("aten::round(%a)", "aten::ceil(%a)"),
    "a negative scale": ("mul.Scalar(%e, 0.05)", "mul.Scalar(%e, -0.05)"),
    "a sum with a multiple": ("add.Scalar(%b, 120, 1)", "add.Scalar(%b, 60, 2)"),
    "another tensor": ("sub.Scalar(%d, 120, 1)", "sub.Tensor(%d, %z, 1)"),
    "divided by another scale": ("mul.Scalar(%x, 20.0)", "div.Scalar(%x, 0.06)"),
}


@pytest.mark.parametrize("old, new", OTHERS.values(), ids=OTHERS)
def test_what_is_something_else(old: str, new: str) -> None:
    body = FORMS["a zero point"][0]
    assert old in body
    graph = graph_of(body.replace(old, new))
    text = print_graph(graph)
    assert found(graph) == [] and print_graph(graph) == text


@pytest.mark.parametrize("inner", ["%a", "%b", "%d", "%e"])
def test_what_is_read_between_stays(inner: str) -> None:
    assert found(graph_of(FORMS["a zero point"][0], f"%y, {inner}")) == []


def rounding(scale: float, low: int, high: int, divides: bool = False) -> Activation:
    number = float(torch.tensor(scale))
    inverse = float(torch.tensor(1 / number))
    return Activation(Opcode.MOVE, number, -inverse if divides else inverse, (low, high))


_FUNCTIONS = {
    Opcode.RELU: torch.relu,
    Opcode.SILU: functional.silu,
    Opcode.HARDSWISH: functional.hardswish,
    Opcode.SIGMOID: torch.sigmoid,
}


def applied(activation: Activation, x: Tensor) -> Tensor:
    if activation.opcode == Opcode.CLAMP:
        return x.clamp(activation.first, activation.second)
    if activation.opcode == Opcode.PRELU:
        return functional.leaky_relu(x, activation.first)
    if activation.opcode in _FUNCTIONS:
        x = _FUNCTIONS[activation.opcode](x)
    if activation.bounds is not None:
        x = fake_quantized(
            x, activation.first, *activation.bounds, activation.second if activation.second > 0 else None
        )
    return x


ACTIVATIONS = [
    IDENTITY,
    clamp(0.0, None),
    clamp(0.0, 6.0),
    clamp(-1.5, 0.75),
    clamp(None, -0.25),
    clamp(2.0, 1.0),
    clamp(float("nan"), 1.0),
    clamp(float("inf"), None),
    Activation(Opcode.SILU),
    Activation(Opcode.PRELU, 0.1),
    rounding(0.25, -128, 127),
    rounding(0.25, 0, 24),
    rounding(0.25, -3, -3),
    rounding(0.047, -100, 155),
    rounding(0.047, -100, 155, divides=True),
    rounding(0.047, -20, 40, divides=True),
    Activation(Opcode.SILU, 0.25, 4.0, (-128, 127)),
]


PAIRS = [pair for pair in itertools.product(ACTIVATIONS, repeat=2) if pair[0].followed_by(pair[1]) is not None]


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_an_activation_after_another(number: int) -> None:
    one, other = PAIRS[number]
    whole = one.followed_by(other)
    assert whole is not None
    x = torch.cat([torch.linspace(-9, 9, 2881), torch.tensor([0.0235, 0.0705, -0.0235, 1e9, -1e9, 3e38])])
    torch.testing.assert_close(applied(whole, x), applied(other, applied(one, x)), rtol=0, atol=0, equal_nan=True)


def test_which_activations_are_one() -> None:
    step = rounding(0.25, -128, 127)
    assert clamp(0.0, 6.0).followed_by(step) == rounding(0.25, 0, 24)
    assert step.followed_by(clamp(0.0, 6.0)) == rounding(0.25, 0, 24)
    assert step.followed_by(clamp(0.0, 6.1)) is None
    assert step.followed_by(clamp(-99.0, 99.0)) == step
    assert step.followed_by(rounding(0.25, -7, 200)) == rounding(0.25, -7, 127)
    assert step.followed_by(rounding(0.26, -7, 200)) is None
    assert Activation(Opcode.SILU).followed_by(step) == Activation(Opcode.SILU, 0.25, 4.0, (-128, 127))
    assert Activation(Opcode.PRELU, 0.1).followed_by(step) is None
    assert step.followed_by(Activation(Opcode.SILU)) is None
    assert clamp(None, -1.0).followed_by(rounding(0.25, 0, 9)) is None, "zero alone has no code"


@pytest.mark.parametrize("bounds", [(-2047, 2047), (-1, 1), (0, 255), (-128, -1)])
def test_codes(bounds: tuple[int, int]) -> None:
    code = Activation(Opcode.SILU, 0.5, 2.0, bounds).code
    assert -(1 << 31) <= code < 1 << 31
    assert code & 255 == Opcode.SILU and code >> 20 == bounds[1]
    assert (code >> 8 & 0xFFF ^ 0x800) - 0x800 == bounds[0]


def test_bounds_beyond_a_code_stay_steps() -> None:
    graph = graph_of("%y = mobopt::fake_quantize(%x, 0.5, -32768, 32767, 2.0)")
    assert activation_of(graph.block.nodes[0]) is None


CHAINS = {
    "relu": ["aten::relu(#)", "mobopt::fake_quantize(#, 1.7, -3, 40, None)"],
    "divided": ["mobopt::fake_quantize(#, 3.0, -100, 155, None)"],
    "multiplied": ["mobopt::fake_quantize(#, 2.0, -100, 155, 0.5)"],
    "negative alone": ["mobopt::fake_quantize(#, 2.0, -128, -1, 0.5)"],
    "then relu6": ["mobopt::fake_quantize(#, 0.5, -128, 127, 2.0)", "aten::hardtanh(#, 0.0, 6.0)"],
    "and a sum": [
        "mobopt::fake_quantize(#, 2.0, -100, 155, 0.5)",
        "aten::add.Tensor(#, %z, 1)",
        "mobopt::fake_quantize(#, 4.0, -20, 30, None)",
    ],
    "a sum that is limited": [
        "mobopt::fake_quantize(#, 2.0, -100, 155, 0.5)",
        "aten::add.Tensor(#, %z, 1)",
        "aten::relu(#)",
        "mobopt::fake_quantize(#, 4.0, -20, 30, 0.25)",
    ],
    "a function between": [
        "mobopt::fake_quantize(#, 2.0, -100, 155, 0.5)",
        "aten::hardswish(#)",
        "mobopt::fake_quantize(#, 3.0, -20, 30, None)",
    ],
    "a rounded gate": [
        "mobopt::fake_quantize(#, 0.5, -128, 127, 2.0)",
        'mobopt::rounded_gate(#, "sigmoid", 0.00390625, 0, 255, 256.0)',
        "mobopt::fake_quantize(#, 0.3, -10, 120, None)",
    ],
    "another, which is limited": [
        "mobopt::fake_quantize(#, 0.25, -128, 127, 4.0)",
        'mobopt::rounded_gate(#, "hardsigmoid", 0.003, 0, 255, None)',
        "mobopt::fake_quantize(#, 0.25, -2, 120, 4.0)",
        "aten::relu(#)",
    ],
    "a gate alone": ['mobopt::rounded_gate(#, "sigmoid", 0.003, 0, 255, None)'],
}
LAYERS = {
    "plain": ((6, 6, 3, 3), 1),
    "of single pixels": ((6, 6, 1, 1), 1),
    "grouped": ((6, 2, 3, 3), 3),
    "depthwise": ((6, 1, 3, 3), 6),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("chain", CHAINS)
def test_epilogues(device: Any, family: str, chain: str, layer: str) -> None:  # noqa: F811
    """Of whole numbers, whose sums are exact, to the last bit: also halfway between steps."""
    sizes, groups = LAYERS[layer]
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-3, 4, sizes, generator=generator).float()
    x, z = (torch.randint(-5, 6, SIZES, generator=generator).float() for _ in range(2))
    pad = sizes[-1] // 2
    steps = [f"%s0 = aten::conv2d(%x, %w, None, [1, 1], [{pad}, {pad}], [1, 1], {groups})"]
    steps += [f"%s{i + 1} = {step.replace('#', f'%s{i}')}" for i, step in enumerate(CHAINS[chain])]
    graph = graph_of("\n".join(steps), f"%s{len(CHAINS[chain])}", {"w": weight})
    expected = functional.conv2d(x, weight, None, 1, pad, 1, groups)
    for node in list(graph.block.nodes)[1:]:
        others = [z] if node.op == "aten::add" else []
        expected = expected + z if others else applied_by_name(node, expected)
    fold_epilogues(graph)
    (node,) = graph.block.nodes
    assert folded_epilogue(parts_of(node)) is not None
    assert torch.equal(run_graph(device, graph, [x, z])[0], expected)


def applied_by_name(node: Any, x: Tensor) -> Tensor:
    if node.op == "mobopt::fake_quantize":
        return fake_quantized(x, *node.args[1:])
    if node.op == "mobopt::rounded_gate":
        return rounded_gate(x, *node.args[1:])
    function = {"aten::relu": torch.relu, "aten::hardswish": functional.hardswish, "aten::hardtanh": functional.relu6}
    return function[node.op](x)


@pytest.mark.parametrize("inverse", ["0.5", "None"])
def test_numbers_at_the_edges(device: Any, inverse: str) -> None:
    weight = torch.ones(6, 1, 1, 1)
    infinity = float("inf")
    numbers = [float("nan"), infinity, -infinity, 3.4e38, -3.4e38, 1e-45, -1e-45, 0.0, 1.0, -1.0, 2.0**23 + 1, 5.0]
    x = torch.tensor(numbers).repeat(35).reshape(SIZES)
    steps = f"""
        %c = aten::conv2d(%x, %w, None, [1, 1], [0, 0], [1, 1], 6)
        %y = mobopt::fake_quantize(%c, 2.0, -100, 155, {inverse})
    """
    graph = graph_of(steps, constants={"w": weight})
    fold_epilogues(graph)
    expected = fake_quantized(x, 2.0, -100, 155, None if inverse == "None" else 0.5)
    torch.testing.assert_close(run_graph(device, graph, [x, x])[0], expected, rtol=0, atol=0, equal_nan=True)


STEPS = "mobopt::fake_quantize(#, 0.05, -120, 135, None)"


def moved(*steps: str, sizes: str = "2, 6, 5, 7") -> Graph:
    """A graph that rounds, and then does steps one after the other, each with the sizes that it gives."""
    lines = [f"  %s0 : {F} = {STEPS.replace('#', '%x')}"]
    for number, step in enumerate(steps):
        op, _, given = step.partition(" -> ")
        lines.append(f"  %s{number + 1} : Float({given or sizes}) = {op.replace('#', f'%s{number}')}")
    body = "\n".join(lines)
    return parse_graph(f"graph(%x : {F}, %z : {F}):\n{body}\n  return (%s{len(steps)})\n", {})


RESHAPED, PERMUTED = "aten::reshape(#, [12, 35]) -> 12, 35", "aten::permute(#, [0, 2, 3, 1]) -> 2, 5, 7, 6"
REPEATED = {
    "at once": ([STEPS], 1),
    "reshaped": ([RESHAPED, STEPS + " -> 12, 35"], 1),
    "twice": ([PERMUTED, STEPS + " -> 2, 5, 7, 6", "aten::reshape(#, [70, 6]) -> 70, 6", STEPS + " -> 70, 6"], 1),
    "a part": (["aten::slice.Tensor(#, 1, 1, 4, 1) -> 2, 3, 5, 7", STEPS + " -> 2, 3, 5, 7"], 1),
    "wider bounds": (["mobopt::fake_quantize(#, 0.05, -128, 200, None)"], 1),
    "limited": (["aten::relu(#)", "mobopt::fake_quantize(#, 0.05, 0, 135, None)"], 1),
    "narrower bounds": (["mobopt::fake_quantize(#, 0.05, -100, 135, None)"], 2),
    "without zero": (["aten::relu(#)", "mobopt::fake_quantize(#, 0.05, 3, 135, None)"], 2),
    "another scale": (["mobopt::fake_quantize(#, 0.06, -120, 135, None)"], 2),
    "computed with": (["aten::sigmoid(#)", STEPS], 2),
    "joined with others": (["aten::cat([#, %z], 1) -> 2, 12, 5, 7", STEPS + " -> 2, 12, 5, 7"], 2),
}


@pytest.mark.parametrize("steps, left", REPEATED.values(), ids=REPEATED)
def test_what_was_rounded_to_the_same_steps_is_not_again(device: Any, steps: list[str], left: int) -> None:
    x, z = (8 * torch.randn(SIZES, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    before = run_graph(device, moved(*steps), [x, z])[0]
    graph = moved(*steps)
    drop_repeated(graph)
    verify_graph(graph)
    assert sum(node.op == "mobopt::fake_quantize" for node in graph.block.nodes) == left
    assert torch.equal(run_graph(device, graph, [x, z])[0], before)


def test_halves_between_are_other_numbers() -> None:
    """Roundings to float16 give no multiples of the scale."""
    graph = moved("aten::to.dtype(#, 5, False, False, None)", STEPS)
    node = graph.block.nodes[1]
    node.output.type = replace(node.output.tensor_type, dtype=torch.float16)
    drop_repeated(graph)
    assert sum(node.op == "mobopt::fake_quantize" for node in graph.block.nodes) == 2


VIEWS = {
    "a function": ([RESHAPED, 'aten::gelu(#, "none") -> 12, 35'], ["fake_quantize", "gelu", "reshape"]),
    "several": (
        [PERMUTED, "aten::reshape(#, [70, 6]) -> 70, 6", "aten::mul.Scalar(#, 0.3) -> 70, 6", STEPS + " -> 70, 6"],
        ["fake_quantize", "mul", "fake_quantize", "permute", "reshape"],
    ),
    "divided": ([RESHAPED, "aten::div.Scalar(#, 3) -> 12, 35"], ["fake_quantize", "div", "reshape"]),
    "a part": (
        ["aten::slice.Tensor(#, 1, 1, 4, 1) -> 2, 3, 5, 7", "aten::relu(#) -> 2, 3, 5, 7"],
        ["fake_quantize", "slice", "relu"],
    ),
    "a sum with a number": ([PERMUTED, "aten::add.Scalar(#, 1, 1) -> 2, 5, 7, 6"], ["fake_quantize", "permute", "add"]),
    "a sum": (
        ["aten::reshape(#, [2, 6, 5, 7])", "aten::add.Tensor(%z, #, 1)", STEPS],
        ["fake_quantize", "reshape", "add", "fake_quantize", "reshape"],
    ),
    "a sum of views": (
        [RESHAPED, "aten::reshape(#, [2, 6, 5, 7])", "aten::add.Tensor(#, %z, 1)"],
        ["fake_quantize", "reshape", "reshape", "add"],
    ),
    "a sum in another order": (
        ["aten::transpose.int(#, 2, 3) -> 2, 6, 7, 5", "aten::transpose.int(#, 2, 3)", "aten::add.Tensor(#, %z, 1)"],
        ["fake_quantize", "transpose", "transpose", "add"],
    ),
}


@pytest.mark.parametrize("steps, order", VIEWS.values(), ids=VIEWS)
def test_views_come_after_what_is_computed(device: Any, steps: list[str], order: list[str]) -> None:
    x = 8 * torch.randn(SIZES, generator=torch.Generator().manual_seed(0))
    before = run_graph(device, moved(*steps), [x, x])[0]
    graph = moved(*steps)
    move_views_after_steps(graph)
    verify_graph(graph)
    assert [node.op.partition("::")[2] for node in graph.block.nodes] == order
    assert torch.equal(run_graph(device, graph, [x, x])[0], before)


def test_two_views_of_what_was_rounded_are_added(device: Any) -> None:
    """One of them is exchanged, once."""
    lines = [
        f"  %a : {F} = mobopt::fake_quantize(%x, 0.05, -120, 135, None)",
        f"  %b : {F} = mobopt::fake_quantize(%z, 0.05, -120, 135, None)",
        "  %c : Float(12, 35) = aten::reshape(%a, [12, 35])",
        "  %d : Float(12, 35) = aten::reshape(%b, [12, 35])",
        "  %y : Float(12, 35) = aten::add.Tensor(%c, %d, 1)",
    ]
    text = f"graph(%x : {F}, %z : {F}):\n" + "\n".join(lines) + "\n  return (%y)\n"
    x, z = (8 * torch.randn(SIZES, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    before = run_graph(device, parse_graph(text, {}), [x, z])[0]
    graph = parse_graph(text, {})
    move_views_after_steps(graph)
    verify_graph(graph)
    assert [node.op.partition("::")[2] for node in graph.block.nodes][-2:] == ["add", "reshape"]
    assert torch.equal(run_graph(device, graph, [x, z])[0], before)


def test_views_that_others_read_stay() -> None:
    graph = moved(RESHAPED, "aten::relu(#) -> 12, 35")
    graph.block.returns.set_inputs([*graph.outputs, graph.block.nodes[1].output])
    text = print_graph(graph)
    move_views_after_steps(graph)
    assert print_graph(graph) == text


def test_views_of_models_that_round_nothing_stay() -> None:
    graph = parse_graph(
        f"graph(%x : {F}):\n  %v : Float(12, 35) = aten::reshape(%x, [12, 35])\n"
        "  %y : Float(12, 35) = aten::relu(%v)\n  return (%y)\n",
        {},
    )
    text = print_graph(graph)
    move_views_after_steps(graph)
    assert print_graph(graph) == text


ROWS = {
    "rounded": ["mobopt::fake_quantize(#, 2.0, -100, 155, 0.5)", "aten::add.Tensor(#, %b, 1)"],
    "then again": [
        *("mobopt::fake_quantize(#, 2.0, -100, 155, 0.5)", "aten::add.Tensor(%b, #, 1)"),
        *("aten::relu(#)", "mobopt::fake_quantize(#, 4.0, -20, 30, None)"),
    ],
    "plain": ["aten::add.Tensor(#, %b, 1)", "aten::relu(#)"],
}
PRODUCTS = {
    "linear": ("aten::linear(%x, %w, None)", (13, 30, 19)),
    "a few rows": ("aten::linear(%x, %w, None)", (2, 30, 19)),
    "mm": ("aten::mm(%x, %t)", (13, 30, 19)),
    "whole vec4s": ("aten::linear(%x, %w, None)", (35, 64, 32)),
}


def graph_of_product(product: str, steps: list[str], sizes: tuple[int, int, int], row: Tensor) -> Graph:
    (rows, inner, columns), generator = sizes, torch.Generator().manual_seed(2)
    weight = torch.randint(-3, 4, (columns, inner), generator=generator).float()
    made = f"Float({rows}, {columns})"
    known = {"w": weight, "t": weight.t().contiguous(), "b": row}
    lines = [
        f"  %{name} : Float({', '.join(map(str, value.shape))}) = prim::Constant[value=<Tensor>]()"
        for name, value in known.items()
    ]
    lines.append(f"  %s0 : {made} = {product}")
    lines += [f"  %s{i + 1} : {made} = {step.replace('#', f'%s{i}')}" for i, step in enumerate(steps)]
    body = "\n".join(lines)
    return parse_graph(f"graph(%x : Float({rows}, {inner})):\n{body}\n  return (%s{len(steps)})\n", known)


def check_rows(device: Any, product: str, sizes: tuple[int, int, int], chain: str) -> None:
    (rows, inner, columns), generator = sizes, torch.Generator().manual_seed(3)
    row = torch.randint(-9, 10, (columns,), generator=generator).float()
    x = torch.randint(-5, 6, (rows, inner), generator=generator).float()
    graph = graph_of_product(product, ROWS[chain], sizes, row)
    expected = x @ graph.block.nodes[0].inputs[1].elements.reshape(-1, inner).t() if "linear" in product else None
    if expected is None:
        expected = x @ graph.block.nodes[0].inputs[1].elements
    for node in list(graph.block.nodes)[1:]:
        expected = expected + row if node.op == "aten::add" else applied_by_name(node, expected)
    fold_epilogues(graph)
    (node,) = graph.block.nodes
    assert folded_epilogue(parts_of(node)) is not None
    assert torch.equal(run_graph(device, graph, [x])[0], expected)


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("chain", ROWS)
def test_rows_that_are_added(device: Any, family: str, chain: str, name: str) -> None:  # noqa: F811
    """Of whole numbers, to the last bit: a bias after a rounding, as static quantisation of ONNX has it."""
    check_rows(device, *PRODUCTS[name], chain)


@pytest.mark.parametrize("sizes", [(67, 61, 37), (197, 64, 32), (3, 61, 37)], ids=str)
@pytest.mark.parametrize("chain", ROWS)
def test_rows_that_are_added_by_matrix_units(
    units: Any, monkeypatch: pytest.MonkeyPatch, chain: str, sizes: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(units, "info", replace(units.info, kind="discrete"))
    check_rows(units, "aten::linear(%x, %w, None)", sizes, chain)


@pytest.mark.parametrize(
    "product, left, right",
    [
        ("aten::linear(%x, %w, None)", (2, 5, 30), (19, 30)),
        ("aten::bmm(%x, %w)", (3, 5, 30), (3, 30, 19)),
        ("aten::matmul(%x, %w)", (2, 3, 7, 12), (2, 3, 12, 8)),
    ],
)
def test_rows_that_are_added_to_batches(device: Any, family: str, product: str, left: Any, right: Any) -> None:  # noqa: F811
    generator = torch.Generator().manual_seed(4)
    x, w = (torch.randint(-5, 6, sizes, generator=generator).float() for sizes in (left, right))
    sums = functional.linear(x, w) if "linear" in product else x @ w
    row = torch.arange(sums.shape[-1]).float() - 4

    def type_of(value: Tensor) -> str:
        return f"Float({', '.join(map(str, value.shape))})"

    known = {"row": row, "w": w} if "linear" in product else {"row": row}
    lines = [f"  %{name} : {type_of(value)} = prim::Constant[value=<Tensor>]()" for name, value in known.items()]
    steps = {"p": product, "c": "aten::clamp(%p, -99, 99)", "y": "aten::add.Tensor(%c, %row, 1)"}
    lines += [f"  %{name} : {type_of(sums)} = {step}" for name, step in steps.items()]
    given = {"x": x} if "linear" in product else {"x": x, "w": w}
    head = ", ".join(f"%{name} : {type_of(value)}" for name, value in given.items())
    graph = parse_graph(f"graph({head}):\n" + "\n".join(lines) + "\n  return (%y)\n", known)
    fold_epilogues(graph)
    assert len(graph.block.nodes) == 1
    assert torch.equal(run_graph(device, graph, list(given.values()))[0], sums.clamp(-99, 99) + row)


def test_rows_of_images_stay_sums() -> None:
    """Convolutions read residuals by pixels."""
    graph = graph_of(
        "%c = aten::conv2d(%x, %w, None, [1, 1], [0, 0], [1, 1], 6)\n%y = aten::add.Tensor(%c, %row, 1)",
        constants={"w": torch.ones(6, 1, 1, 1), "row": torch.ones(7)},
    )
    fold_epilogues(graph)
    assert len(graph.block.nodes) == 2
