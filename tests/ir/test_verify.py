import pytest

from mobopt.errors import GraphError
from mobopt.ir import Graph, Program, parse_graph, verify, verify_graph
from mobopt.ir.types import BOOL, TENSOR


def test_a_use_before_its_definition_is_found() -> None:
    graph = parse_graph(
        "graph(%x : Tensor):\n  %a : Tensor = aten::relu(%x)\n  %b : Tensor = aten::abs(%a)\n  return (%b)"
    )
    first, second = graph.block.nodes
    second.remove().insert_before(first)
    with pytest.raises(GraphError, match="not defined before it"):
        verify_graph(graph)


def test_a_value_of_an_inner_block_is_not_seen_outside() -> None:
    graph = parse_graph(
        "graph(%x : Tensor, %c : bool):\n   = prim::If(%c)\n"
        "    block0():\n      %a : Tensor = aten::relu(%x)\n      -> ()\n"
        "    block1():\n      -> ()\n  return (%x)"
    )
    inner = graph.block.nodes[0].blocks[0].nodes[0]
    graph.return_values(inner.output)
    with pytest.raises(GraphError, match="not defined before it"):
        verify_graph(graph)


def test_wrong_number_of_inputs_is_found() -> None:
    graph = Graph()
    x = graph.add_input("x", TENSOR)
    graph.return_values(graph.block.append(graph.create("aten::relu", [x, x])).output)
    with pytest.raises(GraphError, match="has 2 inputs; its schema has 1"):
        verify_graph(graph)


def test_wrong_type_is_found() -> None:
    graph = Graph()
    flag = graph.add_input("flag", BOOL)
    graph.return_values(graph.block.append(graph.create("aten::relu", [flag])).output)
    with pytest.raises(GraphError, match="has bool for 'self'"):
        verify_graph(graph)


def test_if_and_loop_must_have_their_form() -> None:
    graph = Graph()
    flag = graph.add_input("flag", BOOL)
    graph.block.append(graph.create("prim::If", [flag], [])).add_block()
    with pytest.raises(GraphError, match="two blocks"):
        verify_graph(graph)
    graph = Graph()
    graph.block.append(graph.create("prim::Loop", [graph.constant(3), graph.constant(True)], [])).add_block()
    with pytest.raises(GraphError, match="iteration"):
        verify_graph(graph)


def test_unknown_operator_and_attribute_are_named() -> None:
    graph = Graph()
    x = graph.add_input("x", TENSOR)
    graph.return_values(graph.block.append(graph.create("aten::no_such_operator", [x])).output)
    with pytest.raises(GraphError, match="unknown operator aten::no_such_operator"):
        verify_graph(graph)
    text = 'graph(%self : __torch__.M):\n  %w : Tensor = prim::GetAttr[name="w"](%self)\n  return (%w)'
    with pytest.raises(GraphError, match=r"method 'forward': .*attribute 'w'"):
        verify(Program({"forward": parse_graph(text)}))
