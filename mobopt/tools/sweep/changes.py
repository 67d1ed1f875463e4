"""What has changed between two sweeps."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mobopt.tools.sweep.jobs import Job, Outcome
from mobopt.tools.sweep.matrix import cell_text, times_of
from mobopt.tools.sweep.store import Result

WRONG, SLOWER, LESS_EXACT, WORKS, FASTER, OTHERWISE = "wrong", "slower", "less exact", "works", "faster", "otherwise"
KINDS = {
    WRONG: "was good, and is not",
    SLOWER: "slower",
    LESS_EXACT: "less exact, and within the tolerance",
    OTHERWISE: "was not good, and fails in another way",
    FASTER: "faster",
    WORKS: "newly works",
}
"""Kinds of changes, the gravest first."""
_WORSE = (WRONG, SLOWER)
_ERROR_GROWS = 10.0
_NO_ERROR = 1e-6
"""An error over the scale below which single precision tells no more."""


@dataclass(frozen=True)
class Change:
    """A result that is another than before."""

    kind: str
    model: str
    job: Job
    before: str
    after: str


@dataclass(frozen=True)
class Changes:
    """Two sweeps compared.

    Attributes:
        changes: the gravest first.
        same: number of results that are as before.
        only_old: number of results that the new sweep has not.
        only_new: number of results that the old sweep has not.
    """

    changes: tuple[Change, ...]
    same: int
    only_old: int
    only_new: int

    @property
    def is_worse(self) -> bool:
        """Whether something got wrong or slower."""
        return any(change.kind in _WORSE for change in self.changes)


def changes_of(old: Sequence[Result], new: Sequence[Result], slower: float = 0.1) -> Changes:
    """Compare two sweeps, by model and job.

    Args:
        old: the earlier results.
        new: the later ones.
        slower: the part by which a median may grow or shrink.
    """
    before, after = ({result.key: result for result in results} for results in (old, new))
    both = [key for key in after if key in before]
    found = [change for key in both for change in _changes(before[key], after[key], slower)]
    order = list(KINDS)
    found.sort(key=lambda change: (order.index(change.kind), change.model, change.job))
    changed = {(change.model, change.job) for change in found}
    return Changes(tuple(found), len(both) - len(changed), len(before) - len(both), len(after) - len(both))


def _changes(old: Result, new: Result, slower: float) -> Iterator[Change]:
    kind = _kind(old.outcome, new.outcome, slower)
    if kind is None:
        return
    texts = [_text(result) for result in (old, new)]
    yield Change(kind, new.model, new.job, *texts)


def _kind(old: Outcome, new: Outcome, slower: float) -> str | None:
    if old.is_good != new.is_good:
        return WORKS if new.is_good else WRONG
    if not new.is_good:
        return None if old.state == new.state else OTHERWISE
    if _is_slower(times_of(old), times_of(new), slower):
        return SLOWER
    if _is_slower(times_of(new), times_of(old), slower):
        return FASTER
    errors = [outcome.data.get("error") or 0.0 for outcome in (old, new)]
    return LESS_EXACT if errors[1] > max(_NO_ERROR, _ERROR_GROWS * errors[0]) else None


def _is_slower(old: list[float], new: list[float], slower: float) -> bool:
    """Whether times have grown by more than a part, and the middle halves of the calls do not overlap."""
    if not old or not new:
        return False
    grown = statistics.median(new) > (1 + slower) * statistics.median(old)
    return grown and middle_half(new)[0] > middle_half(old)[1]


def middle_half(times: list[float]) -> tuple[float, float]:
    """The first and the third quartile."""
    if len(times) < 2:
        return times[0], times[0]
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return low, high


def _text(result: Result) -> str:
    times = times_of(result.outcome)
    if times and result.outcome.is_good:
        low, high = middle_half(times)
        return f"{statistics.median(times):.3g} ms ({low:.3g} to {high:.3g})"
    short = cell_text(result.job, result.outcome)
    message = " ".join(result.outcome.text.split())
    return short if result.outcome.is_good or not message else f"{short}; {message[:200]}"
