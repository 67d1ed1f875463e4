"""Audits: what a phone's runtime does with each operator of a model, before conversion or in an optimised file."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from mobopt.bundle import read_bundle
from mobopt.errors import InputError, UnsupportedError
from mobopt.frontends.open_source import source_of
from mobopt.frontends.quantized_source import source_for
from mobopt.frontends.source import Source
from mobopt.ir import Program
from mobopt.module import MobileModule
from mobopt.ops.targets.device_profiles import ANY_PHONE, DeviceProfile, find_profile
from mobopt.ops.targets.table import IMAGE_LIMIT
from mobopt.options import DEFAULT_LEGALIZE, DEFAULT_RUNTIME, Settings, parse_backend, parse_legalize, parse_runtime
from mobopt.passes.facts import Examples, may_have_halves, record_facts
from mobopt.runtimes.bounds import DeclaredBounds
from mobopt.samples.example_inputs import (
    NONE,
    ChosenInputs,
    ExampleInputs,
    choose_inputs,
    choose_inputs_of_bundle,
    given_inputs,
    with_bounds,
)
from mobopt.samples.unknown_sizes import declared_text
from mobopt.tools.allowed_operators import read_allowed_operators
from mobopt.tools.audit_calls import (
    MISSING,
    ON_CPU,
    UNKNOWN,
    VERDICTS,
    WRONG,
    AuditedCall,
    Cause,
    CostChange,
    judge_bundle,
    judge_model,
    milliseconds_saved,
)
from mobopt.tools.device_limits import LimitFinding, over_limits
from mobopt.tools.operator_names import operator_names
from mobopt.tools.optimized_files import backend_of_program, is_optimized

DEFAULT_BACKEND = "vulkan"


@dataclass(frozen=True)
class AuditLine:
    """The calls of one operator that share verdict and reason."""

    operator: str
    """With overload."""
    count: int
    """How many calls there are."""
    verdict: str
    """``native``, ``rewritten`` (the conversion writes it with other operators), ``cpu`` (right, on the phone's CPU,
    between transfers), ``unknown`` (only sizes tell), ``unreached`` (missing, where no input comes), ``missing`` or
    ``wrong``."""
    reason: str
    """Why the verdict is what it is."""
    sources: tuple[str, ...]
    """Where in the model they come from, each once."""
    operands: str
    """Dtypes and sizes of the tensors of the first."""
    rewrite: str = ""
    """Name of the rewrite that the conversion makes; empty if there is none."""
    rewrite_summary: str = ""
    """What it does, in words."""
    fixes_sizes: bool = False
    """Whether the rewrite fixes the file to the sizes of the example inputs."""
    help: str = ""
    """What the author of the model can change."""
    follows: str = ""
    """The operator that keeps these on the phone's CPU, if that is another one."""


_CAUSES_NAMED = 3


@dataclass(frozen=True)
class Audit:
    """What a runtime does with a model.

    Attributes:
        model: its name.
        is_bundle: whether it is an optimised file, and not a model before conversion.
        backend: ``vulkan``, ``metal`` or ``cpu``.
        runtime: release of PyTorch.
        legalize: level of the conversion that was tried; empty for an optimised file.
        inputs: where sizes come from, in words; empty if none are known.
        lines: one for each operator, verdict and reason, the worst first; causes before what follows from them.
        causes: why operators of a model run on the phone's CPU, what would help most first; empty for an optimised
            file.
        gpu_share: the part of the multiply-adds that the phone's GPU does, 0 to 1; None where sizes are not known, for
            other backends, and for an optimised file.
        microseconds: what a call would take less on a phone, roughly, if its GPU could run the causes that are worth
            it.
        operators: of the optimised file, as a selective build names them.
        profile: the device whose limits are checked.
        limits: tensors and weights that it can't hold.
        missing_from_build: operators that the app's build lacks; None if no list was given.
        change: what the conversion does to the number of operators and to arithmetic; None for an optimised file.
        notes: what the passes said.
        seconds: that the audit took.
    """

    model: str
    is_bundle: bool
    backend: str
    runtime: str
    legalize: str
    inputs: str
    lines: tuple[AuditLine, ...]
    causes: tuple[Cause, ...]
    gpu_share: float | None
    microseconds: float
    operators: tuple[str, ...]
    profile: DeviceProfile | None = None
    limits: tuple[LimitFinding, ...] = ()
    missing_from_build: tuple[str, ...] | None = None
    change: CostChange | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """Number of calls by verdict, the worst verdict first, zeros left out."""
        found: Counter[str] = Counter()
        for line in self.lines:
            found[line.verdict] += line.count
        return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}

    @property
    def problems(self) -> list[str]:
        """What speaks against shipping it, in words: ``2 missing``."""
        found = [f"{self.counts[verdict]} {verdict}" for verdict in (WRONG, MISSING, UNKNOWN) if verdict in self.counts]
        if self.profile is not None and self.limits:
            found.append(f"{len(self.limits)} too large for {self.profile.name}")
        if self.missing_from_build:
            found.append(f"{len(self.missing_from_build)} operators missing from the app's build")
        return found

    @property
    def placement(self) -> str:
        """In words, how much runs on the phone's GPU; empty if that is not known, or everything does."""
        return "; ".join(text for text in (self.share, self.reasons) if text)

    @property
    def share(self) -> str:
        """In words, how much of the arithmetic the phone's GPU does; empty as :attr:`placement` is."""
        is_told = self.gpu_share is not None and ON_CPU in self.counts
        return f"{self.gpu_share:.0%} of the multiply-adds run on the GPU" if is_told else ""

    @property
    def reasons(self) -> str:
        """In words, what runs on the phone's CPU, because of what, and what mending that would save; empty as
        :attr:`placement` is."""
        if not self.share:
            return ""
        on_cpu = self.counts[ON_CPU]
        causes = sum(cause.count for cause in self.causes)
        if not causes:
            return f"{_operators(on_cpu)} on the CPU"
        caused = causes + sum(cause.followers for cause in self.causes)
        because = f" because of {causes} of them" if causes < caused else ""
        saved = milliseconds_saved(self.microseconds)
        others = [f"{on_cpu - caused} more only compute sizes"] if on_cpu > caused else []
        is_together = saved and saved != milliseconds_saved(self.causes[0].microseconds)
        worth = [f"kernels for those worth it save {saved} a call together"] if is_together else []
        named = ", ".join(map(_named, self.causes[:_CAUSES_NAMED]))
        rest = len(self.causes) - _CAUSES_NAMED
        named += f", and {rest} more reasons" if rest > 1 else ", and 1 more reason" if rest == 1 else ""
        return "; ".join([f"{_operators(caused)} on the CPU{because}: {named}", *worth, *others])

    @property
    def is_good(self) -> bool:
        """Whether nothing is missing, wrong or unknown, on the named device and in the app's build too."""
        return not self.problems


