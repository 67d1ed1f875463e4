"""Gates and what passes them, as text: layers whose columns take turns, and what becomes one product of few rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from device_infos import known_device, lavapipe

from mobopt.ir import Graph, Node, parse_graph, print_graph, verify_graph
from mobopt.ir.rewriting import dissolve
from mobopt.runtimes.vulkan.compile.fusion import fold_epilogues
from mobopt.runtimes.vulkan.compile.fusion_gates import fold_gates
from mobopt.runtimes.vulkan.compile.fusion_normalization import fold_normalizations
from mobopt.runtimes.vulkan.compile.gates import interleave_gates
from mobopt.runtimes.vulkan.compile.projections import join_projections
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.activation import activation_of
from mobopt.runtimes.vulkan.kernels.epilogue import PRODUCT, folded_epilogue, gate_of, parts_of
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.kernels.product_gating import most_gated_rows
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.shaders.enumerations import Opcode

load_lowerings()

H200 = known_device("nvidia_h200")
TENSORS = {
    "w0": torch.arange(240.0).reshape(20, 12),
    "w1": -torch.arange(240.0).reshape(20, 12),
    "both": torch.arange(480.0).reshape(40, 12),
    "b0": torch.arange(20.0),
    "b1": -torch.arange(20.0),
    "h": torch.ones(20, 12, dtype=torch.float16),
    "odd": torch.ones(36, 12),
    "n": torch.ones(12),
}
IN, OUT, WIDE = "Float(1, 3, 12)", "Float(1, 3, 20)", "Float(1, 3, 40)"
GATE, UP = f"%g : {OUT} = aten::linear(%x, %w0, None)", f"%u : {OUT} = aten::linear(%x, %w1, None)"
SILU, MUL = f"%s : {OUT} = aten::silu(%g)", f"%y : {OUT} = aten::mul.Tensor(%s, %u)"
BOTH = f"%z : {WIDE} = aten::linear(%x, %both, None)"
CHUNK = f"%g : {OUT}, %u : {OUT} = aten::chunk(%z, 2, -1)"


def cut(name: str, start: int | None, end: int | None, step: int = 1, dim: int = 2) -> str:
    return f"%{name} : {OUT} = aten::slice.Tensor(%z, {dim}, {start}, {end}, {step})"


def text_of(lines: Sequence[str], returned: str) -> str:
    constants = "".join(
        f"  %{name} : {'Half' if value.dtype == torch.float16 else 'Float'}{tuple(value.shape)} = "
        "prim::Constant[value=<Tensor>]()\n".replace(",)", ")")
        for name, value in TENSORS.items()
    )
    return (
        f"graph(%x : {IN}, %o : {IN}):\n{constants}"
        + "".join(f"  {line}\n" for line in lines)
        + (f"  return ({returned})\n")
    )


def interleaved(*lines: str, returned: str = "%y") -> Graph:
    graph = parse_graph(text_of(lines, returned), TENSORS)
    interleave_gates(graph, ConstantStore())
    verify_graph(graph)
    return graph


def operators(graph: Graph) -> list[str]:
    return [node.op.removeprefix("aten::") for node in graph.block.nodes if not node.op.startswith("prim::")]


def layer_in(graph: Graph) -> Node:
    (layer,) = [node for node in graph.block.nodes if node.op == "aten::linear"]
    return layer


TURNS = ["linear", "reshape", "select", "select", "silu", "mul", "reshape"]


def in_turns(gate: torch.Tensor, passing: torch.Tensor) -> torch.Tensor:
    rows = [half[first : first + 4] for first in range(0, gate.shape[0], 4) for half in (gate, passing)]
    return torch.cat(rows)


def test_rows_of_layers_take_turns() -> None:
    with_biases = [GATE.replace("None", "%b0"), UP.replace("None", "%b1")]
    graph = interleaved(*with_biases, SILU, MUL)
    assert operators(graph) == TURNS
    layer = layer_in(graph)
    assert layer.output.sizes == (1, 3, 40)
    assert torch.equal(layer["weight"].elements, in_turns(TENSORS["w0"], TENSORS["w1"]))
    assert torch.equal(layer["bias"].elements, in_turns(TENSORS["b0"], TENSORS["b1"]))
    calls = [node for node in graph.block.nodes if node.op.startswith("aten::")]
    assert calls[1].args[1] == [-1, 2, 4] and calls[1].output.sizes == (15, 2, 4)
    assert [node.args[1:] for node in calls[2:4]] == [(1, 0), (1, 1)]
    assert (calls[-1].output.name, calls[-1].output.sizes) == ("y", (1, 3, 20))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("of_second", [False, True])
def test_either_factor_may_have_the_activation(swapped: bool, of_second: bool) -> None:
    step = SILU.replace("%g", "%u") if of_second else SILU
    factors = ["%s", "%g" if of_second else "%u"]
    mul = f"%y : {OUT} = aten::mul.Tensor({', '.join(factors[::-1] if swapped else factors)})"
    graph = interleaved(GATE, UP, step, mul)
    assert operators(graph) == TURNS
    halves = (TENSORS["w1"], TENSORS["w0"]) if of_second else (TENSORS["w0"], TENSORS["w1"])
    assert torch.equal(layer_in(graph)["weight"].elements, in_turns(*halves))


@pytest.mark.parametrize(
    "cuts",
    [
        [CHUNK],
        [f"%g : {OUT}, %u : {OUT} = aten::split.Tensor(%z, 20, 2)"],
        [f"%g : {OUT}, %u : {OUT} = aten::split_with_sizes(%z, [20, 20], -1)"],
        [cut("g", 0, 20), cut("u", 20, 40, dim=-1)],
        [cut("g", None, -20), cut("u", -20, None)],
    ],
)  # fmt: skip
@pytest.mark.parametrize("of_second", [False, True])
def test_a_layer_that_is_cut_in_halves(cuts: list[str], of_second: bool) -> None:
    gate, passing = ("%u", "%g") if of_second else ("%g", "%u")
    lines = [BOTH, *cuts, f'%s : {OUT} = aten::gelu({gate}, "tanh")']
    graph = interleaved(*lines, f"%y : {OUT} = aten::mul.Tensor({passing}, %s)")
    assert operators(graph) == [name.replace("silu", "gelu") for name in TURNS]
    halves = TENSORS["both"].chunk(2)
    expected = in_turns(*(halves[::-1] if of_second else halves))
    assert torch.equal(layer_in(graph)["weight"].elements, expected)
    (gelu,) = [node for node in graph.block.nodes if node.op == "aten::gelu"]
    assert gelu["approximate"] == "tanh"


def test_a_gated_linear_unit() -> None:
    graph = interleaved(BOTH, f"%y : {OUT} = aten::glu(%z, -1)")
    assert operators(graph) == [name.replace("silu", "sigmoid") for name in TURNS]
    first, second = TENSORS["both"].chunk(2)
    assert torch.equal(layer_in(graph)["weight"].elements, in_turns(second, first))


@pytest.mark.parametrize(
    ("lines", "returned"),
    [
        ([GATE, UP.replace("%x", "%o"), SILU, MUL], "%y"),  # of another input
        ([GATE, UP.replace("None", "%b0"), SILU, MUL], "%y"),  # one has a bias
        ([GATE, UP, SILU, MUL], "%y, %u"),  # something else reads what passes, ...
        ([GATE, UP, SILU, MUL], "%y, %g"),  # ... gates, ...
        ([GATE, UP, SILU, MUL], "%y, %s"),  # ... or what they become
        ([GATE, UP, SILU, f"%m : {OUT} = aten::relu(%u)", MUL.replace("%u)", "%m)")], "%y"),  # both have activations
        ([GATE, UP, f"%y : {OUT} = aten::mul.Tensor(%g, %u)"], "%y"),  # none has
        ([GATE, SILU, f"%y : {OUT} = aten::mul.Tensor(%s, %g)"], "%y"),  # of one layer
        ([GATE, SILU, f"%y : {OUT} = aten::mul.Tensor(%s, %s)"], "%y"),
        ([GATE, SILU, f"%y : {OUT} = aten::mul.Scalar(%s, 2)"], "%y"),
        ([GATE, UP, f"%s : {OUT} = aten::softmax.int(%g, -1, None)", MUL], "%y"),
        ([BOTH, CHUNK, SILU, MUL], "%y, %z"),  # something else reads both halves
        ([BOTH, CHUNK, SILU, MUL], "%y, %u"),
        ([BOTH, CHUNK, SILU, MUL, cut("c", 0, 20)], "%y, %c"),
        ([BOTH, cut("g", 0, 20), cut("u", 19, 39), SILU, MUL], "%y"),  # no halves
        ([BOTH, cut("g", 0, 40, 2), cut("u", 1, 40, 2), SILU, MUL], "%y"),
        ([BOTH, "%y : Float(1, 3, 20) = aten::glu(%z, 2)"], "%y, %z"),
        # Another layer of the same input: all three become one.
        ([GATE, UP, SILU, MUL, f"%v : {OUT} = aten::linear(%x, %w0, None)"], "%y, %v"),
    ],
)  # fmt: skip
def test_what_stays(lines: list[str], returned: str) -> None:
    graph = parse_graph(text_of(lines, returned), TENSORS)
    before = print_graph(graph)
    interleave_gates(graph, ConstantStore())
    assert print_graph(graph) == before


def test_what_is_no_whole_number_of_vec4s_stays() -> None:
    half = "Float(1, 3, 18)"
    lines = [
        "%z : Float(1, 3, 36) = aten::linear(%x, %odd, None)",
        f"%g : {half}, %u : {half} = aten::chunk(%z, 2, -1)",
    ]
    lines += [f"%s : {half} = aten::silu(%g)", f"%y : {half} = aten::mul.Tensor(%s, %u)"]
    assert operators(interleaved(*lines)) == ["linear", "chunk", "silu", "mul"]


def test_three_layers_of_one_input_are_joined_as_ever() -> None:
    third = [f"%v : {OUT} = aten::linear(%x, %w0, None)", f"%p : {OUT} = aten::softmax.int(%v, -1, None)"]
    graph = interleaved(GATE, UP, SILU, MUL, *third, returned="%y, %p")
    join_projections(graph, ConstantStore())
    assert operators(graph) == ["linear", "slice", "slice", "slice", "silu", "mul", "softmax"]


def folded(*lines: str, device: DeviceInfo = H200, are_halves: bool = False, apart: str = "") -> Graph:
    """A graph after gates were folded; taken apart, it is what it was before."""
    graph = interleaved(*lines)
    before = print_graph(graph)
    for is_last in (False, True):
        fold_epilogues(graph)
        fold_gates(graph, device, (), are_halves, lambda node: node.op == apart)
        verify_graph(graph)
        if not is_last:
            for node in [node for node in graph.block.nodes if node.blocks]:
                dissolve(node)
            assert print_graph(graph) == before
    return graph


def test_few_rows_are_one_node() -> None:
    graph = folded(GATE, UP, SILU, MUL)
    assert operators(graph) == [PRODUCT]
    (whole,) = [node for node in graph.block.nodes if node.op == PRODUCT]
    assert [node.op.removeprefix("aten::") for node in whole.blocks[0].nodes] == TURNS
    gate = gate_of(parts_of(whole))
    assert gate is not None and gate.opcode == Opcode.SILU
    epilogue = folded_epilogue(parts_of(whole))
    assert epilogue is not None and epilogue.is_gated and epilogue.sizes_of((1, 3, 40)) == (1, 3, 20)
    assert epilogue.followed_by(next(iter(whole.blocks[0].nodes)), whole.output) is None


def test_what_normalises_the_input_is_folded_as_well() -> None:
    norm = f"%a : {IN} = aten::rms_norm(%x, [12], %n, 1e-05)"
    graph = interleaved(norm, *(line.replace("%x", "%a") for line in (GATE, UP)), SILU, MUL)
    fold_gates(graph, H200)
    fold_normalizations(graph, H200)
    verify_graph(graph)
    assert operators(graph) == [PRODUCT]
    (whole,) = [node for node in graph.block.nodes if node.op == PRODUCT]
    assert [node.op.removeprefix("aten::") for node in whole.blocks[0].nodes] == ["rms_norm", *TURNS]
    assert folded_epilogue(parts_of(whole)).is_gated  # type: ignore[union-attr]


def test_what_keeps_its_steps() -> None:
    assert PRODUCT not in operators(folded(GATE, UP, SILU, MUL, device=lavapipe("22.3.6")))
    switched = replace(H200, switches=frozenset({"no-gated-products"}))
    assert PRODUCT not in operators(folded(GATE, UP, SILU, MUL, device=switched))
    assert PRODUCT not in operators(folded(GATE, UP, SILU, MUL, apart="aten::silu"))
    # Three rows of halves are what matrix units take.
    assert PRODUCT not in operators(folded(GATE, UP, SILU, MUL, are_halves=True))


def test_how_many_rows() -> None:
    plain = replace(H200, matrix_shapes=())
    assert most_gated_rows(H200, 2048, 11264, 0, False) == most_gated_rows(plain, 2048, 11264, 0, True) == 4
    assert most_gated_rows(H200, 2048, 11264, 0, True) == 2
    assert most_gated_rows(H200, 2048, 11264, 4, True) == most_gated_rows(H200, 2048, 11264, 8, False) == 4
    emulated = replace(H200, switches=frozenset({"emulated-matrix-units"}))
    assert most_gated_rows(emulated, 2048, 11264, 0, True) == 0


def test_activations() -> None:
    for call in ("relu(%g)", "sigmoid(%g)", 'gelu(%g, "none")', "tanh(%g)", "leaky_relu(%g, 0.25)", "clamp(%g, 0, 6)"):
        graph = folded(GATE, UP, f"%s : {OUT} = aten::{call}", MUL)
        (whole,) = [node for node in graph.block.nodes if node.op == PRODUCT]
        step = parts_of(whole)[4]
        assert gate_of(parts_of(whole)) == activation_of(step)
