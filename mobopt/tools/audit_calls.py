"""What becomes of each operator of a model on a phone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mobopt.ir import Graph, Node, Program, Value, describe
from mobopt.ir.types import TENSOR
from mobopt.ops.costs import cost_of_program
from mobopt.ops.effects import holds_tensors
from mobopt.ops.targets import Finding, Target, judge
from mobopt.options import LEGALIZE_LEVELS, Settings
from mobopt.passes.backends import target_of
from mobopt.passes.facts import Examples, forget_unseen, record_facts
from mobopt.passes.legalizations.site import FULL, rewrites
from mobopt.passes.legalize import Legalize
from mobopt.passes.manager import PassRun, run_passes
from mobopt.passes.metal_rewrites import MetalRewrites
from mobopt.passes.note_kinds import RUNS_ON_CPU, WITH_ITS_OPERANDS
from mobopt.passes.notes import Note
from mobopt.passes.pipelines import pipeline_for
from mobopt.tools.audit_causes import Dataflow, Places
from mobopt.tools.lacks import is_judged, operands_text
from mobopt.tools.tensor_places import gpu_values, runs_on_gpu, transfer_device

NATIVE, REWRITTEN, ON_CPU, UNKNOWN, MISSING, WRONG = "native", "rewritten", "cpu", "unknown", "missing", "wrong"
UNREACHED = "unreached"
"""It would raise if it were reached: in branches for other ranks, which PyTorch's own files keep."""
VERDICTS = (WRONG, MISSING, UNKNOWN, UNREACHED, ON_CPU, REWRITTEN, NATIVE)
"""The worst first."""

CPU_FALLBACK = frozenset({"vulkan"})
"""Backends whose files move tensors to the CPU and back, so that what the GPU lacks still runs."""


@dataclass(frozen=True)
class AuditedCall:
    """One operator at one place of a model."""

    operator: str
    """With overload."""
    node: str
    verdict: str
    """One of :data:`VERDICTS`."""
    reason: str = ""
    source: str = ""
    """Where in the model it comes from."""
    operands: str = ""
    """Dtypes and sizes of its tensors, as far as they are known."""
    rewrite: str = ""
    """Name of the rewrite that the conversion does."""
    rewrite_summary: str = ""
    fixes_sizes: bool = False
    """Whether that fixes the file to the sizes of the example inputs."""
    is_by_row: bool = False
    """Whether a row of the tables says this of the operator, and not only of a tensor that the GPU can't hold."""
    help: str = ""
    """What the author of the model can change."""
    follows: str = ""
    """The operator that keeps it on the phone's CPU, if that is another one."""
    is_cause: bool = False
    """Whether it keeps itself there, and maybe others."""


_LEAST_MICROSECONDS = 5


@dataclass(frozen=True)
class Cause:
    """An operator that keeps others on the phone's CPU."""

    operator: str
    """With overload; several with commas, where their tensors are the reason and not what they do with them."""
    count: int
    reason: str
    followers: int
    """Operators that only follow these, for this reason."""
    microseconds: float
    """What a call would take less, roughly, if the GPU could run them; see :mod:`mobopt.ops.costs`."""

    @property
    def saved(self) -> str:
        """What a kernel for it alone would save, in words; other causes may keep the same tensors on the CPU."""
        return milliseconds_saved(self.microseconds) or "nothing by itself"

    @property
    def saves(self) -> bool:
        """Whether a kernel for it alone would save anything."""
        return bool(milliseconds_saved(self.microseconds))


def milliseconds_saved(microseconds: float) -> str:
    """A saving in words; empty if it is too small for the cost model to tell."""
    return f"about {microseconds / 1000:.2f} ms" if microseconds >= _LEAST_MICROSECONDS else ""


