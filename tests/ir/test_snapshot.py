"""A snapshot sees every change of a graph, so that nothing found of a graph before is taken for what holds now."""

from collections.abc import Callable

import pytest

from mobopt.ir import Graph, Node, parse_graph
from mobopt.ir.snapshot import Snapshot
from mobopt.ir.types import ANY, TENSOR
from mobopt.ops.aliases import Aliases

TEXT = """
graph(%self : __torch__.M,
      %x : Tensor,
      %c : bool):
  %one : int = prim::Constant[value=1]()
  %w : Tensor = prim::GetAttr[name="w"](%self)
  %a : Tensor = aten::neg(%x)
  %b : Tensor = aten::add_(%a, %w, %one)
  %y : Tensor = prim::If(%c)
    block0():
      %inner : Tensor = aten::relu(%b)
      -> (%inner)
    block1():
      -> (%b)
  return (%y)
"""


def node(graph: Graph, op: str) -> Node:
    return next(item for item in graph.walk() if item.op == op)


def rename_attribute(graph: Graph) -> None:
    node(graph, "prim::GetAttr").attributes["name"] = "v"


def change_attributes_only(graph: Graph) -> None:
    node(graph, "aten::neg").attributes["extra"] = 1


def change_operator(graph: Graph) -> None:
    node(graph, "aten::neg").op = "aten::abs"


def change_overload(graph: Graph) -> None:
    node(graph, "aten::add_").overload = "Scalar"


def change_input(graph: Graph) -> None:
    node(graph, "aten::neg").replace_input(0, node(graph, "prim::GetAttr").output)


def change_type(graph: Graph) -> None:
    node(graph, "aten::neg").output.type = ANY


def change_type_of_parameter(graph: Graph) -> None:
    graph.inputs[1].type = ANY


def change_inner_result(graph: Graph) -> None:
    node(graph, "prim::If").blocks[1].returns.replace_input(0, graph.inputs[1])


def change_result(graph: Graph) -> None:
    graph.return_values(graph.inputs[1])


def add_output(graph: Graph) -> None:
    node(graph, "aten::neg").add_output(graph.value(TENSOR))


def add_block(graph: Graph) -> None:
    node(graph, "prim::If").add_block()


def add_parameter(graph: Graph) -> None:
    graph.add_input("more", TENSOR)


def move(graph: Graph) -> None:
    node(graph, "aten::neg").remove().insert_before(node(graph, "prim::GetAttr"))


def remove(graph: Graph) -> None:
    node(graph, "aten::relu").remove()


def insert(graph: Graph) -> None:
    graph.create("aten::abs", [graph.inputs[1]]).insert_before(node(graph, "aten::neg"))


def read_from_elsewhere(graph: Graph) -> None:
    graph.create("aten::abs", [node(graph, "prim::If").output])
    graph.create("aten::abs", [node(graph, "aten::add_").output])
    node(graph, "aten::relu").replace_input(0, graph.inputs[1])


CHANGES = [
    *(rename_attribute, change_attributes_only, change_operator, change_overload, change_input, change_type),
    *(change_type_of_parameter, change_inner_result, change_result, add_output, add_block, add_parameter),
    *(move, remove, insert, read_from_elsewhere),
]


@pytest.fixture
def graph() -> Graph:
    return parse_graph(TEXT)


def test_an_unchanged_graph_is_the_same(graph: Graph) -> None:
    assert Snapshot(graph).is_same(Snapshot(graph))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_change_is_seen(graph: Graph, change: Callable[[Graph], None]) -> None:
    before = Snapshot(graph)
    change(graph)
    assert not before.is_same(Snapshot(graph))


def test_a_node_in_the_place_of_its_twin_is_seen(graph: Graph) -> None:
    before = Snapshot(graph)
    old = node(graph, "aten::neg")
    new = graph.create("aten::neg", old.inputs)
    new.insert_before(old)
    old.output.replace_all_uses_with(new.output)
    old.destroy()
    assert not before.is_same(Snapshot(graph))


def test_places_are_found_once_until_the_graph_changes(graph: Graph) -> None:
    first, second = Aliases(graph), Aliases(graph)
    assert first._flows is second._flows
    weight, view = node(graph, "prim::GetAttr").output, node(graph, "aten::add_").output
    assert not first.may_alias(weight, view)
    change_input(graph)
    node(graph, "aten::neg").op = "aten::detach"
    third = Aliases(graph)
    assert third._flows is not first._flows
    assert third.may_alias(weight, view)


def test_places_of_a_graph_without_writes_are_those_of_the_graph_when_they_are_asked_for(graph: Graph) -> None:
    written = node(graph, "aten::add_")
    written.op, written.overload = "aten::add", "Tensor"
    aliases = Aliases(graph)
    assert not aliases.writers(written.inputs[0])
    weight, view = node(graph, "prim::GetAttr").output, node(graph, "aten::neg")
    change_input(graph)
    view.op = "aten::detach"
    assert aliases.may_alias(weight, view.output)
