"""A comparison as one page of HTML that needs no network."""

from __future__ import annotations

import math
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from mobopt import __version__
from mobopt.display import shown
from mobopt.files import whole_file
from mobopt.tools.comparison_results import VERDICTS, Comparison

_SMALLEST = 1e-9
"""The error at which bars begin; they end at 1."""


def page(found: Comparison) -> str:
    """The page."""
    template = (resources.files("mobopt.tools") / "comparison.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    counts = {verdict: sum(layer.verdict == verdict for layer in found.layers) for verdict in VERDICTS}
    return environment.from_string(template).render(
        found=found,
        counts={verdict: count for verdict, count in counts.items() if count},
        meanings=VERDICTS,
        number_text=_text,
        width=_width,
        version=__version__,
    )


def write_page(found: Comparison, path: Path) -> None:
    """Write the page; the file appears when it is whole.

    Raises:
        InputError: the path can't be written.
    """
    with whole_file(path) as file:
        file.write(shown(page(found)).encode("utf-8"))


def _text(error: float) -> str:
    return "0" if error == 0 else "infinite" if math.isinf(error) else f"{error:.1e}"


def _width(error: float) -> float:
    """Length of a bar in percent, by the error's logarithm."""
    if error <= _SMALLEST:
        return 0.0
    return 100 * min(1.0, 1 - math.log10(min(error, 1.0)) / math.log10(_SMALLEST))
