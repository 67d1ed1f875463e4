"""Layers with constant weights become operators on packed contexts."""

from __future__ import annotations

from dataclasses import dataclass, field

from mobopt.errors import InputError
from mobopt.ir import Graph, Node, Program, Value
from mobopt.ops.targets import Target, judge
from mobopt.ops.targets.table import release_key
from mobopt.options import DEFAULT_RUNTIME
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.manager import After, Pass
from mobopt.passes.note_kinds import NOT_PACKED, PACKED
from mobopt.passes.notes import NoteBook
from mobopt.passes.prepack_metal import METAL_RULES
from mobopt.passes.prepack_rules import DerivedTensors, Packer, Rule
from mobopt.passes.prepack_vulkan import VULKAN_RULES
from mobopt.passes.prepack_xnnpack import XNNPACK_RULES
from mobopt.passes.ranks import known_rank

RULES: dict[str, dict[str, Rule]] = {"vulkan": VULKAN_RULES, "metal": METAL_RULES, "xnnpack": XNNPACK_RULES}
"""For each backend, how its runtime's operators stand for layers."""


@dataclass(frozen=True)
class InsertPrepack(Pass):
    """Split each layer that the runtime has packed operators for into packing of weights and a run.

    Given:
        %y : Tensor = aten::conv2d(%x, %w, %b, %stride, %padding, %dilation, %groups)
    Result:
        %c : Conv2dPackedContext = vulkan_prepack::create_conv2d_context(%w, %b, %stride, ..., %groups, %none, %none)
        %y : Tensor = vulkan_prepack::run_conv2d_context(%x, %c)

    Metal packs conv2d and linear; XNNPACK these and conv_transpose2d; Vulkan these and gru and lstm, from 2.0 on
    batch_norm, from 2.2 on layer_norm, from 2.6 on conv1d. Anything else stays ``aten``.

    Raises:
        InputError: the backend is not one of these, or the runtime is not a release's number.
    """

    name = "insert_prepack"
    after = (
        After("canonicalize", "it knows only the forms that this makes"),
        After("fold_batch_norm", "normalisations are folded into plain weights"),
        After("legalize", "packing fixes the form of layers"),
    )
    backend: str = "vulkan"
    """``vulkan``, ``metal`` or ``xnnpack``."""
    runtime: str = DEFAULT_RUNTIME
    """The release of PyTorch that the file is for."""
    target: Target | None = None
    """With a target, a layer that it computes wrongly or lacks stays plain, for the CPU of the device."""
    examples: Examples = field(default_factory=Examples)

    def __post_init__(self) -> None:
        if self.backend not in RULES:
            raise InputError(f"backend is {self.backend!r}; layers are packed for {', '.join(RULES)}")
        if not all(part.isdecimal() for part in self.runtime.split(".")):
            raise InputError(f"runtime is {self.runtime!r}; give a release of PyTorch, such as {DEFAULT_RUNTIME}")

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Rewrite every layer whose weights are known."""
        derived = DerivedTensors()
        if self.target is not None:
            record_facts(program, self.examples)
        changed = False
        for graph in program.methods.values():
            packer = Packer(graph, derived)
            for node, rule, reason in self._layers(graph):
                if reason:
                    notes.add(NOT_PACKED, node, reason=reason)
                else:
                    notes.add(PACKED, node)
                    rule.rewrite(packer, node)
                    changed = True
        return changed

    def _layers(self, graph: Graph) -> list[tuple[Node, Rule, str]]:
        """Nodes that there is a rule for, and why they stay as they are, if they do."""
        found: list[tuple[Node, Rule, str]] = []
        roots: dict[Value, Value] = {}
        for node in graph.walk():
            rule = RULES[self.backend].get(node.qualified_op)
            if rule is not None:
                reason = self._refusal(rule, node) or rule.refusal(node, known_rank(node.inputs[0], roots))
                found.append((node, rule, reason))
        return found

    def _refusal(self, rule: Rule, node: Node) -> str:
        """Why a rule is not for the runtime, or the runtime's operator not for the node."""
        if release_key(self.runtime) < release_key(rule.since):
            return f"the runtime of {self.runtime} has no operator for it, that of {rule.since} has"
        if self.target is None:
            return ""
        finding = judge(node, self.target)
        return "" if finding.verdict == "native" else f"for {self.target} {finding.why}"
