"""A report as one page of HTML that needs no network, and what it advises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mobopt.display import size_text
from mobopt.tools.audit import Audit, AuditLine
from mobopt.tools.audit_calls import MISSING, REWRITTEN, UNKNOWN, VERDICTS, WRONG
from mobopt.tools.audit_page import MEANINGS
from mobopt.tools.comparison_page import page_values
from mobopt.tools.html_page import rendered, write_html
from mobopt.tools.report import Report
from mobopt.tools.report_runs import Measurement, MethodRun

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
    first = next(iter(found.audits.values()), None)
    comparisons = {method: run.comparison for method, run in found.runs.items() if run.comparison is not None}
    return rendered(
        "report",
        report=found,
        comparisons={method: page_values(comparison) for method, comparison in comparisons.items()},
        differing=[method for method, comparison in comparisons.items() if not comparison.agrees],
        speeds={method: _speed(run.measurement) for method, run in found.runs.items() if run.measurement is not None},
        size_text=size_text,
        rewritten=[] if first is None else [line for line in first.lines if line.verdict == REWRITTEN],
        notes=() if first is None else first.notes,
        first=first,
        right=[str(target) for target, audited in found.audits.items() if audited.is_good],
        verdicts=VERDICTS,
        meanings=MEANINGS,
        advice=advice_on(found),
    )


def _speed(measurement: Measurement) -> dict[str, Any]:
    """What the macro ``speed`` of the template asks for."""
    shown, others = measurement.layers[:_LAYERS_SHOWN], measurement.layers[_LAYERS_SHOWN:]
    return {
        "found": measurement,
        "layers": shown,
        "others": (len(others), 1e3 * sum(layer.work.seconds for layer in others)),
        "longest": max((layer.work.seconds for layer in shown), default=1.0) or 1.0,
    }


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
    for method, run in found.runs.items():
        advice += _of_run(run, found.name, method if len(found.runs) > 1 else "")
    return advice


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


def _of_run(run: MethodRun, model: str, method: str) -> Iterator[Advice]:
    """Of a method on the device of this machine; the method is named if there are several."""
    comparison, measurement = run.comparison, run.measurement
    of_method, option = (f" of {method}", f" --method {method}") if method else ("", "")
    if comparison is not None and not comparison.agrees:
        yield Advice(
            f"The device gives another result{of_method}: find the pass, node or fusion",
            command=f"mobopt bisect {model}{option}",
        )
    if measurement is None:
        return
    for reason in dict.fromkeys(measurement.fallbacks):
        yield Advice(f"On this device, the CPU computes{f', in {method},' if method else ''} {reason}")
    copied = sum(layer.work.seconds for layer in measurement.layers if layer.reason)
    whole = sum(layer.work.seconds for layer in measurement.layers)
    if whole and copied > whole / 10:
        yield Advice(f"{copied / whole:.0%} of the time{of_method} is spent on the CPU, between dispatches")
    if measurement.median > measurement.eager_median:
        where = f" in {method}" if method else ""
        yield Advice(
            f"Eager PyTorch on the CPU of this machine is faster{where} than this device: it may not be worth a GPU"
        )
