"""The tables of rows, and the targets that they are about."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from importlib import resources
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from mobopt.errors import TableError, UnsupportedError
from mobopt.ops.targets.reachable import shadowed
from mobopt.ops.targets.row import RELEASES, VERDICTS, Row

IMAGE_LIMIT = 2048
"""Largest extent of a 3-D image on most phones (maxImageDimension3D); PyTorch's Vulkan tensors are such images."""
FLAT_LIMIT = 4096
"""Largest side of a 2-D image that every Vulkan device has at least (maxImageDimension2D, Required Limits)."""

_FILES = {
    "vulkan": (
        "vulkan_limits.toml",
        "vulkan_packed.toml",
        "vulkan_quantized.toml",
        "vulkan_layers.toml",
        "vulkan_images.toml",
        "vulkan_pointwise.toml",
        "vulkan_tensors.toml",
    ),
    "metal": ("metal.toml", "metal_tensors.toml"),
    "cpu": ("cpu.toml", "cpu_half.toml"),
}


@dataclass(frozen=True)
class Target:
    """A backend of a release of PyTorch Mobile."""

    backend: str
    runtime: str
    image_limit: int = IMAGE_LIMIT
    """Largest extent of a 3-D image on the device; for Vulkan."""

    @property
    def weight_limit(self) -> int:
        """Largest side of the image of a convolution's packed weight; for Vulkan."""
        return max(self.image_limit, FLAT_LIMIT) if has_flat_weights(self.runtime) else self.image_limit

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


def has_flat_weights(runtime: str) -> bool:
    """Whether a release packs weights of convolutions into 2-D images (``ops/Convolution.cpp``), not 3-D ones."""
    return release_key(runtime) >= (2, 6)


def computes_quantized(target: Target) -> bool:
    """Whether a GPU has kernels of integers that were seen to be right."""
    rows = all_rows(target.backend)
    return any(row.quantized and row.verdict == "native" and row.covers(target.release) for row in rows)


@cache
def rows_for(backend: str) -> dict[str, tuple[Row, ...]]:
    """A backend's rows by qualified operator, in the order in which they are tried.

    Raises:
        TableError: a row breaks a rule.
    """
    table: dict[str, list[Row]] = defaultdict(list)
    for row in all_rows(backend):
        for operator in row.operators if row.can_occur else ():
            table[operator].append(row)
    return {operator: tuple(rows) for operator, rows in table.items()}


@cache
def all_rows(backend: str) -> tuple[Row, ...]:
    """A backend's rows in file order.

    Raises:
        TableError: a row breaks a rule.
    """
    folder = resources.files("mobopt.ops.targets")
    return checked_rows({name: (folder / name).read_text(encoding="utf-8") for name in _FILES[backend]})


def checked_rows(files: Mapping[str, str]) -> tuple[Row, ...]:
    """The rows of one backend, from the texts of its files by name.

    Raises:
        TableError: a column is unknown or missing, a condition is not of the language, or earlier rows decide all that
            a row is about. The message names file, row, column and what is allowed.
    """
    rows: list[Row] = []
    for file, text in files.items():
        entries = tomllib.loads(text).get("row", [])
        rows += [_row(f"{file}, row {number}", entry) for number, entry in enumerate(entries, 1)]
    for row in rows:
        if row.can_occur:
            _ = row.condition
    for row, operator in shadowed(rows):
        raise TableError(f"{row}: earlier rows of {operator} decide every call that it is about; move or remove it")
    return tuple(rows)


def _row(place: str, entry: Mapping[str, Any]) -> Row:
    columns = {field.name for field in fields(Row)} - {"operators", "place"} | {"op"}
    if unknown := set(entry) - columns:
        raise TableError(f"{place}: there is no column {min(unknown)}; there are {', '.join(sorted(columns))}")
    if missing := {"op", "verdict"} - set(entry):
        raise TableError(f"{place}: it needs {' and '.join(sorted(missing))}")
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    operators = given.pop("op")
    row = Row((operators,) if isinstance(operators, str) else operators, place=place, **given)
    if row.verdict not in VERDICTS:
        raise TableError(f"{row}: the verdict is {row.verdict}, not one of {', '.join(VERDICTS)}")
    if row.verdict != "native" and not row.why:
        raise TableError(f"{row}: a verdict of {row.verdict} needs a why")
    for column in ("since", "until"):
        if getattr(row, column) not in RELEASES:
            raise TableError(f"{row}: {column} is {getattr(row, column)}, not one of {', '.join(RELEASES)}")
    return row
