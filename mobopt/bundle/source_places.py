"""Where a line of serialised source comes from: the author's file and line, which archives keep beside the source.

Source of the form: ``torch/csrc/jit/serialization/source_range_serialization.cpp``.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from typing import Any

from mobopt.bundle.model_file import ModelFile
from mobopt.bundle.unpickler import unpickle
from mobopt.errors import BundleError

_STRING_TABLE = "FORMAT_WITH_STRING_TABLE"
_TRACED = re.compile(r"\s*(\S+)\((\d+)\):")
"""A line of a Python stack, as traces note it."""


class SourcePlaces:
    """Places of one record; those of a record without notes are the record's own lines."""

    def __init__(self, archive: ModelFile, record: str) -> None:
        self._record = record.removeprefix("code/")
        self._starts: list[int] = []
        self._ranges: list[Any] = []
        self._table: tuple[Any, ...] | None = None
        notes = f"{record}.debug_pkl"
        if notes in archive:
            try:
                self._read(unpickle(archive.read(notes), None, notes).value)
            except BundleError:
                self._starts = []  # nothing but messages depends on it
        self._lines = _line_starts(archive.read(record)) if self._starts else []
        self._known: dict[int, str] = {}

    def place(self, node: ast.AST) -> str:
        """``conv.py:554``, or the line of the record itself."""
        line: int = getattr(node, "lineno", 0)
        if self._starts and 0 < line <= len(self._lines):
            index = bisect_right(self._starts, self._lines[line - 1] + getattr(node, "col_offset", 0)) - 1
            if index not in self._known:
                self._known[index] = self._original(index)
            if self._known[index]:
                return self._known[index]
        return f"{self._record}:{line}"

    def _read(self, notes: Any) -> None:
        if isinstance(notes, tuple) and notes and notes[0] == _STRING_TABLE and len(notes) == 3:
            _, self._table, notes = notes
        known = [item for item in notes if isinstance(item, tuple) and len(item) >= 2 and type(item[0]) is int]
        known.sort(key=lambda item: item[0])
        self._starts = [item[0] for item in known]
        self._ranges = [item[1] for item in known]

    def _original(self, index: int) -> str:
        """File and line of a range; empty if the notes do not tell."""
        try:
            (text, file, line), begin, _ = self._ranges[index]
            if self._table is not None:
                text, file = "".join(self._table[part] for part in text), self._table[file]
            traced = _TRACED.match(text)
            if traced:
                file, line, begin = traced[1], int(traced[2]), 0
            name = (file or "").replace("\\", "/").rpartition("/")[2]
            return f"{name}:{line + text[:begin].count(chr(10))}" if name else ""
        except (TypeError, ValueError, IndexError, AttributeError):
            return ""


def _line_starts(source: bytes) -> list[int]:
    starts = [0]
    starts += [match.end() for match in re.finditer(rb"\n", source)]
    return starts
