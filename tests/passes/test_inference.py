"""What is known of tensors that passes make: it follows from their operands as a run would tell it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from nets import NETS
from pass_harness import program_of
from sampling import sampled

from mobopt.errors import PassError
from mobopt.frontends.open_source import source_of
from mobopt.ir import Graph, Program
from mobopt.ir.facts import UNKNOWN, TensorFacts
from mobopt.ir.types import TENSOR
from mobopt.optimizer import optimize
from mobopt.options import Settings
from mobopt.passes import facts
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.inference import Inference, check_facts, infer_facts, values_of
from mobopt.passes.manager import graph_pass, run_passes
from mobopt.passes.notes import NoteBook
from mobopt.runtimes.cpu import Interpreter
from mobopt.tools.lacks import find_lacks


def known(program: Program) -> dict[str, TensorFacts]:
    """Facts of all tensors by name."""
    values = (value for graph in program.methods.values() for value in values_of(graph.block))
    return {value.name: value.facts for value in values if value.type == TENSOR}


def converted(name: str, way: str, settings: Settings) -> tuple[Program, Examples]:
    """A net after the passes."""
    net = NETS[name]
    module, inputs = net.module(), net.inputs()
    with torch.no_grad():
        made = (
            torch.jit.script(module)
            if way == "scripted"
            else torch.jit.trace(module, tuple(inputs), check_trace=False, strict=False)  # type: ignore[no-untyped-call]
        )
    done = optimize(source_of(made), settings, inputs)
    return done.program, done.inputs.examples


@pytest.mark.parametrize(
    ("name", "way", "backend"),
    sampled(
        [(name, way, backend) for name, net in NETS.items() for way in net.ways for backend in ("vulkan", "metal")], 40
    ),
)
def test_a_run_tells_the_same(name: str, way: str, backend: str) -> None:
    program, examples = converted(name, way, Settings(backend))
    record_facts(program, examples)
    inferred = known(program)
    check_facts(program)
    record_facts(program, Examples(examples.arguments))  # others, so it is run again
    seen = known(program)
    for value, item in inferred.items():
        if item.is_seen and item.known_sizes is not None:
            assert item == seen[value], value
    told = sum(item.known_sizes is not None for item in inferred.values())
    assert told >= 0.99 * sum(item.known_sizes is not None for item in seen.values())


def test_a_conversion_runs_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def counted(self: Interpreter, method: str, args: Sequence[Any]) -> Any:
        runs.append(method)
        return Interpreter.run(self, method, args)

    monkeypatch.setattr(facts._Observer, "run", counted)
    settings = Settings("vulkan")
    program, examples = converted("YOLOv5", "scripted", settings)
    find_lacks(program, settings, examples)
    assert runs == ["forward"]


HEAD = """
graph(%self : __torch__.M, %x : Tensor, %n : int):
  %zero : int = prim::Constant[value=0]()
  %one : int = prim::Constant[value=1]()
  %two : int = prim::Constant[value=2]()
  %true : bool = prim::Constant[value=1]()
