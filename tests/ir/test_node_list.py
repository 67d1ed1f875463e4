"""The linked list of a block's nodes, against a plain list; insertion points; the cost of taking nodes out."""

from __future__ import annotations

import random
import time

import pytest

from mobopt.errors import GraphError
from mobopt.ir import Block, Graph, InsertionPoint, Node, verify_graph


def test_it_is_a_list_whatever_is_put_in_and_taken_out() -> None:
    draw = random.Random(0)
    block = Block()
    model: list[Node] = []
    for step in range(400):
        if model and draw.random() < 0.4:
            node = model.pop(draw.randrange(len(model)))
            node.destroy()
            assert (node.block, node.previous, node.next) == (None, None, None)
        else:
            place = draw.randint(0, len(model))
            node = Node(f"prim::n{step}")
            point = InsertionPoint.before(model[place]) if place < len(model) else InsertionPoint.end(block)
            assert point.insert(node) is node
            model.insert(place, node)
        assert list(block.nodes) == model
        assert list(reversed(block.nodes)) == model[::-1]
        assert len(block.nodes) == len(model)
        if len(model) > 1:
            first, second = sorted(draw.sample(range(len(model)), 2))
            assert model[first].is_before(model[second])
            assert not model[second].is_before(model[first])
            assert model[first].is_before(block.returns)
            assert block.nodes[first] is model[first]
            assert block.nodes[first - len(model)] is model[first]
            assert block.nodes[first:second] == model[first:second]
    with pytest.raises(IndexError, match="has no node"):
        block.nodes[len(model)]


def test_nodes_that_are_put_in_one_place_stand_in_their_order() -> None:
    block = Block()
    last = block.append(Node("prim::last"))
    for point, names in ((InsertionPoint.before(last), "ab"), (InsertionPoint.start(block), "cd")):
        for name in names:
            point.insert(Node(f"prim::{name}"))
    InsertionPoint.after(last).insert(Node("prim::e"))
    InsertionPoint.before(block.returns).insert(Node("prim::f"))
    assert "".join(node.op.removeprefix("prim::")[0] for node in block.nodes) == "abcdlef"


def test_a_node_may_go_while_the_list_is_walked() -> None:
    block = Block()
    for number in range(6):
        block.append(Node(f"prim::n{number}"))
    for number, node in enumerate(block.nodes):
        if number % 2:
            node.destroy()
    assert [node.op for node in block.nodes] == ["prim::n0", "prim::n2", "prim::n4"]
    for node in reversed(block.nodes):
        node.destroy()
    assert not block.nodes


def test_a_place_that_has_gone_is_an_error() -> None:
    block, other = Block(), Block()
    anchor = block.append(Node("prim::anchor"))
    point = InsertionPoint.before(anchor)
    anchor.remove()
    with pytest.raises(GraphError, match="has gone from the block"):
        point.insert(Node("prim::late"))
    with pytest.raises(GraphError, match="stands in no block"):
        InsertionPoint.before(anchor)
    other.append(anchor)
    with pytest.raises(GraphError, match="stands in a block already"):
        other.append(anchor)
    with pytest.raises(GraphError, match="don't stand in one block"):
        anchor.is_before(block.append(Node("prim::here")))


def test_a_use_by_a_node_that_stands_nowhere_is_found() -> None:
    graph = Graph()
    value = graph.constant(1)
    x = graph.block.append(graph.create("prim::NumToTensor", [value]))
    graph.return_values(x.output)
    verify_graph(graph)
    stray = Node("aten::relu", [x.output])
    with pytest.raises(GraphError, match="which does not read it"):
        verify_graph(graph)
    stray.destroy()
    verify_graph(graph)


def test_to_destroy_many_nodes_is_linear() -> None:
    def seconds(count: int) -> float:
        graph = Graph()
        for _ in range(count):
            graph.block.append(Node("prim::nothing"))
        started = time.process_time()
        for node in reversed(graph.block.nodes):
            node.destroy()
        return time.process_time() - started

    assert seconds(40_000) < 40 * max(seconds(4_000), 1e-3)
