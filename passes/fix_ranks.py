"""Numbers of dimensions become constants: those that operators tell, and those of the example inputs."""

from __future__ import annotations

from dataclasses import dataclass, field

from mobopt.ir import Graph, Node, Program, Value
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.manager import Pass
from mobopt.passes.note_kinds import RANK_FIXED
from mobopt.passes.notes import NoteBook
from mobopt.passes.rank_bounds import fold_rank_checks
from mobopt.passes.rewriting import producer_of


@dataclass(frozen=True)
class FixRanks(Pass):
    """Replace what asks for a tensor's number of dimensions, so that branches on it can go.

    Given (an example of 4 dimensions):
        %rank : int = aten::dim(%x)
        %flat : bool = aten::eq(%rank, %three)
    Result:
        %flat : bool = aten::eq(%four, %three)

    Scripted models branch on ranks often (``interpolate`` has one branch for each), and a GPU file is for one rank.
    """

    name = "fix_ranks"
    examples: Examples = field(default_factory=Examples)

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Replace in every method."""
        record_facts(program, self.examples)
        changed = False
        for graph in program.methods.values():
            changed |= _fix(graph, notes)
            changed |= fold_rank_checks(graph, notes)
        return changed


def _fix(graph: Graph, notes: NoteBook) -> bool:
    changed = False
    for node in list(graph.walk()):
        tensor = _asked_for(node)
        rank = None if tensor is None else tensor.facts.known_rank
        if rank is None:
            continue
        notes.add(RANK_FIXED, node, rank=rank)
        node.output.replace_all_uses_with(graph.constant(rank, name=node.output.name))
        node.destroy()
        changed = True
    return changed


def _asked_for(node: Node) -> Value | None:
    """The tensor whose number of dimensions a node asks for."""
    if node.op == "aten::dim":
        return node.inputs[0]
    size = producer_of(node.inputs[0], "aten::size") if node.op == "aten::len" else None
    return size.inputs[0] if size is not None and not size.overload else None
