"""The text form says everything: printed, parsed and printed again, a graph is the same."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import GOLDEN, bundle_id
from hypothesis import given, settings
from hypothesis import strategies as st
from model_zoo import ZOO
from sampling import sampled
from scripted import CASES

from mobopt.bundle import read_bundle
from mobopt.errors import GraphError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, Program, parse_graph, print_graph
from mobopt.ir.literals import parse_literal, print_literal
from mobopt.ir.types import DictType, ListType, OptionalType, TupleType, Type, parse_type
from mobopt.ops.contexts import PackedContext


def without_literal(value: Any) -> bool:
    """Whether a constant holds what the text form has no literal for."""
    if isinstance(value, (torch.Tensor, PackedContext)):
        return True
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(without_literal(item) for item in items)


def constants(graph: Graph) -> Mapping[str, Any]:
    """The graph's constants that have no literal, by name."""
    nodes = [*graph.walk(), graph.block.returns]
    returns = [nested.returns for node in nodes for nested in node.blocks]
    values = [value for node in (*nodes, *returns) for value in node.inputs if value.is_constant]
    return {value.name: value.constant for value in values if without_literal(value.constant)}


def facts(graph: Graph) -> list[Any]:
    """What the text leaves out, and what must survive with it."""
    return [
        (node.op, node.overload, node.attributes, [str(value.type) for value in node.outputs]) for node in graph.walk()
    ]


def assert_fixed_point(program: Program) -> None:
    for graph in program.methods.values():
        text = print_graph(graph, sources=True)
        again = parse_graph(text, constants(graph))
        assert print_graph(again, sources=True) == text
        assert print_graph(again) == print_graph(graph)
        assert facts(again) == facts(graph)


@pytest.mark.parametrize("path", sampled(sorted(GOLDEN.glob("*/*/*.pt*")), one_in=2, key=bundle_id))
def test_golden_bundles(path: Path) -> None:
    for prefer in ("code", "bytecode") if path.suffix == ".ptl" else ("code",):
        assert_fixed_point(read_bundle(path, prefer=prefer))


@pytest.mark.parametrize("name", CASES)
def test_constructs_of_the_language(name: str) -> None:
    module = torch.jit.script(CASES[name][0]()).eval()
    assert_fixed_point(program_from_script_module(module))
    assert_fixed_point(read_bundle(io.BytesIO(module.save_to_buffer())))
    assert_fixed_point(read_bundle(io.BytesIO(module._save_to_buffer_for_lite_interpreter())))


@pytest.mark.sweep
@pytest.mark.parametrize("name", ZOO)
def test_models_of_the_zoo(name: str) -> None:
    module = torch.jit.script(ZOO[name].build())
    assert_fixed_point(program_from_script_module(module))
    assert_fixed_point(read_bundle(io.BytesIO(module.save_to_buffer())))


def literals() -> Iterator[tuple[str, Any]]:
    yield "str", 'say "hi"\n\ttab \\ back\x00 ünïcødé \u2028 \U0001f600 = aten::add(%a) # ]()'
    yield "str", ""
    yield "float", math.inf
    yield "float", -math.inf
    yield "float", 1e-320
    yield "float", -0.0
    yield "complex", complex(1.5, -2.0)
    yield "complex", complex(0.0, math.inf)
    yield "bool", True
    yield "int", -(2**63)
    yield "Device", torch.device("vulkan:0")
    yield "NoneType", None
    yield "Tensor?", None
    yield "int[]", []
    yield "int[][]", [[], [1, 2], []]
    yield "bool[]", [True, False]
    yield "float[]", [math.inf, -math.inf, 2.0]
    yield "str[]", ["a, b", 'c"]', "]()"]
    yield "Device[]", [torch.device("cpu")]
    yield "(int, str, float?)", (1, "x", None)
    yield "(int[])", ([],)
    yield "Dict(str, int[])", {"a": [1], 'b": 2': []}
    yield "Dict(int, float)", {3: 0.5}


@pytest.mark.parametrize(("kind", "value"), list(literals()))
def test_literals(kind: str, value: Any) -> None:
    graph = Graph()
    graph.add_input("x", parse_type("Tensor"))
    constant = graph.constant(value, parse_type(kind))
    graph.block.append(graph.create("prim::TupleConstruct", [constant], [TupleType((constant.type,))]))
    graph.return_values(graph.block.nodes[0].output)
    text = print_graph(graph)
    again = parse_graph(text)
    assert print_graph(again) == text
    (read,) = again.block.nodes[0].inputs
    assert read.constant == value and type(read.constant) is type(value) and read.type == constant.type
    if isinstance(value, float):
        assert math.copysign(1.0, read.constant) == math.copysign(1.0, value)


