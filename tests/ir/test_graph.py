import pytest
import torch

from mobopt.errors import GraphError
from mobopt.ir import Attribute, Graph, Program, clone_graph, parse_graph, print_graph, verify, verify_graph
from mobopt.ir.graph import type_of_constant
from mobopt.ir.types import ANY, INT, TENSOR, ListType

TEXT = """\
graph(%self : __torch__.M,
      %x : Tensor):
  %one : int = prim::Constant[value=1]()
  %c : bool = prim::Constant[value=1]()
  %a : Tensor = aten::relu(%x)
  %r : Tensor = prim::If(%c)
    block0():
      %b : Tensor = aten::add(%a, %a, %one)
      -> (%b)
    block1():
      -> (%a)
  return (%r)
"""


def test_text_round_trips_and_resolves_overloads() -> None:
    graph = parse_graph(TEXT)
    verify_graph(graph)
    again = parse_graph(print_graph(graph))
    assert print_graph(again) == print_graph(graph)
    assert [node.qualified_op for node in graph.walk()] == ["aten::relu", "prim::If", "aten::add.Tensor"]


def test_uses_follow_every_change() -> None:
    graph = parse_graph(TEXT)
    x = graph.inputs[1]
    relu, branch, add = graph.walk()
    assert [(node.op, index) for node, index in relu.output.uses] == [
        ("aten::add", 0),
        ("aten::add", 1),
        ("prim::Return", 0),
    ]
    relu.output.replace_all_uses_with(x)
    assert relu.output.uses == ()
    assert len(x.uses) == 4
    relu.destroy()
    assert len(x.uses) == 3
    assert relu.block is None
    add.set_inputs([x, x, graph.constant(2)])
    assert len(x.uses) == 3
    verify_graph(graph)
    with pytest.raises(GraphError, match="still used"):
        branch.destroy()


def test_remove_output_checks_uses() -> None:
    graph = Graph()
    node = graph.block.append(graph.create("prim::ListUnpack", [], [TENSOR, TENSOR]))
    graph.return_values(node.outputs[0])
    with pytest.raises(GraphError, match="still used"):
        node.remove_output(0)
    node.remove_output(1)
    assert len(node.outputs) == 1


def test_a_value_has_one_maker() -> None:
    graph = parse_graph(TEXT)
    relu = next(graph.walk())
    with pytest.raises(GraphError, match="made elsewhere"):
        relu.add_output(graph.inputs[1])
    with pytest.raises(GraphError, match="stands in a block already"):
        graph.block.append(relu)


def test_clone_is_independent() -> None:
    program = Program({"forward": parse_graph(TEXT)}, {"w": Attribute(TENSOR, torch.ones(2))})
    copy = program.clone()
    before = print_graph(program.methods["forward"])
    first = next(copy.methods["forward"].walk())
    first.output.replace_all_uses_with(copy.methods["forward"].inputs[1])
    first.destroy()
    copy.attributes["w"].is_parameter = True
    assert print_graph(program.methods["forward"]) == before
    assert not program.attributes["w"].is_parameter
    assert copy.attributes["w"].value is program.attributes["w"].value
    verify(program)
    verify(copy)


def test_clone_shares_constants_by_value_only() -> None:
    graph = parse_graph(TEXT)
    copy = clone_graph(graph)
    names = {id(value) for node in copy.walk() for value in node.inputs}
    assert names.isdisjoint({id(value) for node in graph.walk() for value in node.inputs})


def test_names_are_unique_and_keep_the_hint() -> None:
    graph = Graph()
    assert [graph.unique_name(hint) for hint in ("x", "x", "x.1", "", "")] == ["x", "x.1", "x.2", "0", "1"]


def test_constant_types() -> None:
    assert type_of_constant([1, 2]) == ListType(INT)
    assert type_of_constant([]) == ListType(ANY)
    with pytest.raises(GraphError, match="can't be a constant"):
        type_of_constant(object())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%a = b", "must begin with"),
        ("graph(%x : Tensor):\n  %y : Tensor = aten::relu(%z)\n  return (%y)", "used before it is defined"),
        ("graph(%x : Tensor):\n  %y : Tensor = aten::relu(%x)", "ends inside a block"),
        ("graph(%x : Tensor):\n  %x : Tensor = aten::relu(%x)\n  return (%x)", "defined twice"),
        ("graph(%x : Tensor):\n  %y : Tensor = aten::relu(%x, %x, %x)\n  return (%y)", "no overload of aten::relu"),
        ("graph(%x : Tensor):\n  gibberish\n  return (%x)", "can't read the line"),
        ("graph(%x : Tensor):\n  return (%x)\n  return (%x)", "left over"),
        ("graph():\n  %w : Tensor = prim::Constant[value=<Tensor>]()\n  return (%w)", "has no literal"),
    ],
)
def test_bad_text_is_one_clear_error(text: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        parse_graph(text)


def test_named_constants_are_given_to_the_parser() -> None:
    weight = torch.ones(3)
    graph = parse_graph("graph():\n  %w : Tensor = prim::Constant[value=<Tensor>]()\n  return (%w)", {"w": weight})
    assert graph.outputs[0].constant is weight