"""


def inferred_of(body: str, n: int = 5) -> dict[str, TensorFacts]:
    """Facts of a body of which only the inputs were seen: (7, 5) and a number."""
    program = program_of(HEAD + body)
    examples = Examples({"forward": (torch.rand(7, 5), n)})
    record_facts(program, examples)
    graph = program.methods["forward"]
    for value in values_of(graph.block):
        if value is not graph.inputs[1]:
            value.facts = UNKNOWN
    record_facts(program, examples)
    check_facts(program)
    return known(program)


def test_numbers_that_follow_from_sizes() -> None:
    found = inferred_of(
        """
      %rows : int = aten::size(%x, %zero)
      %held : Tensor = prim::NumToTensor(%rows)
      %half : Tensor = aten::floor_divide(%held, %two)
      %count : int = aten::Int(%half)
      %parts : Tensor[] = aten::split(%x, %count, %zero)
      %a : Tensor, %b : Tensor, %c : Tensor = prim::ListUnpack(%parts)
      %list : Tensor[] = prim::ListConstruct(%a, %c)
      %y : Tensor = aten::cat(%list, %one)
      return (%y)
    """.replace("%list, %one", "%list, %zero")
    )
    assert [str(found[name]) for name in "abcy"] == ["float32[3, 5]", "float32[3, 5]", "float32[1, 5]", "float32[4, 5]"]
    assert str(found["half"]) == "int64[]"


def test_what_follows_from_no_size_is_not_known() -> None:
    found = inferred_of("""
      %y : Tensor = aten::slice(%x, %zero, %zero, %n, %one)
      %z : Tensor = aten::relu(%y)
      %places : Tensor = aten::nonzero(%x)
      return (%z)
    """)
    assert all(found[name].known_sizes is None and found[name].varies for name in "yz")
    assert not found["places"].is_seen


def test_branches_give_what_holds_for_both() -> None:
    text = """
      %flag : bool = aten::gt(%n, %zero)
      %same : Tensor = prim::If(%flag)
        block0():
          %a : Tensor = aten::relu(%x)
          -> (%a)
        block1():
          -> (%x)
      %other : Tensor = prim::If(%flag)
        block0():
          %b : Tensor = aten::flatten(%x, %zero, %one)
          -> (%b)
        block1():
          -> (%x)
      return (%other)
    """
    found = inferred_of(text)
    assert str(found["same"]) == "float32[7, 5]"
    assert found["other"].known_dtype == "float32" and found["other"].known_rank is None


def test_of_a_branch_that_no_run_came_to_nothing_is_known() -> None:
    text = """
      %flag : bool = aten::gt(%n, %zero)
      %y : Tensor = prim::If(%flag)
        block0():
          %a : Tensor = aten::relu(%x)
          -> (%a)
        block1():
          %b : Tensor = aten::tanh(%x)
          -> (%b)
      return (%y)
    """
    program = program_of(HEAD + text)
    record_facts(program, Examples({"forward": (torch.rand(7, 5), 1)}))
    anchors = {node.op: node for node in program.methods["forward"].walk()}
    graph = program.methods["forward"]
    for op in ("aten::relu", "aten::tanh"):
        node = graph.create("aten::sigmoid", anchors[op].inputs, names=[op[-4:]]).insert_before(anchors[op])
        Inference(program).complete(node)
    later = graph.create("aten::abs", anchors["aten::tanh"].inputs, names=["late"]).insert_before(anchors["aten::tanh"])
    infer_facts(program)
    found = known(program)
    assert str(found["relu"]) == "float32[7, 5]"
    assert not found["tanh"].is_seen and not later.output.facts.is_seen


def test_a_list_that_is_filled_later_tells_nothing() -> None:
    found = inferred_of("""
      %list : Tensor[] = prim::ListConstruct(%x)
      %grown : Tensor[] = aten::append(%list, %x)
      %y : Tensor = aten::cat(%list, %zero)
      return (%y)
    """)
    assert found["y"].known_sizes is None and not found["y"].is_seen


def _breaks(change: Callable[[Graph], None]) -> None:
    @graph_pass("breaks")
    def breaks(graph: Graph, notes: NoteBook) -> bool:
        """Change a graph."""
        change(graph)
        return True

    program = program_of(HEAD + "  %y : Tensor = aten::flatten(%x, %zero, %one)\n  return (%y)\n")
    record_facts(program, Examples({"forward": (torch.rand(7, 5), 1)}))
    run_passes(program, [breaks], check=True)


def test_a_pass_that_leaves_wrong_facts_is_found() -> None:
    def flattens_less(graph: Graph) -> None:
        node = next(node for node in graph.walk() if node.op == "aten::flatten")
        node.replace_input(1, node.inputs[2])

    with pytest.raises(PassError, match=r"aten::flatten.* makes float32\[7, 5\], and float32\[35\] is known of %y"):
        _breaks(flattens_less)
