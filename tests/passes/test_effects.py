import pytest
import torch
from pass_harness import program_of

from mobopt.ir import Node, Program, Value
from mobopt.ops.aliases import Aliases
from mobopt.ops.effects import has_side_effects, is_pure, is_random, written_inputs

TEXT = """
graph(%self : __torch__.M,
      %x : Tensor,
      %m : Tensor?,
      %c : bool):
  %w : Tensor = prim::Constant[value=<Tensor>]()
  %none : NoneType = prim::Constant()
  %zero : int = prim::Constant[value=0]()
  %one : int = prim::Constant[value=1]()
  %half : float = prim::Constant[value=0.5]()
  %true : bool = prim::Constant[value=1]()
  %false : bool = prim::Constant[value=0]()
  %text : str = prim::Constant[value="no"]()
  %a : Tensor = aten::neg(%x)
  %view : Tensor = aten::select(%a, %zero, %zero)
  %written : Tensor = aten::add_(%view, %a, %one)
  %kept : Tensor = aten::dropout(%a, %half, %false)
  %dropped : Tensor = aten::dropout(%a, %half, %true)
  %noise : Tensor = aten::rand_like(%a, %none, %none, %none, %none, %none)
  %list : Tensor[] = prim::ListConstruct(%a)
  %grown : Tensor[] = aten::append(%list, %x)
  %item : Tensor = aten::__getitem__(%list, %zero)
  %joined : Tensor = aten::cat(%list, %zero)
  %copied : Tensor[] = aten::list(%list)
  %weight : Tensor = aten::t(%w)
  %branch : Tensor = prim::If(%c)
    block0():
      %inner : Tensor = aten::relu(%joined)
      -> (%inner)
    block1():
       = prim::RaiseException(%text, %none)
      -> (%joined)
  %result : (Tensor, Tensor) = prim::TupleConstruct(%branch, %item)
  return (%result)
"""


@pytest.fixture
def program() -> Program:
    return program_of(TEXT, {"w": torch.rand(2, 2)})


@pytest.fixture
def nodes(program: Program) -> dict[str, Node]:
    return {node.outputs[0].name: node for node in program.methods["forward"].walk() if node.outputs}


@pytest.mark.parametrize(
    ("name", "pure", "random", "writes"),
    [
        ("a", True, False, []),
        ("written", False, False, ["view"]),
        ("kept", True, False, []),
        ("dropped", False, True, []),
        ("noise", False, True, []),
        ("grown", False, False, ["list"]),
        ("item", True, False, []),
        ("branch", False, False, []),
    ],
)
def test_what_nodes_do(nodes: dict[str, Node], name: str, pure: bool, random: bool, writes: list[str]) -> None:
    node = nodes[name]
    assert (is_pure(node), is_random(node)) == (pure, random)
    assert [value.name for value in written_inputs(node)] == writes
    assert has_side_effects(node) is (name == "branch")


@pytest.mark.parametrize(("dropped", "trains", "random"), [(0.5, True, True), (0.0, True, False), (0.5, False, False)])
def test_nodes_with_plain_arguments(dropped: float, trains: bool, random: bool) -> None:
    """As straight lines have them: tensors may lie in lists."""
    x, h, c, w = (Value.of_elements(torch.ones(2, 2)) for _ in range(4))
    args = (x, [h, c], [w, w, w, w], True, 1, dropped, trains, False, False)
    outputs = [Value.of_tensor(torch.float32, (2, 2)) for _ in range(4)]
    assert is_random(Node.call("aten::lstm.input", args, outputs[:3])) is random
    assert is_random(Node.call("aten::dropout", (x, dropped, trains), outputs[3:])) is trains


@pytest.mark.parametrize(
    ("left", "right", "shared"),
    [
        ("a", "view", True),
        ("written", "view", True),
        ("a", "kept", True),
        ("a", "noise", False),
        ("a", "list", True),
        ("x", "item", True),
        ("a", "joined", False),
        ("a", "copied", True),
        ("inner", "branch", True),
        ("joined", "branch", True),
        ("branch", "result", True),
        ("x", "m", True),
        ("x", "weight", False),
    ],
)
def test_what_may_share_memory(program: Program, nodes: dict[str, Node], left: str, right: str, shared: bool) -> None:
    graph = program.methods["forward"]
    values = {value.name: value for value in graph.inputs} | {name: node.outputs[0] for name, node in nodes.items()}
    assert Aliases(graph).may_alias(values[left], values[right]) is shared


def test_writers_and_what_outlives_the_call(program: Program, nodes: dict[str, Node]) -> None:
    aliases = Aliases(program.methods["forward"])
    assert aliases.writers(nodes["a"].output) == [nodes["written"]]
    assert aliases.writers(nodes["copied"].output) == [nodes["written"], nodes["grown"]]
    assert aliases.writers(nodes["joined"].output) == []
    assert aliases.is_external(nodes["weight"].output)
    assert not aliases.is_external(nodes["joined"].output)
    assert not aliases.is_external(nodes["list"].output)
    assert aliases.is_external(nodes["item"].output)
