"""An audit as one page of HTML that needs no network."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from mobopt import __version__
from mobopt.display import shown
from mobopt.files import whole_file
from mobopt.tools.audit import Audit
from mobopt.tools.audit_calls import VERDICTS

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
    template = (resources.files("mobopt.tools") / "audit.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        audit=audit, verdicts=VERDICTS, meanings=MEANINGS, total=sum(audit.counts.values()), version=__version__
    )


def write_page(audit: Audit, path: Path) -> None:
    """Write the page; the file appears when it is whole.

    Raises:
        InputError: the path can't be written.
    """
    with whole_file(path) as file:
        file.write(shown(page(audit)).encode("utf-8"))
