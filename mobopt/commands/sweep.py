"""``mobopt sweep``: many models, backends, releases and devices at once; what came of it, and what has changed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mobopt.commands.shared_options import json_option
from mobopt.commands.terminal import print_json, print_table, say
from mobopt.display import shown
from mobopt.errors import InputError
from mobopt.options import DEFAULT_LEGALIZE, DEFAULT_RUNTIME

if TYPE_CHECKING:
    from mobopt.tools.sweep import sweeping
    from mobopt.tools.sweep.jobs import Outcome, Task
    from mobopt.tools.sweep.store import Result

_RESULTS = "sweep.sqlite"
_MESSAGE = 300
"""Characters of an error that tables show."""


class _RunsByDefault(click.Group):
    """``mobopt sweep MODELS`` runs a sweep; ``show`` and ``diff`` are commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_RunsByDefault, short_help="Audit, convert, compare and measure many models.")
def sweep() -> None:
    """Audit, convert, compare and measure many models for many targets: `mobopt sweep MODELS...`.

    `mobopt sweep MODELS...` is short for `mobopt sweep run MODELS...`, whose --help has the options.
    """


def _listed(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[str]:
    """Values that are separated by commas, or given one by one."""
    return [item.strip() for value in values for item in value.split(",") if item.strip()]


@sweep.command()
@click.argument("models", nargs=-1)
@click.option("--do", "do", multiple=True, default=["audit,convert"], show_default=True, callback=_listed,
              metavar="JOBS", help="audit, convert, compare, bench; with commas.")  # fmt: skip
@click.option("--backend", multiple=True, default=["vulkan"], show_default=True, callback=_listed,
              metavar="NAMES", help="vulkan, metal, cpu; with commas.")  # fmt: skip
@click.option("--runtime", multiple=True, default=[DEFAULT_RUNTIME], show_default=True, callback=_listed,
              metavar="NAMES", help="Releases of PyTorch Mobile, or mobopt; with commas.")  # fmt: skip
@click.option("--device", multiple=True, default=["vulkan"], show_default=True, callback=_listed,
              metavar="NAMES",
              help="For compare and bench: cpu, vulkan (the best), numbers or names; with commas.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), default=_RESULTS, show_default=True,
              help="The file for results; what is in it already is not done again.")  # fmt: skip
@click.option("--scheduler", metavar="ADDRESS", help="A Dask scheduler [default: a local cluster].")
@click.option("--workers", type=click.IntRange(min=1), help="Of the local cluster [default: one for two cores].")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads of a task [default: cores / workers].")
@click.option("--timeout", default=600.0, show_default=True, type=click.FloatRange(min=1), help="Seconds for a task.")
@click.option("--memory", default=8.0, show_default=True, type=click.FloatRange(min=0),
              help="GB for a task, beside Python and torch; 0: no limit.")  # fmt: skip
@click.option("--random", multiple=True, metavar="SHAPE", help="Inputs of every file: 1,3,224,224 or 1,16:int64.")
@click.option("--legalize", default=DEFAULT_LEGALIZE, show_default=True, help="off, safe or full.")
@click.option("--repeat", default=20, show_default=True, type=click.IntRange(min=1), help="Timed calls, at most.")
@click.option("--tolerance", default=1e-4, show_default=True, help="Of compare, over the scale of a value.")
@click.option("--again", is_flag=True, help="Do again what ended in no answer: refused, timeouts, crashes.")
def run(
    models: tuple[str, ...],
    do: list[str],
    backend: list[str],
    runtime: list[str],
    device: list[str],
    output: Path,
    scheduler: str | None,
    workers: int | None,
    threads: int | None,
    timeout: float,
    memory: float,
    random: tuple[str, ...],
    legalize: str,
    repeat: int,
    tolerance: float,
    again: bool,
) -> None:
    """Do jobs on MODELS for every backend, runtime and device.

    MODELS are files (.pt, .ptl, .pt2, .onnx), folders, patterns, or module:callable, which gives a model and its
    example inputs. Each task has a process of its own. Results are kept as they come: a sweep that was stopped goes on
    with the same command. Exit code 1 if a result is not good.
    """
    from mobopt.files import check_writable
    from mobopt.tools.sweep.jobs import Limits, Options, jobs_of, tasks_of
    from mobopt.tools.sweep.models import find_models
    from mobopt.tools.sweep.sweeping import local_threads
    from mobopt.tools.sweep.sweeping import sweep as run_sweep

    jobs = jobs_of(do, backend, runtime, device)
    found = find_models(models)
    check_writable(output, [Path(model.name) for model in found if model.is_file])
    if threads is None:
        threads = local_threads(workers or 0) if scheduler is None else 0
    limits = Limits(timeout, int(memory * 1e9), threads)
    tasks = tasks_of(found, jobs, Options(random, legalize, repeat, tolerance), limits)
    try:
        with _ended_in_order(), _shown_progress(len(tasks)) as show:
            swept = run_sweep(tasks, output, scheduler=scheduler, workers=workers or 0, again=again, show=show)
    except (KeyboardInterrupt, SystemExit):
        click.echo(f"the results so far are in {output}; the same command goes on", err=True)
        raise
    before = f", {swept.before} of them by earlier runs" if swept.before else ""
    tasks_are = "1 task is" if swept.total == 1 else f"{swept.total} tasks are"
    say(f"{tasks_are} done{before}; {swept.not_good} {'is' if swept.not_good == 1 else 'are'} not good")
    say(f"mobopt sweep show {output}")
    if swept.not_good:
        raise click.exceptions.Exit(1)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """A SIGTERM ends the sweep as Ctrl-C does: with its tasks' processes, their folders and its lock."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _shown_progress(total: int) -> Iterator[Callable[[sweeping.Progress, Task, Outcome], None]]:
    """A bar on a terminal, else a line for each task; on stderr."""
    if not sys.stderr.isatty():
        yield _say_progress
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(), TextColumn("{task.completed}/{task.total}  {task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("starting", total=total)

        def show(found: sweeping.Progress, task: Task, outcome: Outcome) -> None:
            if not outcome.is_good:
                bar.console.print(escape(shown(f"{task}: {outcome.state}, {_short(outcome.text)}")), highlight=False)
            text = f"{found.not_good} not good, {_left(found)}"
            bar.update(line, completed=found.done, description=text)

        yield show


def _say_progress(progress: sweeping.Progress, task: Task, outcome: Outcome) -> None:
    text = (
        f"[{progress.done}/{progress.total}] {task}: {outcome.state}, {_short(outcome.text)}, {outcome.seconds:.1f} s"
    )
    click.echo(shown(f"{text}; {_left(progress)}", keep=""), err=True)


def _left(progress: sweeping.Progress) -> str:
    seconds = progress.remaining_seconds
    if seconds is None:
        return "the rest takes an unknown time"
    if seconds < 90:
        return f"about {seconds:.0f} s left"
    return f"about {seconds / 60:.0f} min left" if seconds < 5400 else f"about {seconds / 3600:.1f} h left"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MESSAGE else f"{line[:_MESSAGE]} ..."


@sweep.command()
@click.argument("results", type=click.Path(path_type=Path))
@click.option("--model", "pattern", metavar="GLOB", help="Only models of such a name.")
@click.option("--log", "logs", is_flag=True, help="Print the logs of what is not good, too.")
@click.option("--html", "page", type=click.Path(path_type=Path), help="Write a page, too.")
@json_option
def show(results: Path, pattern: str | None, logs: bool, page: Path | None, as_json: bool) -> None:
    """Show what is in RESULTS: a matrix of models and targets, and what is not good."""
    import dataclasses
    from fnmatch import fnmatch

    from mobopt.files import check_writable
    from mobopt.tools.sweep.matrix import Matrix, busy_text, problems_of
    from mobopt.tools.sweep.store import read_results

    if page is not None:
        check_writable(page, [results])
    found = [item for item in read_results(results) if pattern is None or fnmatch(item.model, pattern)]
    if pattern is not None and not found:
        raise InputError(f"{results} has no result of a model {pattern}")
    if page is not None:
        from mobopt.tools.sweep.page import write_page

        write_page(found, page, results.name)
    if as_json:
        print_json([dataclasses.asdict(item) for item in found])
        return
    if not found:
        say(f"there are no results in {results} yet")
        return
    matrix = Matrix.of(found)
    print_table("", ("job", *(f"{state}>" for state in matrix.states)), matrix.counts())
    say()
    print_table("", ("model", *map(str, matrix.jobs)), ((model, *cells) for model, cells in matrix.rows()))
    busy = busy_text(item.outcome for item in found)
    if busy:
        say(f"\nnote: {busy}")
    groups = problems_of(found)
    if groups:
        say()
        print_table("not good", ("model", "jobs", "state", "attempts>", "what"), map(_problem_row, groups))
    for item in [item for group in groups for item in group] if logs else ():
        say(f"\n{item.model}: {item.job}: {item.outcome.state}, {item.outcome.text}")
        say(item.outcome.log or "(nothing was printed)")


def _problem_row(group: Sequence[Result]) -> tuple[str, ...]:
    outcome = group[0].outcome
    attempts = max(item.outcome.attempts for item in group)
    return (
        group[0].model,
        "\n".join(str(item.job) for item in group),
        outcome.state,
        str(attempts),
        _short(outcome.text),
    )


@sweep.command()
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--slower", default=10.0, show_default=True, type=click.FloatRange(min=0),
              help="Percent that a median may grow.")  # fmt: skip
@json_option
def diff(old: Path, new: Path, slower: float, as_json: bool) -> None:
    """Say what has changed from OLD to NEW: what got wrong, slower, less exact, and what newly works.

    A time has changed where the medians differ by more than --slower percent, and the middle halves of the calls do not
    overlap. Exit code 1 if something got wrong or slower.
    """
    import dataclasses

    from mobopt.tools.sweep.changes import KINDS, changes_of
    from mobopt.tools.sweep.matrix import busy_text
    from mobopt.tools.sweep.store import read_results

    results = read_results(old), read_results(new)
    found = changes_of(*results, slower / 100)
    busy = busy_text(item.outcome for part in results for item in part)
    if as_json:
        print_json({**dataclasses.asdict(found), "is_worse": found.is_worse})
    else:
        for kind, title in KINDS.items():
            rows = [
                (change.model, change.job, change.before, change.after)
                for change in found.changes
                if change.kind == kind
            ]
            if rows:
                print_table(f"{title}: {len(rows)}", ("model", "job", "before", "after"), rows)
                say()
        say(
            f"{found.same} results are as before; {found.only_old} are only in the old file, "
            f"{found.only_new} only in the new one"
        )
        if busy:
            say(f"note: {busy}")
    if found.is_worse:
        raise click.exceptions.Exit(1)