@dataclass(frozen=True)
class CostChange:
    """What a conversion does to a model's operators; sizes that nothing tells count as none."""

    operators_before: int
    operators_after: int
    """With transfers."""
    multiply_adds_before: int
    multiply_adds_after: int

    @property
    def operators(self) -> float:
        """Times as many operators."""
        return self.operators_after / max(self.operators_before, 1)

    @property
    def arithmetic(self) -> float | None:
        """Times as many multiply-adds; None where sizes are not known."""
        return self.multiply_adds_after / self.multiply_adds_before if self.multiply_adds_before else None

    def __str__(self) -> str:
        text = f"{self.operators_before} operators become {self.operators_after} ({self.operators:.2f} times as many)"
        if self.arithmetic is None:
            return text
        before, after = (f"{count / 1e6:,.1f}" for count in (self.multiply_adds_before, self.multiply_adds_after))
        return f"{text}, {before} million multiply-adds {after} million ({self.arithmetic:.2f} times)"


@dataclass(frozen=True)
class JudgedModel:
    """A model's operators, and the Program that its conversion makes."""

    calls: tuple[AuditedCall, ...]
    program: Program
    notes: tuple[Note, ...]
    """What the passes said."""
    change: CostChange | None = None
    causes: tuple[Cause, ...] = ()
    """Why operators run on the phone's CPU."""
    gpu_share: float | None = None
    """The part of the multiply-adds that the GPU does, if sizes are known."""
    microseconds: float = 0.0
    """What a call would take less, roughly, if the GPU could run the causes that are worth it."""


def judge_model(program: Program, settings: Settings, examples: Examples) -> JudgedModel:
    """Judge the operators of a model before conversion, by converting it.

    Args:
        program: the model; it is changed.
        settings: of the conversion.
        examples: inputs whose sizes decide what the target computes right.

    Raises:
        InputError: the model can't be run on the examples.
    """
    passes = pipeline_for(settings, examples)
    steps = [index for index, item in enumerate(passes) if isinstance(item, (MetalRewrites, Legalize))]
    simplified = run_passes(program, passes[: steps[0]])
    record_facts(program, examples)
    judge_here = _Judge(program, settings)
    arithmetic = [cost_of_program(program).multiply_adds]
    originals = {node: (judge_here.stated(node), judge_here.stated(node, judge_here.cpu)) for node in _nodes(program)}
    legalized = run_passes(program, passes[steps[0] : steps[-1] + 1])
    record_facts(program, examples)
    left = {node: judge_here.placed(node) for node in _nodes(program)}
    arithmetic.append(cost_of_program(program).multiply_adds)
    flow = Dataflow(program, settings.runtime)
    packed = run_passes(program, passes[steps[-1] + 1 :])
    remarks = _Remarks(_notes([*legalized, *packed]))
    left = {node: remarks.applied_to(node, call) for node, call in left.items()}
    places = _places(left, remarks, flow)
    causes = flow.causes(places)
    left = {node: _following(call, node, causes) for node, call in left.items()}
    found = _causes(left, flow, places, causes)
    calls = [
        left[node] if node in left else remarks.rewritten(node, on_target, on_cpu)
        for node, (on_target, on_cpu) in originals.items()
    ]
    calls += [call for node, call in left.items() if node not in originals and call.verdict != NATIVE]
    return JudgedModel(
        tuple(calls),
        program,
        tuple(_notes([*simplified, *legalized, *packed])),
        CostChange(_count(originals), _count(_nodes(program)), *arithmetic),
        tuple(cause for cause, _ in found),
        flow.share_on_gpu(places.on_cpu) if settings.backend in CPU_FALLBACK else None,
        _most_saved(flow, places, [nodes for _, nodes in found]),
    )


def _places(calls: Mapping[Node, AuditedCall], remarks: _Remarks, flow: Dataflow) -> Places:
    """What runs on the phone's CPU, by why it does."""
    on_cpu = {node for node, call in calls.items() if call.verdict == ON_CPU}
    following = {node for node in on_cpu if remarks.stays_with_operands(node)}
    misfits = {node for node in on_cpu - following if flow.meets_misfit(node) and not calls[node].is_by_row}
    return Places(frozenset(on_cpu - following - misfits), frozenset(misfits), frozenset(following))


