"""Pages of HTML that need no network, from the templates beside this file, which extend ``page.html.j2``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from mobopt import __version__
from mobopt.display import shown
from mobopt.files import whole_file


def rendered(template: str, **values: Any) -> str:
    """A page; everything that is put into it is escaped.

    Args:
        template: name of the file in ``mobopt/tools``, without ``.html.j2``.
        values: what the template speaks of, beside mobopt's ``version``.
    """
    environment = Environment(
        loader=PackageLoader("mobopt.tools", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"{template}.html.j2").render(version=__version__, **values)


def write_html(page: str, path: Path) -> None:
    """Write a page, in which names of a file may stand; the file appears when it is whole.

    Raises:
        InputError: the path can't be written.
    """
    with whole_file(path) as file:
        file.write(shown(page).encode("utf-8"))
