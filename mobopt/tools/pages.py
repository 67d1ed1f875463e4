"""Pages of HTML that need no network: templates beside this file, which extend ``page.html.j2``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from mobopt.display import shown
from mobopt.files import whole_file


def rendered(template: str, **values: Any) -> str:
    """A page; text of the values is escaped.

    Args:
        template: name of a file in ``mobopt/tools``, such as ``sweep/sweep.html.j2``.
        values: what stands in it.
    """
    environment = Environment(
        loader=PackageLoader("mobopt.tools", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)


def write(page: str, path: Path) -> None:
    """Write a page; the file appears when it is whole.

    Raises:
        InputError: the path can't be written.
    """
    with whole_file(path) as file:
        file.write(shown(page).encode("utf-8"))
