"""Write the API reference from the docstrings of ``mobopt.__all__``: ``python docs/build_api.py [FOLDER]``.

It needs pdoc, ``pip install mobopt[docs]``, and no network. A docstring that pdoc can't read is an error, and so is a
link that leads nowhere.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGE = "mobopt.html"


def build(folder: Path) -> Path:
    """Write the reference.

    Args:
        folder: where the page goes, with an ``index.html`` that leads to it.

    Returns:
        The page.
    """
    import pdoc

    pdoc.render.configure(docformat="google", show_source=False, search=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # what pdoc says of a docstring or an annotation
        pdoc.pdoc("mobopt", "!mobopt.", output_directory=folder)
    return folder / PAGE


class _Links(HTMLParser):
    """What a page has to link to, and what it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep ids, and the targets of links."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if name == "href" and tag == "a" and value:
                self.targets.append(value)


def dead_links(page: Path) -> list[str]:
    """Links within a page, or to files beside it, that lead nowhere."""
    links = _Links()
    links.feed(page.read_text(encoding="utf-8"))
    return [
        target
        for target in links.targets
        if not target.startswith(("https://", "http://"))
        and not (target[1:] in links.anchors if target.startswith("#") else (page.parent / target).exists())
    ]


def main(arguments: list[str]) -> int:
    """Build, check, and say where it is."""
    parser = argparse.ArgumentParser(description="Write the API reference of mobopt.")
    parser.add_argument("folder", nargs="?", type=Path, default=DOCS / "api", help="where to [default: docs/api]")
    page = build(parser.parse_args(arguments).folder)
    dead = dead_links(page)
    for target in dead:
        print(f"{page}: the link {target} leads nowhere", file=sys.stderr)
    print(f"written: {page}")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
