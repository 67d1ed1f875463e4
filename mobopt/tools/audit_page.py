"""An audit as one page of HTML that needs no network."""

from __future__ import annotations

from pathlib import Path

from mobopt.tools.audit import Audit, short_source
from mobopt.tools.audit_calls import VERDICTS
from mobopt.tools.html_page import rendered, write_html

MEANINGS = {
    "wrong": "runs, and gives other numbers",
    "missing": "the runtime can't run it",
    "unknown": "only sizes tell: give example inputs",
    "unreached": "would not run, and no input comes here",
    "cpu": "on the device's CPU, between transfers: right, but slow",
    "rewritten": "the conversion writes it with other operators",
    "native": "runs as it is",
}
"""What each verdict says, for readers."""


def page(audit: Audit) -> str:
    """The page."""
    return rendered("audit", audit=audit, verdicts=VERDICTS, meanings=MEANINGS, short_source=short_source)


def write_page(audit: Audit, path: Path) -> None:
    """Write the page; the file appears when it is whole.

    Raises:
        InputError: the path can't be written.
    """
    write_html(page(audit), path)
