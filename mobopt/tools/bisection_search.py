"""The search of a bisection: runs of the whole model that halve the candidates, and then the smallest program."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from mobopt.errors import InputError, MoboptError
from mobopt.ir import Graph, Node
from mobopt.ir.origin import ModelNode
from mobopt.options import SINGLE
from mobopt.passes.manager import Pass, PassRun, run_passes
from mobopt.passes.notes import Note
from mobopt.passes.pipelines import PassPipeline
from mobopt.tools.bisection_results import FUSION, HALF, NODE, NOTHING, PASS, REWRITE, Bisection
from mobopt.tools.comparison_sides import CPU, CpuRunner, DeviceRunner, Runner, Side, every_value
from mobopt.tools.comparison_work import ComparisonWork, Sample, tensors_of
from mobopt.tools.differences import difference
from mobopt.tools.layer_matching import Place

_OFF = "a bisection leaves it to the CPU"


class Shown(NamedTuple):
    """The smallest program that shows a fault, if there is one."""

    sample: Sample | None = None
    error: float | None = None
    """Of the program's result, over its scale."""
    source: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class Search:
    """A bisection on the way; counts its runs.

    Attributes:
        expected: what the method returns on the CPU, without passes; to be set before anything is searched.
        runs: of the whole model, so far.
    """

    def __init__(self, args: Sequence[Any], method: str, tolerance: float, show: Callable[[str], None]) -> None:
        self.expected: list[torch.Tensor] = []
        self.runs = 0
        self._args, self._method, self._tolerance, self._show = args, method, tolerance, show
        self._last = 0.0
        self._failures: dict[str, None] = {}
        """What runs ended with that came to no result."""

    def results(self, runner: Runner) -> list[torch.Tensor]:
        """What the method returns."""
        self.runs += 1
        return tensors_of(runner.survey(self._args))

    def error(self, runner: Runner) -> float:
        """The largest error of an output; infinite if the model does not run, or returns something else."""
        try:
            found = self.results(runner)
        except MoboptError as failure:
            self._failures[f"a run failed: {failure}"] = None
            return float("inf")
        if [tensor.shape for tensor in found] != [tensor.shape for tensor in self.expected]:
            return float("inf")
        pairs = zip(self.expected, found, strict=True)
        return max((difference(one, two).error for one, two in pairs), default=0.0)

    def nothing(self, device: str) -> Bisection:
        """All is within the tolerance."""
        return self._found(NOTHING, "", (self._last, self._last), 0, device)

    # Passes

    def bad_pass(self, plain: Side, passes: PassPipeline) -> tuple[Bisection | None, Side]:
        """The pass, or the rewrite of one, after which outputs differ on the CPU; the side after all passes."""
        whole, _ = _after(plain, passes)
        self._last = self.error(CpuRunner(whole, self._method))
        if self._last <= self._tolerance:
            return None, whole
        errors = {0: 0.0, len(passes): self._last}

        def is_bad(count: int) -> bool:
            self._show(f"running with the first {count} of {len(passes)} passes")
            errors[count] = self.error(CpuRunner(_after(plain, passes[:count])[0], self._method))
            return errors[count] > self._tolerance

        count = first_bad(len(passes), is_bad)
        guilty = passes[count - 1]
        name = f"{guilty.name}, number {count} of {len(passes)}"
        before, _ = _after(plain, passes[: count - 1])
        rewrite = self._bad_rewrite(before, guilty, name)
        if rewrite is not None:
            return rewrite, whole
        after, _ = _after(plain, passes[:count])
        shown = self._smallest((CpuRunner(before, self._method), CpuRunner(after, self._method)))
        return self._found(PASS, name, (errors[count - 1], errors[count]), len(passes), CPU, shown), whole

    def _bad_rewrite(self, before: Side, guilty: Pass, name: str) -> Bisection | None:
        """The rewrite of a pass after which outputs differ; None if it can't stop after some, or that shows nothing."""

        def after(count: int) -> Side:
            limited = guilty.at_most(count)
            assert limited is not None
            return _after(before, [limited])[0]

        if guilty.at_most(0) is None:
            return None
        done = [note for note in _after(before, [guilty])[1][0].result.notes if note.done]
        errors: dict[int, float] = {}

        def is_bad(count: int) -> bool:
            self._show(f"running with the first {count} of {len(done)} rewrites of {guilty.name}")
            errors[count] = self.error(CpuRunner(after(count), self._method))
            return errors[count] > self._tolerance

        if is_bad(0) or not is_bad(len(done)):
            return None
        count = first_bad(len(done), is_bad)
        shown = self._smallest((CpuRunner(after(count - 1), self._method), CpuRunner(after(count), self._method)))
        note = done[count - 1]
        culprit = f"{note.rewrite or note.kind.name} of {note.subject}, number {count} of {len(done)}, by {name}"
        shown = shown._replace(source=shown.source or note.origin.lines, remarks=(_words(note), *shown.remarks))
        return self._found(REWRITE, culprit, (errors[count - 1], errors[count]), len(done), CPU, shown)

    # The device

    def bad_on_device(self, side: Side) -> Bisection | None:
        """The node, the fusion or the node in halves that makes outputs differ on a device; None if all may go."""
        whole = DeviceRunner(side, self._method)
        self._last = self.error(whole)
        if self._last <= self._tolerance:
            return None
        nodes = _model_nodes(whole.lines)
        if side.precision.is_half:
            self._show("running in float32")
            single = self.error(DeviceRunner(replace(side, precision=SINGLE), self._method))
            if single <= self._tolerance:
                return self._bad_half(side, nodes)
        return self._bad_node(side, nodes)

    def _bad_node(self, side: Side, nodes: Sequence[ModelNode]) -> Bisection:
        """The node that makes outputs differ when it goes to the device."""

        def runner(count: int, split: Callable[[Graph], Container[str]] = lambda line: ()) -> DeviceRunner:
            stays = _outside(nodes[:count])
            return DeviceRunner(side, self._method, split, lambda node: _OFF if stays(node) else None)

        errors = {len(nodes): self._last}
        count = self._first(nodes, "on the device", runner, errors)
        if not count:
            culprit = "what is done before nodes are placed: specialising, decomposing or simplifying the graph"
            return self._found(NODE, culprit, (0.0, errors[0]), len(nodes), side.device)
        node = nodes[count - 1]
        unfused = self.error(runner(count, every_value))
        is_fusion = unfused <= self._tolerance
        shown = self._smallest((self._on_cpu(side), runner(count)), node)
        culprit = f"{node.text}, node {count} of {len(nodes)}"
        if is_fusion and shown.sample is not None:
            culprit = f"{', '.join(item.op for item in shown.sample.part.block.nodes)}, which end in {culprit}"
        before = unfused if is_fusion else errors[count - 1]
        kind = FUSION if is_fusion else NODE
        shown = shown._replace(source=shown.source or _line_of(node))
        return self._found(kind, culprit, (before, errors[count]), len(nodes), side.device, shown)

    def _bad_half(self, side: Side, nodes: Sequence[ModelNode]) -> Bisection:
        """The node that makes outputs differ when it is in half precision."""

        def runner(count: int) -> DeviceRunner:
            return DeviceRunner(side, self._method, stays_single=_outside(nodes[:count]))

        precision = side.precision.precision
        errors = {len(nodes): self._last}
        count = self._first(nodes, f"in {precision}", runner, errors)
        if not count:
            culprit = f"what is in {precision} of no node of the model"
            return self._found(HALF, culprit, (0.0, errors[0]), len(nodes), side.device)
        node = nodes[count - 1]
        kept = self.error(DeviceRunner(side, self._method, stays_single=lambda item: node in item.origin.nodes))
        shown = self._smallest((self._on_cpu(side), runner(count)), node)
        advice = f"with --fp32-nodes '{node.text}' the error of the outputs is {kept:.1e}"
        advice += "" if kept <= self._tolerance else "; bisect again with that to find what else does it"
        remarks = [advice]
        if errors[count - 1] > self._tolerance / 2:
            remarks.append("errors add up: the nodes before it make most of it")
        shown = shown._replace(source=_line_of(node) or shown.source, remarks=(*remarks, *shown.remarks))
        culprit = f"{node.text} in {precision}, node {count} of {len(nodes)}"
        return self._found(HALF, culprit, (errors[count - 1], errors[count]), len(nodes), side.device, shown)

    def _first(
        self,
        nodes: Sequence[ModelNode],
        how: str,
        runner: Callable[[int], Runner],
        errors: dict[int, float],
    ) -> int:
        """How many of the first nodes it takes until outputs differ; their errors come to those by number."""

        def is_bad(count: int) -> bool:
            self._show(f"running with the first {count} of {len(nodes)} nodes {how}")
            errors[count] = self.error(runner(count))
            return errors[count] > self._tolerance

        return 0 if is_bad(0) else first_bad(len(nodes), is_bad)

    def _on_cpu(self, side: Side) -> CpuRunner:
        return CpuRunner(replace(side, device=CPU, precision=SINGLE), self._method)

    # The smallest program

    def _smallest(self, runners: tuple[Runner, Runner], node: ModelNode | None = None) -> Shown:
        """The smallest part of the second side that differs from the first by itself."""
        self._show("looking for the smallest program that shows it")
        try:
            work = ComparisonWork(runners, self._args, self._tolerance, None, self._show)
        except InputError as reason:
            return Shown(remarks=(f"no program shows it by itself: {reason}",))
        layers = work.layers()
        order = sorted(
            range(len(layers)),
            key=lambda number: (not _has(work, work.places[number], node), number),
        )
        for number in order:
            own, place = layers[number].own, work.places[number]
            if own is not None and own.error > self._tolerance:
                return Shown(work.sample(place, _known(work, place)), own.error, layers[number].source)
        wrong = next((number for number in order if layers[number].total.error > self._tolerance), None)
        sample, error = (None, None) if wrong is None else self._grown(work, work.places[wrong])
        if sample is None:
            return Shown(remarks=("no part of the model shows it by itself: small errors add up",))
        remarks = ("no layer shows it by itself, only several together",)
        return Shown(sample, error, layers[wrong or 0].source, remarks)

    def _grown(self, work: ComparisonWork, place: Place) -> tuple[Sample | None, float | None]:
        """The shortest part that ends in a value and differs; None if not even all that leads to it does."""
        before = work.places[: work.places.index(place)]
        known = [name for line, name in before if line == place[0]]
        found: dict[int, tuple[Sample | None, float]] = {}

        def is_bad(length: int) -> bool:
            sample = work.sample(place, set(known[: len(known) - length]))
            alone = None if sample is None else work.alone(sample)
            found[length] = sample, 0.0 if alone is None else alone.error
            return found[length][1] > self._tolerance

        if not is_bad(len(known)):
            return None, None
        return found[first_bad(len(known), is_bad)]

    def _found(
        self,
        kind: str,
        culprit: str,
        errors: tuple[float, float],
        candidates: int,
        device: str,
        shown: Shown = Shown(),  # noqa: B008 - it is immutable
    ) -> Bisection:
        """What is known here; ``errors`` are those without the culprit and with it."""
        return Bisection(
            kind=kind,
            culprit=culprit,
            source=shown.source,
            error=errors[1],
            error_before=errors[0],
            candidates=candidates,
            runs=self.runs,
            sample=shown.sample,
            sample_error=shown.error,
            device=device,
            inputs="",
            tolerance=self._tolerance,
            remarks=(*self._failures, *shown.remarks),
            seconds=0.0,
        )


