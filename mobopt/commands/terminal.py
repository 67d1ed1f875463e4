"""How commands show things: tables, sizes, progress, JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from mobopt.display import finite, shown

ShowStep = Callable[[str], None]


@contextmanager
def progress(first: str) -> Iterator[ShowStep]:
    """Show what is being done, on stderr if that is a terminal.

    Yields:
        A function that names the next step.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:  # nor is a thread started, which a process of little memory can't have
        yield lambda step: None
        return
    with console.status(first) as status:
        yield status.update


def say(text: str = "") -> None:
    """Print text, in which names of a file may stand."""
    click.echo(shown(text))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns whose name ends in ``>`` are set to the right. Without names there is no header."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.show_header = any(columns)
    for column in columns:
        table.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(shown(str(cell))) for cell in row))
    console = Console()
    # A pipe has no width; lines are not to be broken there.
    (console if console.is_terminal else Console(width=200)).print(table)


def let_threads_sleep() -> None:
    """Let threads of torch's kernels that wait for one another sleep: beside a driver that computes on the CPU, or
    other work, they would take the cores that they wait for. It must be said before torch is imported."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def print_json(data: Any) -> None:
    """Print data as JSON, which has no infinity: null stands for it."""
    click.echo(json.dumps(finite(data), indent=2, default=str, allow_nan=False))
