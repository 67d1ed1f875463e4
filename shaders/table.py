"""The table of shader variants, ``variants.toml``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHADERS_FOLDER = Path(__file__).resolve().parent
GLSL_FOLDER = SHADERS_FOLDER / "glsl"
SPIRV_FOLDER = SHADERS_FOLDER / "spirv"
TABLE = SHADERS_FOLDER / "variants.toml"

CHAINED = "_chained"
"""What the names of twins end with that wait for other dispatches by a counter: see ``glsl/chain_end.glsl``."""
_CHAIN_MACRO, _AHEAD_MACRO = "CHAINED", "READS_AHEAD"
_CHAINS = {True: (_CHAIN_MACRO,), "ahead": (_CHAIN_MACRO, _AHEAD_MACRO)}
"""The macros of a twin, by what its row has as ``chains``."""
_CHAIN_FEATURE = "device_memory_model"
_FIELDS = {"source", "defines", "requires", "chains"}


class ShaderError(Exception):
    """A shader variant is unknown, badly described, or can't be compiled."""


@dataclass(frozen=True)
class Variant:
    """One row of the table: a GLSL file compiled with certain macros."""

    name: str
    source: str
    """File name in ``shaders/glsl``."""
    defines: tuple[tuple[str, str], ...] = ()
    """Macros and their values; an empty value defines the bare name."""
    requires: tuple[str, ...] = ()
    """Features (see ``DeviceInfo.features``) that a device needs to run it."""

    @property
    def is_chained(self) -> bool:
        """Whether it waits for other dispatches by a counter."""
        return any(name == _CHAIN_MACRO for name, _ in self.defines)


@cache
def variants() -> Mapping[str, Variant]:
    """Every variant by name.

    Raises:
        ShaderError: the table can't be parsed, or a row is malformed.
    """
    return parse_table(TABLE.read_text(encoding="utf-8"))


def parse_table(text: str) -> dict[str, Variant]:
    """The variants that a table's text describes.

    Raises:
        ShaderError: the text isn't TOML, or a row is malformed.
    """
    try:
        rows = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ShaderError(f"shaders/variants.toml can't be parsed: {error}") from None
    found = {name: _variant(name, row) for name, row in rows.items()}
    twins = {name: _CHAINS[row["chains"]] for name, row in rows.items() if "chains" in row}
    return found | {f"{name}{CHAINED}": _chained(found[name], macros) for name, macros in twins.items()}


def _variant(name: str, row: Any) -> Variant:
    if not isinstance(row, dict) or "source" not in row:
        raise ShaderError(f'shaders/variants.toml: [{name}] needs source = "FILE.comp"')
    unknown = set(row) - _FIELDS
    if unknown:
        raise ShaderError(f"shaders/variants.toml: [{name}] has {sorted(unknown)}; a row has only {sorted(_FIELDS)}")
    if row.get("chains", True) not in _CHAINS:
        raise ShaderError(f'shaders/variants.toml: [{name}] chains = {row["chains"]!r}; it is true or "ahead"')
    defines = tuple((key, _macro_value(value)) for key, value in sorted(row.get("defines", {}).items()))
    return Variant(name, row["source"], defines, tuple(row.get("requires", ())))


def _chained(plain: Variant, macros: Iterable[str]) -> Variant:
    defines = tuple(sorted((*plain.defines, *((macro, "") for macro in macros))))
    return Variant(f"{plain.name}{CHAINED}", plain.source, defines, (*plain.requires, _CHAIN_FEATURE))


def _macro_value(value: object) -> str:
    if isinstance(value, bool):
        return "" if value else "0"
    return str(value)
