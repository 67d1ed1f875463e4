"""The page ``docs/targets.md``, from the rows of ``mobopt/ops/targets``: ``python -m mobopt.tools.target_page``.

It goes to standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from mobopt.ops.targets.condition_parser import Definition, definitions
from mobopt.ops.targets.row import RELEASES, Row
from mobopt.ops.targets.table import all_rows
from mobopt.passes.legalizations.site import FULL, rewrites

_BACKENDS = {
    "vulkan": (
        "Operators of PyTorch's Vulkan backend, whose tensors are float32 images of 1 to 4 dimensions, or quantised "
        "ones of 8 bits (quint8), which rows of their own are about. What has no row is missing there, and runs on the "
        "phone's CPU, between transfers."
    ),
    "metal": "Operators of PyTorch's Metal backend. What has no row is missing there.",
    "cpu": "Operators of PyTorch's mobile CPU builds. What has no row and is PyTorch's own is native.",
}
_HEAD = """# What each runtime computes

Made from the rows in `mobopt/ops/targets/*.toml` by `python -m mobopt.tools.target_page > docs/targets.md`; the same
rows drive `mobopt convert` and `mobopt audit`. Rows of one operator are tried from top to bottom, and the first whose
condition holds decides. `native`: the kernel gives the same numbers as eager PyTorch. `wrong`: it runs and gives
others. `missing`: it raises. *tried* is what was seen on genuine kernels, *source* what their source code says. A
rewrite marked *full* fixes the file to the sizes of the example inputs; the others leave it right for inputs of every
size. Of two rewrites the first is taken where its cost is lower by `mobopt/ops/costs.py`, or else the second. The names
in conditions that are not arguments are defined at the end of this page; `mobopt/ops/targets/conditions.py` describes
the language.
"""


def target_page() -> str:
    """The whole page in Markdown."""
    sections = (line for backend in _BACKENDS for line in _section(backend))
    return "\n".join([_HEAD, *sections, *_names()])


def _section(backend: str) -> Iterator[str]:
    rows = all_rows(backend)
    yield f"## {backend}\n"
    yield f"{_BACKENDS[backend]}\n"
    if not rows:
        yield "There are no rows.\n"
        return
    yield "| operator | if | releases | verdict | why, and what helps | rewrite | known by |"
    yield "|---|---|---|---|---|---|---|"
    yield from map(_line, rows)
    yield ""


def _names() -> Iterator[str]:
    yield "## Names in conditions\n"
    yield "| name | says | is |"
    yield "|---|---|---|"
    yield from map(_name_line, definitions().values())
    yield ""


def _name_line(definition: Definition) -> str:
    parameters = f"({', '.join(definition.parameters)})" if definition.parameters else ""
    return f"| `{definition.name}{parameters}` | {definition.about} | `{definition.means}` |"


def _line(row: Row) -> str:
    reason = "; ".join(text for text in (row.why, row.help) if text)
    operators = " ".join(f"`{name}`" for name in row.operators)
    conditions = ["a tensor is over the limit"] if row.over_limit else []
    conditions += ["a tensor is quantised"] if row.quantized else []
    conditions += [f"`{' '.join(row.when.split())}`"] if row.when else []
    condition = ", ".join(conditions)
    cells = (operators, condition, releases_text(row), row.verdict, reason, _rewrite_text(row), row.evidence)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def releases_text(row: Row) -> str:
    """The releases that a row is about, in words."""
    first, last = row.since == RELEASES[0], row.until == RELEASES[-1]
    if first and last:
        return "all"
    if last:
        return f"{row.since} on"
    return f"to {row.until}" if first else f"{row.since} to {row.until}"


def _rewrite_text(row: Row) -> str:
    choices = [rewrites()[name] for name in (row.rewrite_for_sizes, row.rewrite) if name]
    return "; or ".join(f"`{item.name}`{' *full*' if item.level == FULL else ''}: {item.summary}" for item in choices)


if __name__ == "__main__":
    sys.stdout.write(target_page())
