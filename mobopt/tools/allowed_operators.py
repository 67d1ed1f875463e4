"""The operators that an app's selective build of PyTorch has: reading the list that it was built from.

Two forms exist (``torchgen/selective_build/selector.py``): a plain list, which CMake's ``SELECTED_OP_LIST`` names,
and the dictionary ``selected_operators.yaml``. Both use a small part of YAML: block mappings and lists, scalars on one
line, empty ``{}`` and ``[]``, comments. That part is read here, so that mobopt needs no YAML package and every list is
read in the same way; anything else is refused with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mobopt.errors import InputError

_OPERATOR = re.compile(r"\w+::\w+(\.\w+)?")
_END_OF_KEY = re.compile(r":(?=\s|$)")
_SPECIAL = tuple("&*!|>%@`{[")
_MISPLACED = "does not belong to what stands above it; check its indentation"
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class AllowedOperators:
    """Operators that a build has.

    Attributes:
        names: operators with overload, or without, which then stands for the default overload only.
        families: operators without overload that stand for all their overloads.
        everything: whether the build has all operators.
    """

    names: frozenset[str] = frozenset()
    families: frozenset[str] = frozenset()
    everything: bool = False

    def has(self, name: str) -> bool:
        """Whether the build has an operator, given with its overload."""
        return self.everything or name in self.names or name.partition(".")[0] in self.families

    def lacking(self, names: Iterable[str]) -> list[str]:
        """Those that the build lacks, sorted."""
        return sorted(name for name in set(names) if not self.has(name))


def read_allowed_operators(path: Path) -> AllowedOperators:
    """Read an operator list in either form.

    Raises:
        InputError: the file can't be read, or is of neither form; the message names the line.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path} is over {_MOST_BYTES >> 20} MB; that is no list of operators")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"can't read the operator list {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"the operator list {path} is not text in UTF-8; give a YAML file") from None
    try:
        data = _Reader(text, str(path)).document()
    except RecursionError:
        raise InputError(f"{path} is nested too deeply; that is no list of operators") from None
    if isinstance(data, list):
        return _from_list(data, path)
    if isinstance(data, dict):
        return _from_dictionary(data, path)
    raise InputError(f"{path} holds neither a list of operators nor the dictionary of selected_operators.yaml")


def _from_list(items: list[Any], path: Path) -> AllowedOperators:
    """In a list a name without overload stands for all overloads."""
    for item in items:
        _check_operator(item, path)
    return AllowedOperators(frozenset(items), frozenset(item for item in items if "." not in item))


def _from_dictionary(data: dict[str, Any], path: Path) -> AllowedOperators:
    everything = data.get("include_all_operators", False)
    if not isinstance(everything, bool):
        raise InputError(f"{path}: include_all_operators is {everything!r}; it is true or false")
    operators = data.get("operators", {})
    if not everything and "operators" not in data:
        raise InputError(f"{path} has no key 'operators'; give the selected_operators.yaml of the build")
    if operators is None:
        operators = {}
    if not isinstance(operators, dict):
        raise InputError(f"{path}: 'operators' is a {type(operators).__name__}; it maps names to settings")
    families = set()
    for name, settings in operators.items():
        _check_operator(name, path)
        if not isinstance(settings, (dict, type(None))):
            raise InputError(f"{path}: the settings of {name} are {settings!r}; they are keys and values")
        all_overloads = (settings or {}).get("include_all_overloads", True)  # the selector's default
        if not isinstance(all_overloads, bool):
            raise InputError(f"{path}: include_all_overloads of {name} is {all_overloads!r}; it is true or false")
        if all_overloads:
            families.add(name)
    return AllowedOperators(frozenset(operators), frozenset(families), everything)


def _check_operator(name: Any, path: Path) -> None:
    if not isinstance(name, str) or not _OPERATOR.fullmatch(name):
        raise InputError(f"{path} holds {name!r}; an operator is written as aten::add.Tensor")


@dataclass
class _Line:
    number: int
    indent: int
    text: str


