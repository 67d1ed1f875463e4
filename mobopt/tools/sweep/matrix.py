"""The results of a sweep as a table: a row for each model, a column for each job."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mobopt.tools.sweep.jobs import AUDIT, BAD, BENCH, COMPARE, CONVERT, GOOD, JOBS, STATES, Job, Outcome
from mobopt.tools.sweep.store import Result

_NO_RESULT = ""
_BUSY = 1.5
"""Processes for each core above which times are not to be trusted."""


@dataclass(frozen=True)
class Matrix:
    """Models and jobs, with what is known of each pair."""

    models: tuple[str, ...]
    jobs: tuple[Job, ...]
    results: dict[tuple[str, Job], Result]

    @classmethod
    def of(cls, results: Sequence[Result]) -> Matrix:
        """The table of all results."""
        order = list(JOBS)
        jobs = {result.job for result in results}
        return cls(
            tuple(dict.fromkeys(result.model for result in results)),
            tuple(sorted(jobs, key=lambda job: (order.index(job.do) if job.do in order else len(order), job))),
            {result.key: result for result in results},
        )

    @property
    def states(self) -> list[str]:
        """Those that there are, in the order of :data:`STATES`."""
        found = {result.outcome.state for result in self.results.values()}
        return [state for state in STATES if state in found]

    def counts(self) -> Iterator[tuple[str, ...]]:
        """For each job, its name and how many results have each state."""
        counted = Counter((job, result.outcome.state) for (_, job), result in self.results.items())
        for job in self.jobs:
            yield str(job), *(str(counted[job, state] or "") for state in self.states)

    def rows(self) -> Iterator[tuple[str, list[str]]]:
        """For each model, its name and a short text for each job."""
        for model in self.models:
            yield model, [self.cell(model, job) for job in self.jobs]

    def cell(self, model: str, job: Job) -> str:
        """What is known of a pair, in a few words."""
        result = self.results.get((model, job))
        return _NO_RESULT if result is None else cell_text(job, result.outcome)


def problems_of(results: Iterable[Result]) -> list[list[Result]]:
    """What is not good: the results of a model that end in the same way, together."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        if not result.outcome.is_good:
            groups.setdefault((result.model, result.outcome.state, result.outcome.text), []).append(result)
    return list(groups.values())


def cell_text(job: Job, outcome: Outcome) -> str:
    """An outcome in a few words: the number that its job is about, or its state."""
    if outcome.state not in (GOOD, BAD):
        return outcome.state
    numbers = {AUDIT: _audit_text, CONVERT: _error_text, COMPARE: _error_text, BENCH: _time_text}.get(job.do)
    text = numbers(outcome) if numbers is not None else ""
    if outcome.state == BAD:
        return f"bad: {text}" if text else "bad"
    return text or "good"


def loads_of(outcomes: Iterable[Outcome]) -> list[float]:
    """How many processes wanted each core while times were taken, where that was too many."""
    loads = (outcome.data.get("load") for outcome in outcomes)
    return [load for load in loads if isinstance(load, float) and load > _BUSY]


def busy_text(outcomes: Iterable[Outcome]) -> str:
    """What is to be said of times that were taken beside other work; empty if none were."""
    loads = loads_of(outcomes)
    if not loads:
        return ""
    times = "1 time was" if len(loads) == 1 else f"{len(loads)} times were"
    return f"{times} taken while {crowd_text(loads)}: measure again on a quiet machine"


def crowd_text(loads: Sequence[float]) -> str:
    """Loads as the end of a sentence."""
    bounds = dict.fromkeys(f"{load:.0f}" for load in (min(loads), max(loads)))
    return f"{' to '.join(bounds)} processes wanted each core"


def _audit_text(outcome: Outcome) -> str:
    if outcome.data.get("problems"):
        return ", ".join(map(str, outcome.data["problems"]))
    share, on_cpu = outcome.data.get("gpu_share"), outcome.data.get("on_cpu", 0)
    parts = [f"{share:.0%} GPU"] if isinstance(share, float) else []
    return ", ".join([*parts, f"{on_cpu} on CPU"] if on_cpu else parts) or "all native"


def _error_text(outcome: Outcome) -> str:
    error = outcome.data.get("error")
    return f"{error:.1e}" if isinstance(error, (int, float)) else ""


def _time_text(outcome: Outcome) -> str:
    own, eager = times_of(outcome), times_of(outcome, "eager_ms")
    if not own:
        return ""
    median = statistics.median(own)
    return f"{milliseconds_text(median)} ms" + (f" ({median / statistics.median(eager):.2g}x eager)" if eager else "")


def times_of(outcome: Outcome, name: str = "ms") -> list[float]:
    """Milliseconds of the calls of a measurement; nothing of other jobs."""
    times = outcome.data.get(name, [])
    return [float(time) for time in times] if isinstance(times, list) else []


def milliseconds_text(value: float) -> str:
    """A time for a reader: three digits, or whole milliseconds."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
