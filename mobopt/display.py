"""How readers see quantities, and text that comes from a file: so that terminals and browsers do not obey it."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

_CONTROLS = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
"""Categories of characters that move cursors, colour, hide, reorder or break lines: escape sequences begin with one."""


def shown(text: str, keep: str = "\n\t") -> str:
    """The text with every control character as its escape in Python, but for those to keep.

    Bidirectional controls are among them, and characters without width, by which one name can look like another.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character in keep or unicodedata.category(character) not in _CONTROLS else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def size_text(count: int) -> str:
    """A number of bytes: ``13.9 MB``."""
    if count < 1000:
        return f"{count} bytes"
    value = float(count)
    for unit in ("kB", "MB"):
        value /= 1000
        if value < 1000:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} GB"


def finite(value: Any) -> Any:
    """Nested lists and dictionaries as JSON can have them: null in place of infinity and of what is not a number."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rate_text(rate: float, unit: str = "") -> str:
    """How much in a second: ``4.2 T``, ``51.3 GFLOP/s``; nothing for 0."""
    if not rate:
        return ""
    sizes = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}
    prefix = next((prefix for prefix, size in sizes.items() if rate >= size), "k")
    return f"{rate / sizes[prefix]:.3g} {prefix}{unit}"
