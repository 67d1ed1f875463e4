"""A report as one page of HTML that needs no network, and what it advises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mobopt.tools.audit import Audit, AuditLine
from mobopt.tools.audit_calls import MISSING, REWRITTEN, UNKNOWN, VERDICTS, WRONG
from mobopt.tools.audit_page import MEANINGS
from mobopt.tools.comparison_page import page_values
from mobopt.tools.html_page import rendered, write_html
from mobopt.tools.report import Report

_LAYERS_SHOWN = 30
_PROBLEMS = (WRONG, MISSING, UNKNOWN)
_MUCH_MORE = 2.0
"""Times the multiply-adds of the model from which a conversion is said to cost much."""


@dataclass(frozen=True)
class Advice:
    """Something that would help: what, for which targets, and the command that begins it."""

    text: str
    targets: tuple[str, ...] = ()
    command: str = ""


def page(found: Report) -> str:
    """The page."""
    measurement = found.measurement
    layers = () if measurement is None else measurement.layers
    first = next(iter(found.audits.values()), None)
    return rendered(
        "report",
        report=found,
        comparison=None if found.comparison is None else page_values(found.comparison),
        rewritten=[] if first is None else [line for line in first.lines if line.verdict == REWRITTEN],
        notes=() if first is None else first.notes,
        first=first,
        right=[str(target) for target, audited in found.audits.items() if audited.is_good],
        verdicts=VERDICTS,
        meanings=MEANINGS,
        layers=layers[:_LAYERS_SHOWN],
        other_layers=(len(layers[_LAYERS_SHOWN:]), 1e3 * sum(layer.work.seconds for layer in layers[_LAYERS_SHOWN:])),
        longest=max((layer.work.seconds for layer in layers), default=1.0) or 1.0,
        advice=advice_on(found),
    )


def write_page(found: Report, path: Path) -> None:
    """Write the page; the file appears when it is whole.

    Raises:
        InputError: the path can't be written.
    """
    write_html(page(found), path)


def advice_on(found: Report) -> list[Advice]:
    """What would help: backends in the order that was asked for, of each the gravest first; the same advice for several
    targets once."""
    merged: dict[Advice, list[str]] = {}
    for backend in dict.fromkeys(target.backend for target in found.audits):
        audits = {target: audited for target, audited in found.audits.items() if target.backend == backend}
        for of_audit in (_problems, _costs, _causes):
            for target, audited in audits.items():
                for item in of_audit(audited):
                    merged.setdefault(item, []).append(str(target))
    advice = [replace(item, targets=tuple(targets)) for item, targets in merged.items()]
    return [*advice, *_of_runs(found)]


def _problems(audited: Audit) -> Iterator[Advice]:
    alike: dict[tuple[str, str, str], list[AuditLine]] = {}
    for line in audited.lines:
        if line.verdict in _PROBLEMS:
            alike.setdefault((line.verdict, line.reason, line.help), []).append(line)
    for (verdict, reason, advice), lines in alike.items():
        names = ", ".join(f"{line.operator}{_place(line)}" for line in lines)
        text = f"{names} {'are' if len(lines) > 1 else 'is'} {verdict}: {reason}"
        yield Advice(f"{text}; {advice}" if advice else text)
    for limit in audited.limits:
        yield Advice(f"{limit.node}: its {limit.subject} {limit.problem}; {limit.help}")
    if not audited.inputs and audited.backend != "cpu":
        yield Advice("Sizes decide much, and none are known: give example inputs", command="--random 1,3,224,224")


def _place(line: AuditLine) -> str:
    """The first line of source."""
    return f" ({line.sources[0].split(', ')[0]})" if line.sources else ""


def _costs(audited: Audit) -> Iterator[Advice]:
    """Rewrites that cost much more than the model."""
    times = None if audited.change is None else audited.change.arithmetic
    if times is not None and times > _MUCH_MORE:
        names = dict.fromkeys(line.operator for line in audited.lines if line.verdict == REWRITTEN)
        yield Advice(f"Rewrites make the multiply-adds {times:,.1f} times as many: {', '.join(names)}")


def _causes(audited: Audit) -> Iterator[Advice]:
    saving = [cause for cause in audited.causes if cause.saves]
    for cause in saving or audited.causes:
        follow = "1 operator follows" if cause.followers == 1 else f"{cause.followers} operators follow"
        place = "on the phone's CPU" + (f", and {follow}" if cause.followers else "")
        yield Advice(f"{cause.count} {cause.operator} {place}: {cause.reason}. A kernel would save {cause.saved}")


def _of_runs(found: Report) -> Iterator[Advice]:
    comparison, measurement = found.comparison, found.measurement
    if comparison is not None and not comparison.agrees:
        yield Advice(
            "The device gives another result: find the pass, node or fusion", command=f"mobopt bisect {found.name}"
        )
    if measurement is None:
        return
    for reason in dict.fromkeys(measurement.fallbacks):
        yield Advice(f"On this device, the CPU computes {reason}")
    copied = sum(layer.work.seconds for layer in measurement.layers if layer.reason)
    whole = sum(layer.work.seconds for layer in measurement.layers)
    if whole and copied > whole / 10:
        yield Advice(f"{copied / whole:.0%} of the time is spent on the CPU, between dispatches")
    if measurement.median > measurement.eager_median:
        yield Advice("Eager PyTorch on the CPU of this machine is faster than this device: it may not be worth a GPU")
