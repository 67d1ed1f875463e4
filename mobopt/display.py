"""Text that comes from a file, shown so that terminals and browsers do not obey it."""

from __future__ import annotations

import unicodedata

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