def _following(call: AuditedCall, node: Node, causes: Mapping[Node, Node]) -> AuditedCall:
    cause = causes.get(node)
    if cause is None:
        return call
    return replace(call, is_cause=True) if cause is node else replace(call, follows=cause.qualified_op)


def _causes(
    calls: Mapping[Node, AuditedCall], flow: Dataflow, places: Places, causes: Mapping[Node, Node]
) -> list[tuple[Cause, set[Node]]]:
    """The causes that share operator and reason, together, and those whose tensors the GPU can't hold by that reason
    alone, each with its nodes; what would help most first."""
    groups: dict[tuple[str, str], set[Node]] = defaultdict(set)
    for node in set(causes.values()):
        groups["" if node in places.misfits else calls[node].operator, calls[node].reason].add(node)
    found = [
        (
            Cause(
                ", ".join(sorted({calls[node].operator for node in nodes})),
                len(nodes),
                reason,
                sum(cause in nodes and node not in nodes for node, cause in causes.items()),
                flow.microseconds_saved(places, nodes),
            ),
            nodes,
        )
        for (_, reason), nodes in groups.items()
    ]
    return sorted(found, key=lambda pair: _worth(pair[0]))


def _worth(cause: Cause) -> tuple[float, int, str, str]:
    """What would help most comes first."""
    return -cause.microseconds, -cause.followers, cause.operator, cause.reason


def _most_saved(flow: Dataflow, places: Places, causes: Sequence[set[Node]]) -> float:
    """What mending the first causes saves, as many of them as are worth it: some operators are faster on the CPU."""
    mended: set[Node] = set()
    most = 0.0
    for nodes in causes:
        mended |= nodes
        most = max(most, flow.microseconds_saved(places, mended))
    return most


def _count(nodes: Iterable[Node]) -> int:
    """Operators that make or move tensors."""
    return sum(any(holds_tensors(value.type) for value in node.outputs) for node in nodes)


def judge_bundle(program: Program, settings: Settings, examples: Examples) -> JudgedModel:
    """Judge the operators of an optimised file, each where it runs.

    Raises:
        InputError: the model can't be run on the examples.
    """
    # What no run came to is judged by the rows alone: what PyTorch's own files keep for other ranks is no fault.
    record_facts(program, examples)
    unseen = forget_unseen(program)
    judge_there, judge_cpu = (_Judge(program, item, unseen) for item in (settings, Settings("cpu", settings.runtime)))
    calls: list[AuditedCall] = []
    for graph in program.methods.values():
        on_gpu = gpu_values(program, graph)
        for node in _nodes_of(graph):
            if transfer_device(node):
                calls.append(judge_there.made(node, NATIVE, ""))
            elif settings.backend not in CPU_FALLBACK or runs_on_gpu(node, on_gpu) or not is_judged(node):
                calls.append(judge_there.stated(node))
            else:
                call = judge_cpu.stated(node)
                calls.append(
                    call if call.verdict != NATIVE else judge_there.made(node, ON_CPU, "its tensors lie there")
                )
    return JudgedModel(tuple(calls), program, ())