def audit(
    model: torch.nn.Module | torch.export.ExportedProgram | str | os.PathLike[str],
    backend: str | None = None,
    runtime: str = DEFAULT_RUNTIME,
    example_inputs: ExampleInputs | None = None,
    *,
    preserved_methods: Sequence[str] = (),
    legalize: str | None = None,
    device_profile: str | None = None,
    allow: str | os.PathLike[str] | None = None,
    bounds: DeclaredBounds | None = None,
) -> Audit:
    """Find out what a phone's runtime does with every operator of a model.

    Args:
        model: a ScriptModule, an ExportedProgram, an nn.Module with ``example_inputs``, a file of ``torch.jit.save`` or
            ``torch.export.save``, or an optimised file of any backend.
        backend: ``vulkan`` (the default), ``metal`` or ``cpu``; an optimised file knows its own.
        runtime: release of PyTorch on the phone.
        example_inputs: arguments of ``forward`` whose sizes decide, or of several methods by name; without them, those
            that ``optimize_for_mobile`` finds.
        preserved_methods: what the conversion will keep beside ``forward``; of an optimised file all are audited.
        legalize: ``off``, ``safe`` or ``full`` (the default), as the conversion will be asked for.
        device_profile: name of a device in ``mobopt/ops/targets/device_profiles.toml`` whose limits are checked,
            and whose limit of images the conversion is asked to keep.
        allow: the operator list of the app's build of PyTorch, a YAML file.
        bounds: the sizes that inputs may have, for all of which the verdict holds; see ``optimize_for_mobile``.

    Returns:
        A verdict for every operator, with reasons; ``is_good`` says whether anything speaks against shipping it.

    Raises:
        ArgumentTypeError: the model is of no form that is taken.
        BundleError: the file can't be read.
        InputError: an argument can't be used, or the model can't be run on the example inputs.
    """
    started = time.perf_counter()
    allowed = None if allow is None else read_allowed_operators(Path(allow))
    subject = _open(model, preserved_methods, example_inputs)
    settings = Settings(
        _backend_of(subject, backend),
        parse_runtime(runtime, others=()),
        legalize=parse_legalize(legalize or DEFAULT_LEGALIZE),
    )
    if subject.backend and legalize is not None:
        raise InputError(f"{subject.name} is optimised already; --legalize is for models before conversion")
    if subject.source is not None:
        target = source_for(subject.source, settings.backend, settings.is_for_phones)
        subject = replace(subject, program=target.program, source=target)
    profile = None if device_profile is None else find_profile(device_profile, settings.backend)
    if profile is not None and profile.backend == ANY_PHONE.backend:
        # A file is held against the limit below, where it is too large for the device.
        limit = max(profile.image_3d, IMAGE_LIMIT) if subject.backend else profile.image_3d
        settings = replace(settings, image_limit=limit)
    judge = judge_bundle if subject.backend else judge_model
    try:
        inputs = with_bounds(subject.program, _inputs_of(subject, settings, example_inputs), bounds or {})
        judged = judge(subject.program.clone(), settings, inputs.examples)
    except UnsupportedError:  # it has operators that can't be run here, so nothing is known of sizes
        inputs = ChosenInputs(None, NONE)
        judged = judge(subject.program, settings, inputs.examples)
    operators = operator_names(judged.program)
    return Audit(
        model=subject.name,
        is_bundle=bool(subject.backend),
        backend=settings.backend,
        runtime=settings.runtime,
        legalize="" if subject.backend else settings.legalize,
        inputs="; ".join(filter(None, (str(inputs), declared_text(judged.program)))) if inputs.by_method else "",
        lines=tuple(_lines(judged.calls)),
        causes=judged.causes,
        gpu_share=judged.gpu_share,
        microseconds=judged.microseconds,
        operators=tuple(operators),
        profile=profile,
        limits=tuple(_limits(judged.program, settings, profile, inputs.examples)),
        missing_from_build=None if allowed is None else tuple(allowed.lacking(operators)),
        change=judged.change,
        notes=tuple(map(str, judged.notes)),
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True)
class _Subject:
    """What is audited."""

    name: str
    program: Program
    backend: str = ""
    """Of an optimised file; empty for a model before conversion."""
    source: Source | None = None
    """A model before conversion."""


