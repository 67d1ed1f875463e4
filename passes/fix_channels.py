"""Numbers of channels that follow from weights become constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mobopt.ir import Graph, Node, Program, Value
from mobopt.ir.types import TENSOR
from mobopt.ops.effects import listed_items
from mobopt.ops.records import Like, record_of
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.manager import After, Pass
from mobopt.passes.note_kinds import CHANNELS_FIXED
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import argument, is_constant_tensor, producer_of


@dataclass(frozen=True)
class FixChannels(Pass):
    """Replace what asks for a number of channels that the weights before it decide.

    Given (%w a weight of 12 x 8 x 3 x 3):
        %y : Tensor = aten::conv2d(%x, %w, %b, %stride, %padding, %dilation, %one)
        %groups : int = aten::size(%y, %one)
        %z : Tensor = aten::conv2d(%y, %blur, %none, %two, %padding, %dilation, %groups)
    Result:
        %z : Tensor = aten::conv2d(%y, %blur, %none, %two, %padding, %dilation, %twelve)

    The example inputs only tell that dimension 1 is that of channels. Blurred pooling is written so.
    """

    name = "fix_channels"
    after = (After("fix_ranks", "numbers of channels follow from ranks"),)
    examples: Examples = field(default_factory=Examples)

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Replace in every method."""
        record_facts(program, self.examples)
        changed = False
        for graph in program.methods.values():
            changed |= _fix(graph, notes)
        return changed


def _fix(graph: Graph, notes: NoteBook) -> bool:
    changed = False
    known: dict[Value, int | None] = {}
    for node in list(graph.walk()):
        for tensor, number in _asked_for(node):
            channels = _channels(tensor, known)
            if channels is not None and number.uses:
                notes.add(CHANNELS_FIXED, node, channels=channels)
                number.replace_all_uses_with(graph.constant(channels, name=number.name))
                changed = True
    return changed


def _asked_for(node: Node) -> Sequence[tuple[Value, Value]]:
    """Tensors and the results of a node that are their size in dimension 1."""
    if node.qualified_op == "aten::size.int":
        return [(node.inputs[0], node.output)] if _is_one(node.inputs[1]) else []
    sizes = producer_of(node.inputs[0], "aten::size") if node.inputs else None
    if sizes is None or sizes.overload:
        return []
    if node.op == "aten::__getitem__" and _is_one(node.inputs[1]):
        return [(sizes.inputs[0], node.output)]
    if node.op == "prim::ListUnpack" and len(node.outputs) > 1:
        return [(sizes.inputs[0], node.outputs[1])]
    return []


def _is_one(value: Value) -> bool:
    return value.is_constant and value.constant == 1


def _channels(value: Value, known: dict[Value, int | None]) -> int | None:
    """How many channels a tensor has for inputs of all sizes; None if that is not known."""
    if value not in known:
        known[value] = None if value.producer is None else _of_node(value.producer, value, known)
    return known[value]


def _of_node(node: Node, value: Value, known: dict[Value, int | None]) -> int | None:
    if node.outputs[0] is not value:
        return None
    record = record_of(node.qualified_op)
    match record.channels:
        case Like.WEIGHT | Like.TRANSPOSED_WEIGHT:
            return _of_convolution(node)
        case Like.FIRST if record.spatial is None or _has_batch(node.inputs[0], record.spatial):
            return _channels(node.inputs[0], known)
        case Like.OPERANDS:
            operands = [item for item in node.inputs if item.type == TENSOR and _same_rank(item, value)]
            found = [_channels(item, known) for item in operands]
            return max((number for number in found if number is not None and number > 1), default=None)
        case Like.PARTS if _is_one(node.inputs[1]):
            parts = [_channels(item, known) for item in listed_items(node.inputs[0]) or ()]
            return None if not parts or None in parts else sum(part for part in parts if part is not None)
    return None


def _has_batch(value: Value, spatial: int) -> bool:
    """Whether dimension 1 of what a window slides over is that of channels: without a batch, it is another."""
    return value.facts.known_rank == spatial + 2


def _same_rank(one: Value, other: Value) -> bool:
    """Whether dimension 1 of both is the same dimension."""
    sizes = [item.facts.known_sizes for item in (one, other)]
    return sizes[0] is not None and sizes[1] is not None and len(sizes[0]) == len(sizes[1])


def _of_convolution(node: Node) -> int | None:
    weight, seen = node.inputs[1], node.inputs[0].facts
    if not is_constant_tensor(weight) or seen.known_sizes is None or seen.rank != weight.constant.dim():
        return None
    if record_of(node.qualified_op).channels == Like.WEIGHT:
        return int(weight.constant.shape[0])
    groups = argument(node, "groups")
    return int(weight.constant.shape[1]) * groups.constant if groups.is_constant else None