class _Judge:
    """Judges nodes of a Program with what is known of its tensors."""

    def __init__(self, program: Program, settings: Settings, unseen: Container[Value] = ()) -> None:
        self.program = program
        self.unseen = unseen
        self.target = target_of(settings)
        self.cpu = Target("cpu", settings.runtime)
        self.has_fallback = settings.backend in CPU_FALLBACK and settings.legalize != LEGALIZE_LEVELS[0]

    def placed(self, node: Node) -> AuditedCall:
        """What a conversion does with a node that is left as it is: the CPU runs what the target lacks, if it can."""
        finding = self.finding(node)
        if finding.is_good or finding.verdict == UNREACHED or not self.has_fallback:
            return self.of(node, finding)
        on_cpu = self.finding(node, self.cpu)
        return self.of(node, finding, ON_CPU) if on_cpu.is_good else self.of(node, on_cpu)

    def stated(self, node: Node, target: Target | None = None) -> AuditedCall:
        """What a target's own kernel does with a node."""
        return self.of(node, self.finding(node, target))

    def finding(self, node: Node, target: Target | None = None) -> Finding:
        """What a target does with a node; nodes without tensors are the interpreter's, which runs on the CPU."""
        target = target or (self.target if is_judged(node) else self.cpu)
        finding = judge(node, target, self.program.attributes)
        if not finding.is_good and not self.is_reached(node):
            verdict = UNREACHED if finding.verdict == MISSING else UNKNOWN
            return Finding(verdict, f"not reached with these inputs; if it were: {finding.why}", finding.row)
        return finding

    def is_reached(self, node: Node) -> bool:
        """Whether the run on the examples came to a node, as far as that can be told: branches may not be taken."""
        results = [value for value in node.outputs if value.type == TENSOR]
        is_nested = node.block is not None and node.block.node is not None
        return not (is_nested and results) or any(value.facts.is_seen and value not in self.unseen for value in results)

    def of(self, node: Node, finding: Finding, verdict: str = "") -> AuditedCall:
        """A finding as a call."""
        row = finding.row if finding.verdict != NATIVE else None
        rewrite, advice = (row.rewrite, row.help) if row is not None else ("", "")
        reason = finding.why if finding.verdict != NATIVE else ""
        return replace(self.made(node, verdict or finding.verdict, reason, rewrite, advice), is_by_row=row is not None)

    def made(self, node: Node, verdict: str, reason: str, rewrite: str = "", advice: str = "") -> AuditedCall:
        """A call of a node."""
        operands = operands_text(node)
        return AuditedCall(
            node.qualified_op, describe(node), verdict, reason, node.source, operands, rewrite, help=advice
        )


class _Remarks:
    """What the passes said of nodes."""

    def __init__(self, notes: Sequence[Note]) -> None:
        self.refusals = {note.node: note for note in notes if note.pass_name == Legalize.name and not note.done}
        self.on_cpu = {note.node: note for note in notes if note.kind in (RUNS_ON_CPU, WITH_ITS_OPERANDS)}
        self.done = {note.node: note for note in notes if note.done}

    def stays_with_operands(self, node: Node) -> bool:
        """Whether the GPU could run it, but it is not worth a transfer."""
        return node in self.on_cpu and self.on_cpu[node].kind is WITH_ITS_OPERANDS

    def applied_to(self, node: Node, call: AuditedCall) -> AuditedCall:
        """A call with why it is not rewritten, or why it runs on the CPU although the GPU could run it."""
        if call.verdict in (NATIVE, UNKNOWN, UNREACHED) and node in self.on_cpu:
            note = self.on_cpu[node]
            return replace(call, verdict=ON_CPU, reason=note.parameters.get("reason", note.message))
        return replace(call, reason=self.refusals[node].message) if node in self.refusals else call

    def rewritten(self, node: Node, on_target: AuditedCall, on_cpu: AuditedCall) -> AuditedCall:
        """A call that the conversion writes with other operators, for the target or for the CPU of its release."""
        call = on_target if on_target.rewrite else on_cpu
        note = self.done.get(node)
        if note is not None and note.rewrite:
            rewrite = rewrites()[note.rewrite]
            summary, fixes = rewrite.summary, rewrite.level == FULL
            return replace(call, verdict=REWRITTEN, rewrite=rewrite.name, rewrite_summary=summary, fixes_sizes=fixes)
        if note is not None:
            return replace(on_target, verdict=REWRITTEN, rewrite=note.pass_name, rewrite_summary=note.message)
        return replace(on_target, verdict=REWRITTEN, rewrite=MetalRewrites.name, rewrite_summary="taken out")


def _notes(runs: Sequence[PassRun]) -> list[Note]:
    return [note for run in runs for note in run.result.notes]


def _nodes(program: Program) -> list[Node]:
    return [node for graph in program.methods.values() for node in _nodes_of(graph)]


def _nodes_of(graph: Graph) -> list[Node]:
    return [node for node in graph.walk() if not node.op.startswith("prim::")]
