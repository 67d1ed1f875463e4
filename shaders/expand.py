"""The text of a shader variant as a compiler gets it: its macros first, and every included file in its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .enumerations import GENERATED, glsl_of
from .push_blocks import glsl_of_block
from .push_constants import BLOCKS
from .table import ShaderError, Variant

_INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
_VERSION = re.compile(r"\s*#\s*version\b")
_UNROLL, _KEEP, _EMULATED = "[[unroll]]", "[[dont_unroll]]", "EMULATED"
"""Emulated matrix units are loops: unrolled ones take drivers that compute on the CPU minutes to compile."""
_BEFORE_CHAINED, _AFTER_CHAINED = "chain.glsl", "chain_end.glsl"


def expand(variant: Variant, glsl_folder: Path) -> str:
    """The whole text of a variant.

    ``#line`` directives name files relative to the parent of ``glsl_folder``, so that a compiler's messages point at
    the files that a person edits, and the text is the same wherever the folder lies.

    Raises:
        ShaderError: a file is missing, includes itself, or the first one has no ``#version``.
    """
    source = glsl_folder / variant.source
    lines = list(_lines(source, variant.name, ()))
    version = next((index for index, line in enumerate(lines) if _VERSION.match(line)), None)
    if version is None:
        raise ShaderError(f"shader variant {variant.name!r}: {source} has no #version line")
    begin = [f"#define {name} {value}".rstrip() for name, value in variant.defines]
    if variant.is_chained:
        begin += _included(glsl_folder / _BEFORE_CHAINED, variant.name)
        lines += _included(glsl_folder / _AFTER_CHAINED, variant.name)
    lines[version + 1 : version + 1] = [*begin, _line_directive(source, version + 2)]
    text = "\n".join(lines) + "\n"
    return text.replace(_UNROLL, _KEEP) if _EMULATED in dict(variant.defines) else text


def _included(path: Path, variant: str) -> list[str]:
    return [_line_directive(path, 1), *_lines(path, variant, ())]


def _lines(path: Path, variant: str, within: tuple[Path, ...]) -> Iterator[str]:
    """A file's lines, with those of a file, an enumeration or a block that it includes in place of the directive."""
    if not path.is_file():
        raise ShaderError(f"shader variant {variant!r} needs {path}, which doesn't exist")
    if path in within:
        raise ShaderError(f"shader variant {variant!r}: {path} includes itself")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        include = _INCLUDE.match(line)
        if include is None:
            yield line
            continue
        made = _made(include[1])
        if made is not None:
            yield f'#line 1 "{include[1]}"'
            yield from made
        else:
            included = path.parent / include[1]
            yield _line_directive(included, 1)
            yield from _lines(included, variant, (*within, path))
        yield _line_directive(path, number + 1)


def _made(name: str) -> list[str] | None:
    """The lines of what a table makes under that name; None if it is a file."""
    if name in GENERATED:
        return glsl_of(GENERATED[name])
    return glsl_of_block(BLOCKS[name]) if name in BLOCKS else None


def _line_directive(path: Path, number: int) -> str:
    """Says that the next line is that line of that file."""
    return f'#line {number} "{path.parent.name}/{path.name}"'
