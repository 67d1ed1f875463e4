"""Everything about one model for a colleague: what it is, what targets do with it, accuracy, speed, what would help."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from mobopt.bundle.info import count_operators, tensor_bytes
from mobopt.errors import DeviceError, InputError, MoboptError
from mobopt.frontends.open_source import source_of, whole_source_of
from mobopt.frontends.source import Source
from mobopt.optimizer import optimize
from mobopt.options import DEFAULT_RUNTIME, OWN_RUNTIME, Settings, parse_backend, parse_runtime
from mobopt.passes.pipelines import PassPipeline
from mobopt.samples.example_inputs import ChosenInputs, ExampleInputs, choose_inputs
from mobopt.tools.audit import Audit, audit
from mobopt.tools.comparison import compare
from mobopt.tools.comparison_results import Comparison
from mobopt.tools.execution import timed_calls
from mobopt.tools.profiling import Layer, layers_of, median_times

if TYPE_CHECKING:
    from mobopt.runtimes.vulkan.program import VulkanProgram

Found = TypeVar("Found")
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
class Measurement:
    """A model on a device of this machine, beside eager PyTorch on its CPU.

    Attributes:
        device: its name.
        milliseconds: of each call.
        eager_milliseconds: of each call of the model itself, on the CPU, measured in turn.
        threads: of the CPU, for eager PyTorch.
        layers: those that take longest first; empty if the device has no clock.
        dispatches: how many a call has.
        fallbacks: operators on the CPU, with the reason.
        peak_bytes: of device memory; None if nothing is left to compute.
        lower_bound_bytes: weights, and the largest set of tensors alive at once.
    """

    device: str
    milliseconds: tuple[float, ...]
    eager_milliseconds: tuple[float, ...]
    threads: int
    layers: tuple[Layer, ...]
    dispatches: int
    fallbacks: tuple[str, ...]
    peak_bytes: int | None
    lower_bound_bytes: int | None

    @property
    def median(self) -> float:
        """Milliseconds of a call."""
        return statistics.median(self.milliseconds)

    @property
    def eager_median(self) -> float:
        """Milliseconds of a call of the model itself."""
        return statistics.median(self.eager_milliseconds)


@dataclass(frozen=True)
class Report:
    """What is known of a model.

    Attributes:
        name: its name.
        facts: what it is, by label.
        audits: what each target does with it.
        comparison: layer by layer, the model on the CPU and what runs on the device.
        measurement: times and memory.
        refusals: what could not be found out, by name, and why.
        inputs: what was run, in words.
        seconds: that the report took.
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    audits: dict[ReportTarget, Audit]
    comparison: Comparison | None
    measurement: Measurement | None
    refusals: dict[str, str]
    inputs: str
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether every target computes it right, and the device does."""
        return all(found.is_good for found in self.audits.values()) and (
            self.comparison is None or self.comparison.agrees
        )


def report(
    model: object,
    *,
    targets: Sequence[ReportTarget] = TARGETS,
    device: str | None = "vulkan",
    example_inputs: ExampleInputs | None = None,
    repeat: int = 10,
    show: Callable[[str], None] = lambda step: None,
) -> Report:
    """Find out all that a page tells of a model.

    Args:
        model: a file, before conversion or optimised, or any model that mobopt takes.
        targets: backends and releases; an optimised file has its own backend.
        device: where it is run: ``"vulkan"`` for the best device, a number, a part of a name; None: nowhere.
        example_inputs: arguments of ``forward``, or of several methods by name, which are audited as conversions would
            preserve them.
        repeat: timed calls.
        show: is told each step.

    Raises:
        MoboptError: the model can't be read. What else can't be done is told in the report.
    """
    started = time.perf_counter()
    show("reading")
    source = whole_source_of(model, example_inputs)
    refusals: dict[str, str] = {}
    audits = _audits(model, source, targets, example_inputs, refusals, show)
    is_bundle = any(found.is_bundle for found in audits.values())
    inputs = choose_inputs(source, example_inputs)
    comparison, measurement = None, None
    if device is not None:
        show("comparing layer by layer")
        passes = None if is_bundle else _pipeline(targets)
        comparison = _tried(
            refusals,
            "accuracy",
            lambda: compare(source, device_b=device, passes_b=passes, example_inputs=inputs.by_method or None),
        )
        show("measuring")
        measurement = _tried(refusals, "speed", lambda: _measured(source, device, inputs, repeat, is_bundle))
    facts = tuple(_facts(model, source, list(audits.values())))
    seconds = time.perf_counter() - started
    return Report(source.name, facts, audits, comparison, measurement, refusals, str(inputs), seconds)


def _audits(
    model: object,
    source: Source,
    targets: Sequence[ReportTarget],
    example_inputs: ExampleInputs | None,
    refusals: dict[str, str],
    show: Callable[[str], None],
) -> dict[ReportTarget, Audit]:
    """What each target does with the model; of an optimised file, releases of its own backend."""
    first = targets[0]
    subject: Any = source
    preserved = [name for name in example_inputs if name != _FORWARD] if isinstance(example_inputs, Mapping) else []
    if isinstance(model, (str, Path)):
        show(f"auditing for {first}")
        own = _tried(
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
        found = _tried(refusals, f"audit for {target}", work)
        if found is not None:
            audits[target] = found
    return audits


def _tried(refusals: dict[str, str], name: str, work: Callable[[], Found]) -> Found | None:
    """What a part of a report finds; None, and the reason among the refusals, if it can't be done."""
    try:
        return work()
    except MoboptError as error:
        refusals[name] = str(error)
        return None


