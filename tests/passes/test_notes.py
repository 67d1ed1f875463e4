"""Notes are data: what they say is made of kind and parameters, and nothing depends on the words."""

import json

import pytest
import torch
from pass_harness import program_of

from mobopt import optimize_for_mobile
from mobopt.ir import Origin
from mobopt.passes import note_kinds
from mobopt.passes.manager import run_passes
from mobopt.passes.note_kinds import FUSED_WITH, REWRITTEN, RUNS_ON_CPU, STAYS
from mobopt.passes.notes import Note, NoteBook, NoteKind
from mobopt.passes.remove_dropout import RemoveDropout
from mobopt.samples.unknown_sizes import unknown_notes

TEXT = """
graph(%self : __torch__.M,
      %x : Tensor):
  %rate : float = prim::Constant[value=0.5]()
  %no : bool = prim::Constant[value=0]()
  %y : Tensor = aten::relu(%x) # model.py:7
  %z : Tensor = aten::dropout(%y, %rate, %no) # model.py:8
  return (%z)
"""
KINDS = [item for item in vars(note_kinds).values() if isinstance(item, NoteKind)]


def test_kinds_have_names_of_their_own() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS) > 30
    assert all(getattr(note_kinds, kind.name.upper()) is kind for kind in KINDS)


def test_a_note_has_kind_node_origin_and_parameters() -> None:
    program = program_of(TEXT)
    program.number_nodes()
    relu, dropout = program.methods["forward"].walk()
    book = NoteBook("a_pass")
    book.add(FUSED_WITH, relu, other=dropout)
    book.add(FUSED_WITH, relu, other=dropout)  # said once
    book.add(STAYS, dropout.output, reason="it is read")
    book.add(STAYS, "flag", reason="it is set")
    fused, of_value, of_attribute = book.notes
    assert (fused.node, fused.origin, fused.subject) == (relu, relu.origin, "aten::relu %y")
    assert fused.parameters == {"other": "aten::dropout %z"}
    assert str(fused) == "a_pass: aten::relu %y (model.py:7) fused with aten::dropout %z"
    assert str(of_value) == "a_pass: %z (model.py:8) stays: it is read" and not of_value.done
    assert (of_attribute.origin, of_attribute.message) == (Origin(), "stays: it is set")
    assert json.loads(json.dumps(fused.data())) == {
        "pass_name": "a_pass",
        "kind": "fused_with",
        "subject": "aten::relu %y",
        "message": "fused with aten::dropout %z",
        "source": "model.py:7",
        "done": True,
        "rewrite": "",
        "parameters": {"other": "aten::dropout %z"},
    }


@pytest.mark.parametrize(("fixes", "remark"), [(False, ""), (True, "2 parts")])
def test_words_of_a_rewrite(fixes: bool, remark: str) -> None:
    given = {"why": "it is slow", "rewrite": "split", "summary": "In parts", "fixes_sizes": fixes, "remark": remark}
    note = Note("legalize", REWRITTEN, "aten::relu %y", parameters=given)
    end = " (fixes the file to the example's sizes); 2 parts" if fixes else ""
    assert note.message == f"it is slow; rewritten by split: In parts{end}" and note.rewrite == "split"


def test_a_note_knows_the_line_of_what_is_gone() -> None:
    program = program_of(TEXT)
    program.number_nodes()
    (run,) = run_passes(program, [RemoveDropout()], check=True)
    assert [str(note) for note in run.result.notes] == [
        "remove_dropout: aten::dropout %z (model.py:8) removed: it does nothing in evaluation mode"
    ]


class Selecting(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x[x > 0]) * 2


def test_nothing_depends_on_words() -> None:
    script = torch.jit.script(Selecting())
    with pytest.warns(UserWarning, match="operators run on the phone's CPU"):
        notes = optimize_for_mobile(script, backend="vulkan", example_inputs=[torch.rand(1, 3, 5, 7)]).notes
    found = unknown_notes(notes)
    assert found and all(note.kind is RUNS_ON_CPU for note in found)
    words = RUNS_ON_CPU.words
    try:
        object.__setattr__(RUNS_ON_CPU, "words", "is somewhere else, for {reason}")
        assert unknown_notes(notes) == found and found[0].message.startswith("is somewhere else")
    finally:
        object.__setattr__(RUNS_ON_CPU, "words", words)