@dataclass
class _Reader:
    """Reads the part of YAML that operator lists use."""

    text: str
    name: str
    lines: list[_Line] = field(init=False)
    position: int = 0

    def __post_init__(self) -> None:
        self.lines = []
        for number, raw in enumerate(self.text.splitlines(), 1):
            text = _without_comment(raw).rstrip()
            if not text.strip() or (text in ("---", "...") and not self.lines):
                continue
            indent = len(text) - len(text.lstrip(" "))
            line = _Line(number, indent, text[indent:])
            if line.text.startswith("\t"):
                raise self.error(line, "is indented with a tab; YAML wants spaces")
            self.lines.append(line)

    def error(self, line: _Line, reason: str) -> InputError:
        return InputError(f"{self.name}:{line.number}: {line.text[:60]!r} {reason}")

    def document(self) -> Any:
        if not self.lines:
            raise InputError(f"{self.name} is empty; it should hold a list of operators")
        if len(self.lines) == 1 and self.lines[0].text in ("[]", "{}"):
            return [] if self.lines[0].text == "[]" else {}
        value = self.block(self.lines[0].indent)
        if self.position < len(self.lines):
            raise self.error(
                self.lines[self.position], "does not belong to what stands above it; check its indentation"
            )
        return value

    def block(self, indent: int) -> Any:
        """What starts at the current line and has this indentation."""
        return self.sequence(indent) if _is_item(self.lines[self.position]) else self.mapping(indent)

    def sequence(self, indent: int) -> list[Any]:
        items: list[Any] = []
        while (line := self.next_at(indent)) is not None and _is_item(line):
            rest = line.text[1:].lstrip()
            inner = indent + len(line.text) - len(rest)
            if rest and _split_key(rest) is None and not rest.startswith("- "):
                self.position += 1
                items.append(self.scalar(line, rest))
            elif rest:  # a mapping or list that starts behind the dash
                self.lines[self.position] = _Line(line.number, inner, rest)
                items.append(self.block(inner))
            else:
                self.position += 1
                items.append(self.nested(indent))
        return items

    def mapping(self, indent: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while (line := self.next_at(indent)) is not None and not _is_item(line):
            parts = _split_key(line.text)
            if parts is None:
                raise self.error(line, "is not of the form 'key: value'")
            key, rest = parts
            if key in found:
                raise self.error(line, "is there twice")
            self.position += 1
            found[key] = self.scalar(line, rest) if rest else self.nested(indent, in_mapping=True)
        return found

    def nested(self, indent: int, in_mapping: bool = False) -> Any:
        """What stands below a key or a dash; None if nothing does."""
        if self.position == len(self.lines):
            return None
        line = self.lines[self.position]
        if line.indent > indent or (in_mapping and line.indent == indent and _is_item(line)):
            return self.block(line.indent)
        return None

    def next_at(self, indent: int) -> _Line | None:
        if self.position == len(self.lines):
            return None
        line = self.lines[self.position]
        if line.indent > indent:
            raise self.error(line, _MISPLACED)
        return line if line.indent == indent else None

    def scalar(self, line: _Line, text: str) -> Any:
        text = text.strip()
        if text in ("[]", "{}"):
            return [] if text == "[]" else {}
        if text.startswith(_SPECIAL):
            raise self.error(line, "uses a form of YAML that operator lists do not have; write one value on each line")
        return _unquoted(text)


def _is_item(line: _Line) -> bool:
    return line.text == "-" or line.text.startswith("- ")


def _split_key(text: str) -> tuple[str, str] | None:
    """Key and value of ``key: value``; None if a line is not of this form."""
    if text[0] in "\"'":
        end = text.find(text[0], 1) + 1
        key, rest = text[1 : end - 1], text[end:].lstrip()
        return (key, rest[1:].strip()) if end > 0 and rest.startswith(":") else None
    match = _END_OF_KEY.search(text)
    if match is None or not match.start() or text.startswith(_SPECIAL):
        return None
    return text[: match.start()].rstrip(), text[match.end() :].strip()


def _without_comment(line: str) -> str:
    quote = ""
    for index, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "#" and (index == 0 or line[index - 1] in " \t"):
            return line[:index]
    return line


def _unquoted(text: str) -> Any:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return {"true": True, "false": False, "null": None, "~": None}.get(text.lower(), text)
