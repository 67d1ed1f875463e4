"""What the target computes wrongly or lacks is written with operators that it computes right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mobopt.errors import PassError
from mobopt.ir import Block, Graph, Node, Program, Value
from mobopt.ir.guards import UndecidedError
from mobopt.ops.aliases import Aliases
from mobopt.ops.effects import written_inputs
from mobopt.ops.targets import Finding, Target, judge
from mobopt.options import LEGALIZE_LEVELS, MobileOptimizerType
from mobopt.passes.facts import Examples, may_have_halves, record_facts
from mobopt.passes.legalizations.site import FULL, Refused, Rewrite, Site, rewrites
from mobopt.passes.manager import Pass
from mobopt.passes.note_kinds import NOT_REWRITTEN, REWRITTEN, WOULD_FIX_SIZES
from mobopt.passes.notes import NoteBook

_ROUNDS = 12
"""Rewrites of rewrites; more would mean that two undo each other."""


@dataclass(frozen=True)
class Legalize(Pass):
    """Apply the rewrites that the target's rows name, until none is left to apply.

    Given (a target that pads max pooling with zeros):
        %y : Tensor = aten::max_pool2d(%x, [3, 3], [2, 2], [1, 1], [1, 1], False)
    Result:
        %p : Tensor = aten::replication_pad2d(%x, [1, 1, 1, 1])
        %y : Tensor = aten::max_pool2d(%p, [3, 3], [2, 2], [0, 0], [1, 1], False)

    ``level`` is ``off``, ``safe`` (only rewrites that leave the model right for inputs of every size) or ``full``.
    Where the examples' sizes are only guessed, ``full`` does what ``safe`` does.
    """

    name = "legalize"
    target: Target
    level: str = FULL
    examples: Examples = field(default_factory=Examples)
    blocked: frozenset[MobileOptimizerType] = frozenset()
    """Optimisations to leave out; rewrites that do the same are left out too."""
    most: int | None = None
    """How many rewrites to apply, the first ones; None: all."""

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Rewrite in rounds; sizes are recorded anew in each."""
        if self.level == LEGALIZE_LEVELS[0]:
            return False
        refused: set[Node] = set()
        applied = 0
        for _ in range(_ROUNDS):
            left = None if self.most is None else self.most - applied
            now = self._round(program, notes, refused, left)
            applied += now
            if not now:
                return applied > 0
        raise PassError(
            f"rewrites for {self.target} undo each other, which is a fault of mobopt; please report the model, and "
            "convert it with --legalize safe (or off) until it is mended"
        )

    def _round(self, program: Program, notes: NoteBook, refused: set[Node], most: int | None) -> int:
        """Rewrite each node at most once; gives the number of rewrites."""
        # On Vulkan the sizes of any tensor may be too much, and dtypes are not known without a run.
        may_lack = self.target.backend == "vulkan" or may_have_halves(program, self.examples)
        if not may_lack and not any(self._suspects(program, ("wrong", "missing", "unknown"))):
            return 0
        record_facts(program, self.examples)
        written = [graph for graph in program.methods.values() if any(map(written_inputs, graph.walk()))]
        applied = 0
        for graph, node, finding in self._suspects(program, ("wrong", "missing")):
            if applied == most:
                break
            choices = [item for item in self._rewrites_of(finding) if item.name not in self._blocked_rewrites()]
            if node in refused or not choices:
                continue
            block, start, end = node.block, node.previous, node.next
            assert block is not None
            if any(self._apply(program, graph, node, finding, item, notes, graph in written) for item in choices):
                applied += 1
                if finding.is_by_size:  # what is open for the same operator again can't be closed by the same way
                    made = _nodes_between(block, start, end)
                    refused.update(new for new in made if new.qualified_op == node.qualified_op)
            else:
                refused.add(node)
        return applied

    def _rewrites_of(self, finding: Finding) -> list[Rewrite]:
        """What a row names, the cheaper one first; one for the example's sizes only where they may be believed."""
        row = finding.row
        if row is None:
            return []
        may_fix = self.level == FULL and not self.examples.are_guessed
        names = (row.rewrite_for_sizes if may_fix else "", row.rewrite)
        return [rewrites()[name] for name in names if name]

    def _blocked_rewrites(self) -> set[str]:
        return {name for kind in self.blocked for name in _SAME_AS.get(kind, ())}

    def _suspects(self, program: Program, verdicts: tuple[str, ...]) -> Iterator[tuple[Graph, Node, Finding]]:
        """Nodes with one of these verdicts, and those that have one for some of the declared sizes."""
        for graph in program.methods.values():
            for node in graph.walk():
                if node.op.startswith("prim::"):
                    continue
                finding = judge(node, self.target, program.attributes)
                if finding.verdict in verdicts or finding.is_by_size:
                    yield graph, node, finding

    def _apply(
        self,
        program: Program,
        graph: Graph,
        node: Node,
        finding: Finding,
        rewrite: Rewrite,
        notes: NoteBook,
        is_written: bool,
    ) -> bool:
        if rewrite.level == FULL and (self.level != FULL or self.examples.are_guessed):
            way = "give example inputs" if self.level == FULL else "--legalize full does it"
            notes.add(WOULD_FIX_SIZES, node, why=finding.why, rewrite=rewrite.name, way=way)
            return False
        assert node.block is not None
        start = node.previous
        try:
            site = Site(program, graph, node, self.target)
            result = rewrite.apply(site)
            values = result if isinstance(result, tuple) else (result,)
            if is_written or any(value in node.inputs for value in values):
                _check_memory(graph, node, values)
        except (Refused, UndecidedError) as reason:
            while node.previous is not None and node.previous is not start:
                node.previous.destroy()
            notes.add(NOT_REWRITTEN, node, why=finding.why, reason=str(reason))
            return False
        notes.add(
            REWRITTEN,
            node,
            why=finding.why,
            rewrite=rewrite.name,
            summary=rewrite.summary,
            fixes_sizes=rewrite.level == FULL,
            remark=site.remark,
        )
        for old, new_value in zip(node.outputs, values, strict=True):
            if old.is_used and new_value not in node.inputs and not new_value.is_constant:
                new_value.facts = old.facts  # which were seen
            old.replace_all_uses_with(new_value)
        node.destroy()
        return True


def _nodes_between(block: Block, start: Node | None, end: Node | None) -> Iterator[Node]:
    """The nodes of a block behind one, or from the first, and before another, or to the last."""
    node = next(iter(block.nodes), None) if start is None else start.next
    while node is not None and node is not end:
        yield node
        node = node.next


_SAME_AS = {MobileOptimizerType.CONV_1D_TO_2D: ("convolve_1d_as_2d",)}
"""Rewrites that do what an optimisation does."""


def _check_memory(graph: Graph, node: Node, values: Sequence[Value]) -> None:
    """Refuse results that share memory with an operand, or no longer do, where a write to one may be seen in the other.

    The caller may write to what is returned, and other methods to the model's attributes. (What the GPU makes of an
    operand is a copy, whatever the operator.)
    """
    aliases = Aliases(graph)
    for old, new in zip(node.outputs, values, strict=True):
        for operand in node.inputs:
            if aliases.may_alias(operand, old) == aliases.may_alias(operand, new):
                continue
            if aliases.writers(operand) or aliases.writers(old):
                raise Refused(f"%{operand.name} or %{old.name} is changed in place, and would be seen in the other")
            if operand is new and aliases.is_external(operand) and aliases.outlives(old):
                raise Refused(f"%{old.name} would be %{operand.name} itself, which may be changed after the call")
