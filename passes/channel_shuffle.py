"""Channel shuffles that are written with tensors of five dimensions become the operator of that name."""

from __future__ import annotations

from dataclasses import dataclass, field

from mobopt.ir import Graph, Node, Origin, Program, Value
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.manager import Pass
from mobopt.passes.note_kinds import SHUFFLE_FOUND
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import only_user, producer_of, replace_node

_VIEWS = ("aten::view", "aten::reshape")


@dataclass(frozen=True)
class RecognizeChannelShuffle(Pass):
    """Find groups made a dimension, exchanged with the channels of a group, and put together again.

    Given (%x of sizes [n, c, h, w] on the example):
        %a = aten::view(%x, [n, 2, c / 2, h, w])
        %b = aten::transpose(%a, 1, 2)
        %d = aten::contiguous(%b, 0)          # or nothing
        %y = aten::view(%d, [n, c, h, w])
    Result:
        %y = aten::channel_shuffle(%x, 2)

    GPU tensors have at most four dimensions; the operator has forms that keep to them. Without example inputs nothing
    is found, for only sizes tell a shuffle from other changes of shape.
    """

    name = "recognize_channel_shuffle"
    examples: Examples = field(default_factory=Examples)

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Replace in every method."""
        record_facts(program, self.examples)
        changed = [self._rewrite_graph(graph, notes) for graph in program.methods.values()]
        return any(changed)

    def _rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        changed = False
        for node in list(graph.walk()):
            found = _shuffled(node)
            if found is None:
                continue
            x, groups, others = found
            notes.add(SHUFFLE_FOUND, node, groups=groups)
            shuffle = replace_node(graph, node, "aten::channel_shuffle", [x, graph.constant(groups, name="groups")])
            shuffle.origin |= others
            changed = True
        return changed


def _shuffled(last: Node) -> tuple[Value, int, Origin] | None:
    """What is shuffled, its number of groups, and where the other nodes come from, if a node ends a shuffle."""
    if last.op not in _VIEWS or last.qualified_op == "aten::view.dtype":
        return None
    swapped = producer_of(last.inputs[0], "aten::contiguous")
    swap = producer_of(swapped.inputs[0] if swapped is not None else last.inputs[0], "aten::transpose")
    if swap is None or swap.overload != "int":
        return None
    first = producer_of(swap.inputs[0], *_VIEWS)
    if first is None or first.qualified_op == "aten::view.dtype" or only_user(first.output) is not swap:
        return None
    x = first.inputs[0]
    dims = [value.constant if value.is_constant else None for value in swap.inputs[1:]]
    before, parts, after = (value.facts.known_sizes or () for value in (x, first.output, last.output))
    if sorted(dim % 5 for dim in dims if dim is not None) != [1, 2] or len(before) != 4 or before != after:
        return None
    whole = len(parts) == 5 and (parts[0], *parts[3:]) == (before[0], *before[2:])
    others = [first.origin, swap.origin, *([] if swapped is None else [swapped.origin])]
    return (x, parts[1], Origin.union(others)) if whole else None