def _open(model: object, preserved: Sequence[str], example_inputs: ExampleInputs | None) -> _Subject:
    if isinstance(model, MobileModule):
        return _Subject("module", model.program.clone(), backend_of_program(model.program))
    if isinstance(model, (str, os.PathLike)) and is_optimized(Path(model)):
        file = Path(model)
        program = read_bundle(file)
        return _Subject(file.name, program, backend_of_program(program))
    source = source_of(model, preserved, example_inputs)
    return _Subject(source.name, source.program, source=source)


def _backend_of(subject: _Subject, asked: str | None) -> str:
    backend = None if asked is None else parse_backend(asked)
    if subject.backend and backend not in (None, subject.backend):
        raise InputError(
            f"{subject.name} is optimised for {subject.backend}, and the backend asked for is {backend}; leave the "
            "backend out, or audit the model that the file was made from"
        )
    return subject.backend or backend or DEFAULT_BACKEND


def _inputs_of(subject: _Subject, settings: Settings, given: ExampleInputs | None) -> ChosenInputs:
    """Inputs whose sizes decide, as the conversion chooses them; a stock CPU takes all sizes, but no halves."""
    if settings.backend == "cpu" and not may_have_halves(subject.program, Examples()):
        return ChosenInputs(None, NONE) if given is None else given_inputs(subject.program, given)
    if subject.source is None:
        return choose_inputs_of_bundle(subject.program, given)
    return choose_inputs(subject.source, given)


def _limits(
    program: Program, settings: Settings, profile: DeviceProfile | None, examples: Examples
) -> list[LimitFinding]:
    """Against the named device; without one only weights, which target rows do not judge, against most phones'."""
    if profile is not None:
        record_facts(program, examples)
        return over_limits(program, profile, settings.runtime)
    if settings.backend != ANY_PHONE.backend:
        return []
    return over_limits(program, ANY_PHONE, settings.runtime, only_weights=True)


def _operators(count: int) -> str:
    return "1 operator runs" if count == 1 else f"{count} operators run"


def _named(cause: Cause) -> str:
    """A cause with what it drags along and what mending it alone would save."""
    saved = milliseconds_saved(cause.microseconds)
    drags = [f"{cause.followers} more follow" if cause.followers > 1 else "1 more follows"] if cause.followers else []
    facts = "; ".join([*drags, *([f"a kernel saves {saved} a call"] if saved else [])])
    return f"{cause.count} {cause.operator.replace(', ', '/')}" + (f" ({facts})" if facts else "")


def _lines(calls: Iterable[AuditedCall]) -> list[AuditLine]:
    """Calls that share operator, verdict and reason, together; the worst and most frequent first."""
    groups: dict[tuple[str, ...], list[AuditedCall]] = defaultdict(list)
    for call in calls:
        groups[call.operator, call.verdict, call.reason, call.follows].append(call)
    ordered = sorted(groups.values(), key=lambda group: (_gravity(group[0]), -len(group), group[0].operator))
    return [_line(group) for group in ordered]


def _gravity(call: AuditedCall) -> tuple[int, int]:
    """What comes first: the worst; of what is on the CPU its causes, and what only computes sizes last."""
    return VERDICTS.index(call.verdict), 0 if call.is_cause else 1 if call.follows else 2


_LINES_SHOWN = 2


def short_source(source: str) -> str:
    """Lines of source of one operator; of many, as fusions have, the first."""
    lines = source.split(", ")
    if len(lines) <= _LINES_SHOWN:
        return source
    return f"{lines[0]} and {len(lines) - 1} more lines"


def _line(calls: Sequence[AuditedCall]) -> AuditLine:
    first = calls[0]
    sources = tuple(dict.fromkeys(call.source for call in calls if call.source))
    return AuditLine(
        first.operator,
        len(calls),
        first.verdict,
        first.reason,
        sources,
        first.operands,
        first.rewrite,
        first.rewrite_summary,
        first.fixes_sizes,
        first.help,
        first.follows,
    )