def first_bad(count: int, is_bad: Callable[[int], bool]) -> int:
    """A number from 1 to ``count`` that is bad and follows one that is good.

    Args:
        count: this number is known to be bad, and 0 to be good.
        is_bad: is asked about the binary logarithm of ``count`` numbers.
    """
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        if is_bad(middle):
            bad = middle
        else:
            good = middle
    return bad


def _after(side: Side, passes: Iterable[Pass]) -> tuple[Side, list[PassRun]]:
    """A side after passes, and what they said."""
    program = side.program.clone()
    runs = run_passes(program, passes)
    return replace(side, program=program, passes=f"{len(runs)} passes"), runs


def _words(note: Note) -> str:
    return f"{note.subject}: {note.message}"


def _model_nodes(lines: Sequence[Graph]) -> list[ModelNode]:
    """The nodes of the model that lines compute, in order."""
    return list(
        dict.fromkeys(node.origin.nodes[-1] for line in lines for node in line.block.nodes if node.origin.nodes)
    )


def _outside(chosen: Sequence[ModelNode]) -> Callable[[Node], bool]:
    """Whether a node comes from none of some nodes of the model."""
    there = set(chosen)
    return lambda node: bool(node.origin.nodes) and node.origin.nodes[-1] not in there


def _line_of(node: ModelNode) -> tuple[str, ...]:
    return (node.line,) if node.line else ()


def _known(work: ComparisonWork, place: Place) -> set[str]:
    return {name for line, name in work.places if line == place[0] and name != place[1]}


def _has(work: ComparisonWork, place: Place, node: ModelNode | None) -> bool:
    """Whether a node of the model is a part of a layer."""
    return any(node in item.origin.nodes for item in work.draft(place).part.block.nodes)
