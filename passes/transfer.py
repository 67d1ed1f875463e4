"""Every tensor that enters a method goes to the GPU, and every one that leaves comes back."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch

from mobopt.ir import Attribute, Graph, Node, Program, Value, print_graph
from mobopt.ir.types import BOOL
from mobopt.ops.aliases import Aliases
from mobopt.ops.effects import holds_tensors
from mobopt.ops.targets import Target
from mobopt.ops.targets.table import IMAGE_LIMIT
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.manager import After, Pass
from mobopt.passes.moving import Mover
from mobopt.passes.note_kinds import FLAG_WAS_SET, INPUT_MAY_CHANGE
from mobopt.passes.notes import NoteBook
from mobopt.passes.place import cancel_transfers, lies_on_cpu, place_nodes

FLAG = "requires_backend_transfers"
"""Attribute that tells PyTorch's runtime that the graph moves its tensors itself."""


@dataclass(frozen=True)
class Transfer(Pass):
    """Insert transfers to and from the GPU, also inside tuples, lists, dictionaries and optional values.

    Given:
        graph(%self, %x : Tensor):
          %y : Tensor = aten::relu(%x)
          return (%y)
    Result:
        graph(%self, %x : Tensor):
          %x.vulkan : Tensor = aten::to(%x, "vulkan", None, False, False)
          %y : Tensor = aten::relu(%x.vulkan)
          %y.cpu : Tensor = aten::to(%y, "cpu", None, False, False)
          return (%y.cpu)

    With a target, nodes that it lacks or computes wrongly run on the CPU (:mod:`mobopt.passes.place`); without
    ``automatic`` only they get transfers, and the app moves inputs and results.
    """

    name = "transfer"
    after = (
        After("fuse_clamp", "transfers would stand between what is fused"),
        After("fold_prepack", "contexts are made on the CPU"),
        After("legalize", "what is rewritten may run on the GPU"),
    )
    device: str = "vulkan"
    target: Target | None = None
    examples: Examples = field(default_factory=Examples)
    automatic: bool = True

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Insert transfers in every method that takes tensors, once."""
        if FLAG in program.attributes:
            notes.add(FLAG_WAS_SET, FLAG)
            return False
        record_facts(program, self.examples)
        changed = self.automatic
        for name, graph in program.methods.items():
            if name != "forward" and not any(holds_tensors(value.type) for value in graph.inputs[1:]):
                continue
            before = print_graph(graph, digests=False, facts=False)
            kept: set[Value] = set()
            ordered: set[Node] = set()
            if self.target is not None:
                kept = place_nodes(graph, self.target, program.attributes, notes, ordered)
            if self.automatic:
                self._enter(graph, kept, notes, ordered)
                self._leave(graph, notes, ordered)
            cancel_transfers(graph, ordered)
            changed = changed or print_graph(graph, digests=False, facts=False) != before
        if self.automatic:
            program.attributes[FLAG] = Attribute(BOOL, False)
        return changed

    @property
    def _limit(self) -> int:
        """Largest extent of an image."""
        return IMAGE_LIMIT if self.target is None else self.target.image_limit

    def _enter(self, graph: Graph, kept: Collection[Value], notes: NoteBook, ordered: set[Node]) -> None:
        anchor = graph.block.nodes.first or graph.block.returns
        mover = Mover(
            graph,
            torch.device(self.device),
            self.device,
            notes,
            ordered,
            lambda value: not value.facts.is_contiguous,
        )
        aliases = Aliases(graph)
        for value in graph.inputs[1:]:
            readers = [(node, index) for node, index in value.uses if node is not graph.block.returns]
            if not readers or not holds_tensors(value.type) or lies_on_cpu(value, self._limit) or value in kept:
                continue
            if any(node.op.endswith("_") for node in aliases.writers(value)):
                notes.add(INPUT_MAY_CHANGE, value)
            moved = mover.moved(value, anchor)
            for node, index in readers:
                node.replace_input(index, moved)

    def _leave(self, graph: Graph, notes: NoteBook, ordered: set[Node]) -> None:
        mover = Mover(graph, torch.device("cpu"), "cpu", notes, ordered)
        returns = graph.block.returns
        for index, value in enumerate(returns.inputs):
            if value not in graph.inputs and not lies_on_cpu(value, self._limit):
                returns.replace_input(index, mover.returned(value, returns))
        for node in mover.rebuilt:
            node.destroy()
