"""The rows: what a release's runtime does with an operator under a condition."""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from types import CodeType
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from mobopt.errors import UnsupportedError

RELEASES = ("1.13", "2.0", "2.1", "2.2", "2.6")
"""Releases of PyTorch whose mobile runtimes differ in operators; 2.3 to 2.5 are taken for 2.2."""

IMAGE_LIMIT = 2048
"""Largest extent of a 3-D image on most phones (maxImageDimension3D); PyTorch's Vulkan tensors are such images."""

_FILES = {
    "vulkan": (
        "vulkan_limits.toml",
        "vulkan_packed.toml",
        "vulkan_layers.toml",
        "vulkan_images.toml",
        "vulkan_pointwise.toml",
        "vulkan_tensors.toml",
    ),
    "metal": ("metal.toml", "metal_tensors.toml"),
    "cpu": ("cpu.toml",),
}
VERDICTS = ("native", "wrong", "missing")


@dataclass(frozen=True)
class Target:
    """A backend of a release of PyTorch Mobile."""

    backend: str
    runtime: str
    image_limit: int = IMAGE_LIMIT
    """Largest extent of a 3-D image on the device; for Vulkan."""

    @cached_property
    def release(self) -> int:
        """Position in :data:`RELEASES` of the newest that is not newer than the runtime.

        Raises:
            UnsupportedError: the runtime is older than all of them.
        """
        known = [index for index, name in enumerate(RELEASES) if release_key(name) <= release_key(self.runtime)]
        if not known:
            raise UnsupportedError(f"nothing is known of PyTorch {self.runtime}; choose one of {', '.join(RELEASES)}")
        return known[-1]

    def __str__(self) -> str:
        return f"PyTorch {self.runtime} {self.backend}"


def release_key(name: str) -> tuple[int, ...]:
    """A release's name as numbers, for comparison."""
    return tuple(int(part) for part in name.split("."))


@dataclass(frozen=True)
class Row:
    """What a runtime does with an operator under a condition."""

    operators: tuple[str, ...]
    verdict: str
    """native, wrong (it runs and gives other numbers) or missing (it raises)."""
    when: str = ""
    """Condition on the call; empty: always."""
    since: str = RELEASES[0]
    until: str = RELEASES[-1]
    why: str = ""
    help: str = ""
    """What the author of the model can change."""
    rewrite: str = ""
    """Name of the rewrite that makes it right."""
    rewrite_for_sizes: str = ""
    """Name of one that is tried first where the file may be fixed to the example's sizes: it may be cheaper."""
    over_limit: bool = False
    """Whether the row is about calls with a tensor that is larger than an image may be, and about no others."""
    evidence: str = "tried"
    any_dtype: bool = False
    any_rank: bool = False
    cpu_operands: tuple[str, ...] = ()
    """Arguments that the kernel takes from the CPU as they are."""

    @property
    def condition(self) -> CodeType | None:
        """The condition, compiled."""
        return _compiled(self.when) if self.when else None

    def covers(self, release: int) -> bool:
        """Whether the row says something about a release, by its position in :data:`RELEASES`."""
        return RELEASES.index(self.since) <= release <= RELEASES.index(self.until)


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<condition>", "eval")


@cache
def rows_for(backend: str) -> dict[str, tuple[Row, ...]]:
    """A backend's rows by qualified operator, in the order in which they are tried."""
    table: dict[str, list[Row]] = defaultdict(list)
    for row in all_rows(backend):
        for operator in row.operators:
            table[operator].append(row)
    return {operator: tuple(rows) for operator, rows in table.items()}


@cache
def all_rows(backend: str) -> tuple[Row, ...]:
    """A backend's rows in file order."""
    folder = resources.files("mobopt.ops.targets")
    rows: list[Row] = []
    for name in _FILES[backend]:
        data = tomllib.loads((folder / name).read_text(encoding="utf-8"))
        rows += [_row(name, entry) for entry in data.get("row", [])]
    return tuple(rows)


def _row(file: str, entry: dict[str, Any]) -> Row:
    fields = dict(entry)
    operators = fields.pop("op")
    operators = (operators,) if isinstance(operators, str) else tuple(operators)
    fields["cpu_operands"] = tuple(fields.get("cpu_operands", ()))
    row = Row(operators, **fields)
    if row.verdict not in VERDICTS or (row.verdict != "native" and not row.why):
        raise ValueError(f"{file}: a row of {', '.join(operators)} needs a verdict of {VERDICTS} and, if bad, a why")
    return row