def test_not_a_number() -> None:
    for kind, text in (("float", "nan"), ("float[]", "[nan, 1.0]"), ("complex", "(nan+nanj)")):
        value = parse_literal(text, parse_type(kind))
        assert print_literal(value, parse_type(kind)) == text
        assert value != value or value[0] != value[0]


def values() -> st.SearchStrategy[tuple[Type, Any]]:
    """Types with values of them."""
    leaves = [
        ("int", st.integers(-(2**63), 2**63 - 1)),
        ("float", st.floats(allow_nan=False)),
        ("bool", st.booleans()),
        ("str", st.text()),
        ("complex", st.complex_numbers(allow_nan=False)),
    ]
    simple = st.one_of(*(st.tuples(st.just(parse_type(kind)), strategy) for kind, strategy in leaves))

    def nested(inner: st.SearchStrategy[tuple[Type, Any]]) -> st.SearchStrategy[tuple[Type, Any]]:
        lists = inner.map(lambda pair: (ListType(pair[0]), [pair[1]] * 2))
        empties = inner.map(lambda pair: (ListType(pair[0]), []))
        tuples = st.lists(inner, min_size=1, max_size=3).map(
            lambda pairs: (TupleType(tuple(kind for kind, _ in pairs)), tuple(value for _, value in pairs))
        )
        maps = st.tuples(st.text(), inner).map(
            lambda item: (DictType(parse_type("str"), item[1][0]), {item[0]: item[1][1]})
        )
        optional = inner.map(lambda pair: (OptionalType(pair[0]), pair[1] if pair[1] else None))
        return st.one_of(lists, empties, tuples, maps, optional)

    return st.recursive(simple, nested, max_leaves=6)


@settings(max_examples=100, deadline=None)
@given(values())
def test_any_literal(pair: tuple[Type, Any]) -> None:
    kind, value = pair
    text = print_literal(value, kind)
    assert "\n" not in text
    read = parse_literal(text, kind)
    assert read == value and print_literal(read, kind) == text


def test_attributes_of_nodes() -> None:
    text = (
        "graph(%x : Tensor?,\n"
        "      %y : (int, str, float)):\n"
        "  %0 : bool = prim::isinstance[types=[Tensor?, int[], Dict(str, (int, Tensor))]](%x)\n"
        "  %1 : (int, str) = prim::TupleSlice[beg=0, end=-1](%y)\n"
        '  %2 : Tensor = prim::GetAttr[name="a \\"quoted\\" ] = aten::b(%c)"](%x)\n'
        "  return (%0, %1, %2)\n"
    )
    graph = parse_graph(text)
    assert print_graph(graph) == text
    first, second, third = graph.block.nodes
    assert first.attributes == {
        "types": tuple(parse_type(kind) for kind in ("Tensor?", "int[]", "Dict(str, (int, Tensor))"))
    }
    assert second.attributes == {"beg": 0, "end": -1}
    assert third.attributes == {"name": 'a "quoted" ] = aten::b(%c)'}


def test_overload_with_as_many_arguments_as_there_are_inputs() -> None:
    text = "graph(%x : Tensor):\n  %0 : NoneType = prim::Constant()\n  %1 : Tensor = aten::sum(%x, %0)\n  return (%1)\n"
    assert parse_graph(text).block.nodes[0].qualified_op == "aten::sum"


def test_names_of_values_can_be_read_again() -> None:
    graph = Graph()
    graph.return_values(graph.add_input("a-b c.d", parse_type("Tensor")))
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)
    text = "graph(%self : __torch__.M,\n      %block1-0.1 : Tensor):\n  return (%block1-0.1)\n"  # as torch names it
    assert print_graph(parse_graph(text)) == text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%0 : int = prim::Constant[value=[1]()", "has no literal"),
        ("%0 : int = prim::Constant[value=1 2]()", "has no literal at '2'"),
        ("%0 : (int, int) = prim::Constant[value=(1,)]()", "is not a constant of type"),
        ("%0 : Device = prim::Constant[value=3.5]()", "is not a constant of type Device"),
        ("%0 : Tensor = prim::Constant[value=<Tensor float32 [2]>]()", "has no literal"),
        ("%0 : __torch__.A = prim::Constant[value=1]()", "has no literal"),
        ("%0 : int, %1 : int = prim::Constant[value=1]()", "one name and type, not 2"),
        ("%0 : bool = prim::isinstance[types=int](%x)", "has no literal"),
        ("%0 : bool = prim::isinstance[types=[int](%x)", "has no literal"),
    ],
)
def test_bad_text_is_one_clear_error(line: str, message: str) -> None:
    with pytest.raises(GraphError, match=message.replace("[", r"\[")):
        parse_graph(f"graph(%x : Tensor):\n  {line}\n  return (%x)\n")
