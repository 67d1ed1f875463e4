"""What is known of tensors, as a part of values and of the text of graphs."""

from __future__ import annotations

import pytest

from mobopt.errors import GraphError
from mobopt.ir import Program, parse_graph, print_graph
from mobopt.ir.facts import NOTHING, RANK, UNKNOWN, UNSEEN, TensorFacts, parse_facts
from mobopt.ir.guards import UndecidedError, UnknownFactError, closed_guards

IMAGE = TensorFacts("float32", (2, 3, 7, 5))
CASES = {
    "float32[2, 3, 7, 5]": IMAGE,
    "int64[]": TensorFacts("int64", ()),
    "bool[0]": TensorFacts("bool", (0,)),
    "?[2, 3]": TensorFacts(None, (2, 3)),
    "float16[2, 3] several": TensorFacts("float16", (2, 3), RANK),
    "float32[2] several ranks": TensorFacts("float32", (2,), NOTHING),
    "int64[6, 2] several varying": TensorFacts("int64", (6, 2)).varying(has_rank=True),
    "int64[6, 2] several ranks varying strided": TensorFacts(
        "int64", (6, 2), NOTHING, is_contiguous=False, varies=True
    ),
    "?[?] unseen": UNSEEN,
}


@pytest.mark.parametrize("text", CASES)
def test_text_is_read_as_what_it_was_written_from(text: str) -> None:
    assert CASES[text].text == text
    assert parse_facts(text) == CASES[text]


def test_sizes_with_symbols_are_read_as_they_were_written() -> None:
    guards = closed_guards()
    guards.symbol("s0", 1, 9, 4)
    guards.symbol("s1", 2, example=7)
    for text in ("float32[s0, 3, (s1 + 1)//2]", "int64[max(0, s0 - 3)] strided", "?[s0*s1]"):
        assert parse_facts(text, guards).text == text
    facts = parse_facts("float32[s0, 3, s1//2]", guards)
    assert (facts.seen_sizes, facts.known_sizes, facts.largest_sizes, facts.rank) == ((4, 3, 3), None, (9, 3, 3), 3)
    assert facts == parse_facts("float32[s0, 3, s1//2]", guards) != parse_facts("float32[s0, 3, s1]", guards)
    assert len({facts, parse_facts("float32[s0, 3, s1//2]", guards)}) == 1
    assert facts.merged(facts).known_sizes is None
    assert facts.varying(has_rank=True).text == "float32[4, 3, 3] several varying"
    with pytest.raises(UndecidedError, match="s0 >= 5 is true of only some of the sizes that inputs may have"):
        bool(facts.sizes[0] > 4)
    with pytest.raises(UndecidedError, match="s0 is not the same for all sizes"):
        int(facts.sizes[0])
    with pytest.raises(GraphError, match="is written as float32"):
        parse_facts("float32[s0]")


@pytest.mark.parametrize(
    "text", ["float32", "float99[1]", "float32[1", "float32[-1]", "float32[1] often", "float32[ a]", "load[1]", ""]
)
def test_other_text_is_one_clear_error(text: str) -> None:
    with pytest.raises(GraphError, match="is written as float32"):
        parse_facts(text)


def test_of_several_sizes_what_is_always_so_stays() -> None:
    rank = IMAGE.merged(TensorFacts("float32", (2, 3, 7, 11)))
    assert (rank.known_dtype, rank.known_sizes, rank.known_rank, rank.seen_sizes) == ("float32", None, 4, (2, 3, 7, 5))
    none = rank.merged(TensorFacts("int64", (2,)))
    assert (none.known_dtype, none.known_sizes, none.known_rank) == (None, None, None)
    assert IMAGE.merged(IMAGE) == IMAGE
    assert rank.merged(TensorFacts("float32", (2, 3, 7, 11))).known_sizes is None  # the first had others
    assert not UNSEEN.merged(IMAGE).is_seen


def test_what_is_not_known_is_asked_for_in_vain() -> None:
    for name in ("dtype", "sizes", "rank", "numel", "nchw"):
        with pytest.raises(UnknownFactError):
            getattr(UNKNOWN, name)
    assert (IMAGE.rank, IMAGE.numel, TensorFacts("int8", (3, 5)).nchw) == (4, 210, (1, 1, 3, 5))


TEXT = """graph(%self : __torch__.M,
      %x : Tensor float32[2, 3],
      %flag : bool):
  %y : Tensor float32[2, 3] several = prim::If(%flag)
    block0():
      %a : Tensor float32[2, 3] = aten::relu(%x)
      -> (%a)
    block1():
      %b : Tensor ?[?] unseen = aten::tanh(%x)
      -> (%b)
  %l : Tensor[] = prim::ListConstruct(%x, %y)
  return (%l)
"""


def test_graphs_print_and_read_it() -> None:
    graph = parse_graph(TEXT)
    assert print_graph(graph) == TEXT
    assert graph.inputs[1].facts == TensorFacts("float32", (2, 3)) and graph.inputs[2].facts is UNKNOWN
    bare = print_graph(graph, facts=False)
    assert "[2, 3]" not in bare and "unseen" not in bare and print_graph(parse_graph(bare)) == bare
    with pytest.raises(GraphError, match="float33"):
        parse_graph(TEXT.replace("float32", "float33"))


def test_copies_and_successors_know_it_too() -> None:
    graph = parse_graph(TEXT)
    assert print_graph(Program({"forward": graph}).clone().methods["forward"]) == TEXT
    relu = next(node for node in graph.walk() if node.op == "aten::relu")
    new = graph.create("aten::sigmoid", relu.inputs).insert_before(relu)
    relu.output.replace_all_uses_with(new.output)
    assert new.output.facts == TensorFacts("float32", (2, 3))
    tanh = next(node for node in graph.walk() if node.op == "aten::tanh")
    new.output.replace_all_uses_with(tanh.output)  # which knows something of its own
    assert tanh.output.facts == UNSEEN
