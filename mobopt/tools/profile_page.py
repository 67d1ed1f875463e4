"""A profile as one page of HTML that needs no network."""

from __future__ import annotations

from pathlib import Path

from mobopt.display import rate_text, size_text
from mobopt.tools.html_page import rendered, write_html
from mobopt.tools.profiling import BOUNDS, Layer, Profile
from mobopt.tools.roofline import roofline


def page(found: Profile) -> str:
    """The page."""
    longest = max((layer.work.seconds for layer in found.layers), default=0.0)

    def width(layer: Layer) -> float:
        return 100 * layer.work.seconds / longest if longest else 0.0

    times = {bound: sum(x.work.seconds for x in found.layers if x.bound == bound) for bound in BOUNDS}
    return rendered(
        "profile",
        found=found,
        plot=roofline(found),
        bounds={bound: seconds for bound, seconds in times.items() if seconds},
        meanings=BOUNDS,
        width=width,
        rate_text=rate_text,
        size_text=size_text,
    )


def write_page(found: Profile, path: Path) -> None:
    """Write the page; the file appears when it is whole.

    Raises:
        InputError: the path can't be written.
    """
    write_html(page(found), path)
