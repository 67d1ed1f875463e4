"""Pieces of Markdown pages that are written from results, in which nothing of a model or a message is obeyed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mobopt.display import shown

MESSAGE = 240
"""Characters of a message that a page shows."""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table, line by line."""
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def name_text(model: str) -> str:
    """The name of a model, without the module that gives it."""
    return f"`{shown(model.partition(':')[2] or model).replace('`', '')}`"


def plain(text: str) -> str:
    """Text of a model or a message."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|" else letter for letter in shown(text))
