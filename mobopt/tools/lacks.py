"""What an optimised model asks of its target that the target lacks or computes wrongly."""

from __future__ import annotations

from dataclasses import dataclass

from mobopt.ir import Node, Program, Value, describe
from mobopt.ir.facts import TensorFacts, facts_of_constant
from mobopt.ir.types import TENSOR
from mobopt.ops.effects import handles_tensors, holds_tensors, listed_items, reads_metadata
from mobopt.ops.targets import Finding, Target, judge
from mobopt.options import OWN_RUNTIME, Settings
from mobopt.passes.backends import target_of
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.place import transferred
from mobopt.passes.rewriting import is_constant_tensor


@dataclass(frozen=True)
class Lack:
    """One node that the target can't run, or runs wrongly."""

    operator: str
    node: str
    source: str
    """Where in the model it comes from."""
    operands: str
    """Dtypes and sizes of its tensors, as far as they are known."""
    verdict: str
    why: str
    help: str
    """What the author of the model can change."""

    def __str__(self) -> str:
        place = f" at {self.source}" if self.source else ""
        advice = f"; {self.help}" if self.help else ""
        return f"{self.node}{place} on {self.operands}: {self.verdict}, {self.why}{advice}"


def find_lacks(program: Program, settings: Settings, examples: Examples) -> list[Lack]:
    """Nodes of an optimised Program that the target lacks or computes wrongly.

    After legalisation for Vulkan, what the GPU lacks runs on the CPU of the same release, so that is what is asked.

    Raises:
        InputError: the Program can't be run on the examples.
    """
    if settings.runtime == OWN_RUNTIME:
        return []
    has_fallback = settings.backend == "vulkan" and settings.legalize != "off"
    target = Target("cpu", settings.runtime) if has_fallback else target_of(settings)
    record_facts(program, examples)
    lacks: list[Lack] = []
    for graph in program.methods.values():
        for node in graph.walk():
            if is_judged(node):
                finding = judge(node, target, program.attributes)
                if finding.verdict in ("wrong", "missing"):
                    lacks.append(_lack(node, finding))
    return lacks


def is_judged(node: Node) -> bool:
    """Whether a node computes with tensors, so that the target's kernels matter; lists and dictionaries are the
    interpreter's, whatever is in them."""
    if (
        node.op.startswith("prim::")
        or reads_metadata(node)
        or not handles_tensors(node)
        or transferred(node) is not None
    ):
        return False
    return any(holds_tensors(value.type) for value in (*node.inputs, *node.outputs))


def _lack(node: Node, finding: Finding) -> Lack:
    advice = finding.row.help if finding.row is not None else ""
    return Lack(
        node.qualified_op, describe(node), node.source, operands_text(node), finding.verdict, finding.why, advice
    )


def operands_text(node: Node) -> str:
    """Dtypes and sizes of a node's tensors, also in lists: ``float32[1, 3, 7, 5], float32[8, 3, 3, 3]``."""
    found = [_facts_of(item) for value in node.inputs for item in listed_items(value) or (value,)]
    return ", ".join(str(item) for item in found if item is not None) or "no tensors"


def _facts_of(value: Value) -> TensorFacts | None:
    if is_constant_tensor(value):
        return facts_of_constant(value.constant)
    return value.facts if value.type == TENSOR else None
