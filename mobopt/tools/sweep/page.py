"""A sweep as one page of HTML that needs no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mobopt.tools.html_page import rendered, write_html
from mobopt.tools.sweep.jobs import STATES, Job
from mobopt.tools.sweep.matrix import Matrix, busy_text, problems_of
from mobopt.tools.sweep.store import Result


@dataclass(frozen=True)
class _Cell:
    text: str
    state: str
    problem: int
    """Number of the problem below the table; 0 if there is none."""


def page(results: Sequence[Result], name: str) -> str:
    """The page."""
    matrix = Matrix.of(results)
    groups = problems_of(results)
    problems = {result.key: number for number, group in enumerate(groups, 1) for result in group}
    counts = Counter(result.outcome.state for result in results)

    def cell(model: str, job: Job) -> _Cell:
        result = matrix.results.get((model, job))
        state = "" if result is None else result.outcome.state
        return _Cell(matrix.cell(model, job), state, problems.get((model, job), 0))

    return rendered(
        "sweep/sweep",
        name=name,
        matrix=matrix,
        rows=[(model, [cell(model, job) for job in matrix.jobs]) for model in matrix.models],
        bad=len(problems),
        groups=groups,
        total=len(results),
        busy=busy_text(result.outcome for result in results),
        newest=max((result.finished for result in results), default=""),
        counts={state: counts[state] for state in STATES if counts[state]},
        meanings=STATES,
    )


def write_page(results: Sequence[Result], path: Path, name: str) -> None:
    """Write the page; the file appears when it is whole.

    Raises:
        InputError: the path can't be written.
    """
    write_html(page(results, name), path)