def _pipeline(targets: Sequence[ReportTarget]) -> PassPipeline:
    first = targets[0] if targets else ReportTarget()
    return PassPipeline.default(first.backend, runtime=first.runtime)


def _facts(model: object, source: Source, audits: Sequence[Audit]) -> Iterator[tuple[str, str]]:
    program = source.program
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


def _measured(source: Source, device: str, inputs: ChosenInputs, repeat: int, is_bundle: bool) -> Measurement:
    from mobopt.runtimes.vulkan.program import VulkanProgram

    arguments = inputs.by_method.get(_FORWARD)
    if arguments is None:
        raise InputError(
            "no inputs are known that the model takes; give them with --input x.npy or --random 1,3,224,224"
        )
    program = source.program
    if not is_bundle:
        program = optimize(source, Settings("vulkan", OWN_RUNTIME), inputs.by_method).program
    runtime = VulkanProgram(program, None if device == "vulkan" else device)
    try:
        plan = runtime.plan_report(copy.deepcopy(list(arguments)))
        eager = source.caller()
        with torch.no_grad():
            eager(copy.deepcopy(list(arguments)))
            pairs = [
                (
                    timed_calls(lambda: runtime.run(_FORWARD, copy.deepcopy(list(arguments))), 1)[1][0] * 1000,
                    timed_calls(lambda: eager(copy.deepcopy(list(arguments))), 1)[1][0] * 1000,
                )
                for _ in range(repeat)
            ]
        memory = plan.memory
        return Measurement(
            str(runtime.device.info),
            tuple(own for own, _ in pairs),
            tuple(theirs for _, theirs in pairs),
            torch.get_num_threads(),
            tuple(_layers(runtime, arguments, repeat)),
            plan.dispatches,
            tuple(map(str, plan.fallbacks)),
            None if memory is None else memory.peak_bytes,
            None if memory is None else memory.lower_bound_bytes,
        )
    finally:
        runtime.close()


def _layers(runtime: VulkanProgram, arguments: Sequence[Any], repeat: int) -> list[Layer]:
    """As ``mobopt profile`` tells them; nothing if the device has no clock."""
    from mobopt.runtimes.vulkan.device_roofs import roofs_of

    try:
        runs = [runtime.profile(copy.deepcopy(list(arguments))) for _ in range(repeat + 1)]
        layers = layers_of(median_times(runs)[0], roofs_of(runtime.device))
    except DeviceError:
        return []
    return sorted(layers, key=lambda layer: -layer.work.seconds)
