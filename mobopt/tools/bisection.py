"""Which pass, which node on the device or which fusion makes a model's outputs differ, found in a logarithmic number of
runs, and the smallest program that still shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mobopt.errors import InputError, MoboptError
from mobopt.ir import Graph, Node
from mobopt.ir.origin import ModelNode
from mobopt.options import Precision, PrecisionChoice
from mobopt.passes.manager import run_passes
from mobopt.passes.pipelines import PassPipeline
from mobopt.runtimes.half_ranges import check_patterns
from mobopt.samples.example_inputs import ExampleInputs, choose_inputs
from mobopt.tools.comparison import arguments_of, opened, tolerance_of
from mobopt.tools.comparison_sides import CPU, VULKAN, CpuRunner, DeviceRunner, Runner, Side, every_value
from mobopt.tools.comparison_work import ComparisonWork, Sample, tensors_of
from mobopt.tools.differences import difference
from mobopt.tools.layer_matching import Place

NOTHING, PASS, NODE, FUSION = "nothing", "pass", "node", "fusion"
"""Kinds of culprits."""
_OFF = "a bisection leaves it to the CPU"

_Show = Callable[[str], None]


@dataclass(frozen=True)
class Bisection:
    """What makes outputs differ."""

    kind: str
    """``nothing``, ``pass``, ``node`` or ``fusion``."""
    culprit: str
    """In words; empty if nothing was found."""
    source: tuple[str, ...]
    """Lines of the model's source that it concerns."""
    error: float
    """The largest error of an output with it, over the scale of the output."""
    error_before: float
    """The same without it."""
    candidates: int
    """Passes, or nodes, among which it was looked for."""
    runs: int
    """Runs of the whole model that this took."""
    sample: Sample | None
    """The smallest program that still shows it, with its inputs; None if no part of the model does by itself."""
    sample_error: float | None
    """The error of that program's result, over its scale."""
    device: str
    """Where the sample is to be run."""
    inputs: str
    """The example inputs, in words."""
    tolerance: float
    """The error of outputs that was let pass, over their scale."""
    remarks: tuple[str, ...]
    """What a user should know."""
    seconds: float
    """That it took."""
    precision: Precision = "fp32"
    """Of the device."""


def bisect(
    model: object,
    *,
    device: str = VULKAN,
    passes: PassPipeline | None = None,
    method: str = "forward",
    example_inputs: ExampleInputs | None = None,
    tolerance: float | None = None,
    precision: Precision = "fp32",
    fp32_nodes: str | Iterable[str] = (),
    show: _Show = lambda step: None,
) -> Bisection:
    """Find what makes a model's outputs differ from those of the model on the CPU, without passes.

    The passes come first, on the CPU: the shortest pipeline that ends in a difference names the pass. If they are
    right, nodes go to the device in the model's order until the outputs differ, and the node that makes them is tried
    without fusions.

    Args:
        model: as for :func:`mobopt.compare`.
        device: ``"vulkan"`` for the best device, a device's number or a part of its name; ``"cpu"``: passes only.
        passes: the passes that the model goes through.
        method: the method that is run.
        example_inputs: as for :func:`mobopt.compare`.
        tolerance: the error of outputs that is let pass, over their scale; without it 1e-4, 1e-2 of fp16, and
            8e-2 of bf16.
        precision: of the device; see :func:`mobopt.load`.
        fp32_nodes: patterns of nodes that keep float32.
        show: is told each step.

    Returns:
        The pass, the node or the fusion to blame, with its source lines and the smallest program that shows it; of the
        kind ``nothing`` if outputs agree.

    Raises:
        InputError: there is nothing to bisect, no inputs are known, or no node matches a pattern.
        MoboptError: the model or the device can't be used.
    """
    if device == CPU and passes is None:
        raise InputError("there is nothing to bisect on the CPU without passes; give passes, or a Vulkan device")
    choice = PrecisionChoice.of(precision, fp32_nodes)
    if choice.is_half and device == CPU:
        raise InputError(f"{precision} is what a Vulkan device stores; choose one with --device")
    tolerance = tolerance_of(tolerance, choice)
    started = time.perf_counter()
    show("reading")
    sources = opened(model, None, example_inputs)
    check_patterns(sources[0].program, choice.fp32_nodes)
    inputs = choose_inputs(sources[0], example_inputs)
    search = _Search(arguments_of(sources, method, inputs), method, tolerance, show)
    plain = Side(sources[0].name, sources[0].program, CPU)
    search.expected = search.results(CpuRunner(plain, method))
    found = None
    side = plain
    if passes is not None:
        ready = passes.with_examples(inputs.examples)
        found, side = search.bad_pass(plain, ready)
    if found is None and device != CPU:
        found = search.bad_node(replace(side, device=device, precision=choice))
    found = found or search.nothing(device)
    seconds = time.perf_counter() - started
    return replace(found, inputs=str(inputs), runs=search.runs, seconds=seconds, precision=choice.precision)


