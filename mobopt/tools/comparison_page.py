"""A comparison as one page of HTML that needs no network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from mobopt.tools.comparison_results import VERDICTS, Comparison
from mobopt.tools.html_page import rendered, write_html

_SMALLEST = 1e-9
"""The error at which bars begin; they end at 1."""


def page(found: Comparison) -> str:
    """The page."""
    return rendered("comparison", **page_values(found))


def page_values(found: Comparison) -> dict[str, Any]:
    """What the macros of ``comparison_parts.html.j2`` ask for."""
    counts = {verdict: sum(layer.verdict == verdict for layer in found.layers) for verdict in VERDICTS}
    return {
        "found": found,
        "counts": {verdict: count for verdict, count in counts.items() if count},
        "meanings": VERDICTS,
        "number_text": _text,
        "width": _width,
    }


def write_page(found: Comparison, path: Path) -> None:
    """Write the page; the file appears when it is whole.

    Raises:
        InputError: the path can't be written.
    """
    write_html(page(found), path)


def _text(error: float) -> str:
    return "0" if error == 0 else "infinite" if math.isinf(error) else f"{error:.1e}"


def _width(error: float) -> float:
    """Length of a bar in percent, by the error's logarithm."""
    if error <= _SMALLEST:
        return 0.0
    return 100 * min(1.0, 1 - math.log10(min(error, 1.0)) / math.log10(_SMALLEST))
