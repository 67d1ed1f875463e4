"""Everything about one model for a colleague: what it is, what targets do with it, accuracy, speed, what would help."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mobopt.bundle.info import count_operators, tensor_bytes
from mobopt.frontends.open_source import source_of, whole_source_of
from mobopt.frontends.source import HELPER_METHODS, Source
from mobopt.options import DEFAULT_RUNTIME, parse_backend, parse_runtime
from mobopt.passes.pipelines import PassPipeline
from mobopt.samples.example_inputs import ExampleInputs, choose_inputs
from mobopt.tools.audit import Audit, audit
from mobopt.tools.report_runs import BEST_DEVICE, MethodRun, runs_of, tried

_FORWARD = "forward"
_KINDS = {
    "FileSource": "TorchScript",
    "ScriptModuleSource": "TorchScript",
    "ExportedFileSource": "ExportedProgram",
    "ExportedProgramSource": "ExportedProgram",
    "OnnxSource": "ONNX",
    "ModuleSource": "nn.Module",
}
"""What a source is, for readers."""


@dataclass(frozen=True, order=True)
class ReportTarget:
    """A backend and a release of PyTorch Mobile."""

    backend: str = "vulkan"
    runtime: str = DEFAULT_RUNTIME

    @classmethod
    def parse(cls, text: str) -> ReportTarget:
        """From ``vulkan:2.6``, or ``metal`` alone.

        Raises:
            MoboptError: there is no such backend or release.
        """
        backend, _, runtime = text.partition(":")
        return cls(parse_backend(backend), parse_runtime(runtime or DEFAULT_RUNTIME, others=()))

    def __str__(self) -> str:
        return f"{self.backend} {self.runtime}"


TARGETS = (ReportTarget(), ReportTarget(runtime="2.6"), ReportTarget("metal"), ReportTarget("cpu"))
"""What a report is about unless something else is asked for; the first is the one that accuracy is told of."""


@dataclass(frozen=True)
class Report:
    """What is known of a model.

    Attributes:
        name: its name.
        facts: what it is, by label.
        audits: what each target does with it.
        runs: what came of methods on the device, by name; of those that have inputs.
        refusals: what could not be found out, by name, and why.
        inputs: what was run, in words.
        seconds: that the report took.
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    audits: dict[ReportTarget, Audit]
    runs: dict[str, MethodRun]
    refusals: dict[str, str]
    inputs: str
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether every target computes it right, and the device does."""
        return all(found.is_good for found in self.audits.values()) and all(
            run.comparison is None or run.comparison.agrees for run in self.runs.values()
        )


def report(
    model: object,
    *,
    targets: Sequence[ReportTarget] = TARGETS,
    device: str | None = BEST_DEVICE,
    example_inputs: ExampleInputs | None = None,
    repeat: int = 10,
    show: Callable[[str], None] = lambda step: None,
) -> Report:
    """Find out all that a page tells of a model.

    Args:
        model: a file, before conversion or optimised, or any model that mobopt takes.
        targets: backends and releases; an optimised file has its own backend.
        device: where it is run: ``"vulkan"`` for the best device, a number, a part of a name; None: nowhere.
        example_inputs: arguments of ``forward``, or of several methods by name; without them, those that come with the
            model. Methods that have inputs are audited as conversions would preserve them, and run.
        repeat: timed calls.
        show: is told each step.

    Raises:
        MoboptError: the model can't be read, or there is no device of this name. What else can't be done is told in the
            report.
    """
    started = time.perf_counter()
    if device not in (None, BEST_DEVICE):
        from mobopt.runtimes.vulkan.engine.devices import open_device

        open_device(device)
    show("reading")
    source = whole_source_of(model, example_inputs)
    refusals: dict[str, str] = {}
    inputs = choose_inputs(source, example_inputs)
    preserved = [method for method in inputs.by_method if method != _FORWARD]
    audits = _audits(model, source, targets, example_inputs, preserved, refusals, show)
    is_bundle = any(found.is_bundle for found in audits.values())
    runs = {}
    if device is not None:
        runs = runs_of(source, device, None if is_bundle else _pipeline(targets), inputs, repeat, refusals, show)
    facts = tuple(_facts(model, source, list(audits.values())))
    seconds = time.perf_counter() - started
    return Report(source.name, facts, audits, runs, refusals, str(inputs), seconds)


def _audits(
    model: object,
    source: Source,
    targets: Sequence[ReportTarget],
    example_inputs: ExampleInputs | None,
    preserved: Sequence[str],
    refusals: dict[str, str],
    show: Callable[[str], None],
) -> dict[ReportTarget, Audit]:
    """What each target does with the model; of an optimised file, releases of its own backend."""
    first = targets[0]
    subject: Any = source
    if isinstance(model, (str, Path)):
        show(f"auditing for {first}")
        own = tried(
            refusals, "audit", lambda: audit(model, None, first.runtime, example_inputs, preserved_methods=preserved)
        )
        if own is not None and own.is_bundle:
            subject = model
            runtimes = [target.runtime for target in targets if target.backend == own.backend] or [first.runtime]
            targets = [ReportTarget(own.backend, runtime) for runtime in runtimes]
    if subject is source and not source.program.methods.keys() <= {_FORWARD, *preserved}:
        subject = source_of(model, preserved, example_inputs)  # what conversions keep, and no methods that these call
    audits = {}
    for target in targets:
        show(f"auditing for {target}")
        work = partial(audit, subject, target.backend, target.runtime, example_inputs, preserved_methods=preserved)
        found = tried(refusals, f"audit for {target}", work)
        if found is not None:
            audits[target] = found
    return audits


def _pipeline(targets: Sequence[ReportTarget]) -> PassPipeline:
    first = targets[0] if targets else ReportTarget()
    return PassPipeline.default(first.backend, runtime=first.runtime)


def _facts(model: object, source: Source, audits: Sequence[Audit]) -> Iterator[tuple[str, str]]:
    methods = {name: graph for name, graph in source.program.methods.items() if not name.startswith(HELPER_METHODS)}
    program = replace(source.program, methods=methods)
    if isinstance(model, (str, Path)):
        yield "file", f"{Path(model).name}, {Path(model).stat().st_size / 1e6:.2f} MB"
    kind = type(source).__name__
    yield "kind", _KINDS.get(kind, kind)
    yield "methods", ", ".join(program.methods)
    yield "weights", f"{tensor_bytes(program) / 1e6:.2f} MB"
    operators = {name: count for name, count in count_operators(program).items() if not name.startswith("prim::")}
    most = sorted(operators.items(), key=lambda item: -item[1])[:6]
    kinds = ", ".join(f"{count} {name}" for name, count in most)
    yield "operators", f"{sum(operators.values())} of {len(operators)} kinds: {kinds}"
    change = next((found.change for found in audits if found.change is not None), None)
    if change is not None and change.multiply_adds_before:
        yield "arithmetic", f"{change.multiply_adds_before / 1e6:.1f} million multiply-adds"
