"""Nodes that become one, which makes what several of them made, and come apart again."""

from __future__ import annotations

import pytest

from mobopt.errors import GraphError
from mobopt.ir import Graph, parse_graph, print_graph, verify_graph
from mobopt.ir.rewriting import dissolve, enclose

TEXT = """graph(%x : Float(3), %y : Float(3)):
  %a : Float(3) = aten::neg(%x)
  %b : Float(3) = aten::exp(%a)
  %c : Float(3) = aten::neg(%y)
  %d : Float(3) = aten::add.Tensor(%b, %c, 1)
  return (%d, %c)
"""


def _graph() -> Graph:
    return parse_graph(TEXT)


def test_several_ends() -> None:
    graph = _graph()
    neg, exp, other, _ = graph.block.nodes
    whole = enclose([neg, exp, other], "mobopt::both", ends=[exp, other])
    verify_graph(graph)
    assert [value.name for value in whole.outputs] == ["b", "c"]
    assert [node.op for node in whole.blocks[0].nodes] == ["aten::neg", "aten::exp", "aten::neg"]
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)
    assert dissolve(whole) == [neg, exp, other]
    verify_graph(graph)
    assert print_graph(graph) == print_graph(_graph())


def test_what_is_read_elsewhere_is_an_end() -> None:
    graph = _graph()
    neg, exp, other, _ = graph.block.nodes
    with pytest.raises(GraphError, match="is read outside"):
        enclose([neg, exp, other], "mobopt::both", ends=[exp])


def test_an_end_that_another_reads() -> None:
    """It reads what is made inside; readers elsewhere, what the new node makes."""
    graph = _graph()
    neg, exp, other, add = graph.block.nodes
    whole = enclose([neg, exp, other, add], "mobopt::both", ends=[add, other])
    verify_graph(graph)
    assert [value.name for value in whole.outputs] == ["d", "c"]
    assert add.args[1] is other.output is not whole.outputs[1]
    assert graph.block.returns.inputs == tuple(whole.outputs)
    assert dissolve(whole) == [neg, exp, other, add]
    verify_graph(graph)
    assert print_graph(graph) == print_graph(_graph())