class _Search:
    """A bisection on the way; counts its runs."""

    def __init__(self, args: Sequence[Any], method: str, tolerance: float, show: _Show) -> None:
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
        return self._found(NOTHING, "", (), self._last, self._last, 0, None, None, device, ())

    # Passes

    def bad_pass(self, plain: Side, passes: PassPipeline) -> tuple[Bisection | None, Side]:
        """The pass after which outputs differ on the CPU; the side after all passes."""

        def after(count: int) -> Side:
            program = plain.program.clone()
            run_passes(program, passes[:count])
            return replace(plain, program=program, passes=f"{count} passes")

        whole = after(len(passes))
        errors = {0: 0.0, len(passes): self.error(CpuRunner(whole, self._method))}
        self._last = errors[len(passes)]
        if self._last <= self._tolerance:
            return None, whole

        def is_bad(count: int) -> bool:
            self._show(f"running with the first {count} of {len(passes)} passes")
            errors[count] = self.error(CpuRunner(after(count), self._method))
            return errors[count] > self._tolerance

        count = first_bad(len(passes), is_bad)
        runners = CpuRunner(after(count - 1), self._method), CpuRunner(after(count), self._method)
        sample, error, source, remarks = self._sample(runners)
        name = f"{passes.names[count - 1]}, number {count} of {len(passes)}"
        before, now = errors[count - 1], errors[count]
        return self._found(PASS, name, source, now, before, len(passes), sample, error, CPU, remarks), whole

    # Nodes on the device

    def bad_node(self, side: Side) -> Bisection | None:
        """The node that makes outputs differ when it goes to the device; None if all may go."""
        whole = DeviceRunner(side, self._method)
        self._last = self.error(whole)
        if self._last <= self._tolerance:
            return None
        nodes = _model_nodes(whole.lines)
        errors = {len(nodes): self._last}

        def runner(count: int, split: Callable[[Graph], Container[str]] = lambda line: ()) -> DeviceRunner:
            there = set(nodes[:count])

            def refuse(node: Node) -> str | None:
                return None if not node.origin.nodes or node.origin.nodes[-1] in there else _OFF

            return DeviceRunner(side, self._method, split, refuse)

        def is_bad(count: int) -> bool:
            self._show(f"running with the first {count} of {len(nodes)} nodes on the device")
            errors[count] = self.error(runner(count))
            return errors[count] > self._tolerance

        if is_bad(0):
            culprit = "what is done before nodes are placed: specialising, decomposing or simplifying the graph"
            return self._found(NODE, culprit, (), errors[0], 0.0, len(nodes), None, None, whole.where, ())
        count = first_bad(len(nodes), is_bad)
        node = nodes[count - 1]
        unfused = self.error(runner(count, every_value))
        is_fusion = unfused <= self._tolerance
        runners = CpuRunner(replace(side, device=CPU), self._method), runner(count)
        sample, error, source, remarks = self._sample(runners, node)
        culprit = f"{node.text}, node {count} of {len(nodes)}"
        if is_fusion and sample is not None:
            culprit = f"{', '.join(item.op for item in sample.part.block.nodes)}, which end in {culprit}"
        return self._found(
            FUSION if is_fusion else NODE,
            culprit,
            source or ((node.line,) if node.line else ()),
            errors[count],
            unfused if is_fusion else errors[count - 1],
            len(nodes),
            sample,
            error,
            side.device,
            remarks,
        )

    # The smallest program

    def _sample(
        self, runners: tuple[Runner, Runner], node: ModelNode | None = None
    ) -> tuple[Sample | None, float | None, tuple[str, ...], tuple[str, ...]]:
        """The smallest part of the second side that differs from the first by itself: the program, its error, its
        source lines, and remarks."""
        self._show("looking for the smallest program that shows it")
        try:
            work = ComparisonWork(runners, self._args, self._tolerance, None, self._show)
        except InputError as reason:
            return None, None, (), (f"no program shows it by itself: {reason}",)
        layers = work.layers()
        order = sorted(
            range(len(layers)),
            key=lambda number: (not _has(work, work.places[number], node), number),
        )
        for number in order:
            own, place = layers[number].own, work.places[number]
            if own is not None and own.error > self._tolerance:
                sample = work.sample(place, _known(work, place))
                return sample, own.error, layers[number].source, ()
        wrong = next((number for number in order if layers[number].total.error > self._tolerance), None)
        sample, error = (None, None) if wrong is None else self._grown(work, work.places[wrong])
        if sample is None:
            return None, None, (), ("no part of the model shows it by itself: small errors add up",)
        return sample, error, layers[wrong or 0].source, ("no layer shows it by itself, only several together",)

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
        source: tuple[str, ...],
        error: float,
        before: float,
        candidates: int,
        sample: Sample | None,
        sample_error: float | None,
        device: str,
        remarks: tuple[str, ...],
    ) -> Bisection:
        return Bisection(
            kind,
            culprit,
            source,
            error,
            before,
            candidates,
            self.runs,
            sample,
            sample_error,
            device,
            "",
            self._tolerance,
            (*self._failures, *remarks),
            0.0,
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


def _model_nodes(lines: Sequence[Graph]) -> list[ModelNode]:
    """The nodes of the model that lines compute, in order."""
    return list(
        dict.fromkeys(node.origin.nodes[-1] for line in lines for node in line.block.nodes if node.origin.nodes)
    )


def _known(work: ComparisonWork, place: Place) -> set[str]:
    return {name for line, name in work.places if line == place[0] and name != place[1]}


def _has(work: ComparisonWork, place: Place, node: ModelNode | None) -> bool:
    """Whether a node of the model is a part of a layer."""
    return any(node in item.origin.nodes for item in work.draft(place).part.block.nodes)
