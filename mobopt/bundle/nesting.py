"""Lists, tuples and dictionaries of a file, counted and measured: their depth, and their size written out."""

from __future__ import annotations

from typing import Any, TypeVar

from mobopt.errors import BundleError

Container = TypeVar("Container")
_MAX_DEPTH = 64
_MAX_EXPANSION = 1 << 24
_MAX_CONTAINERS = 250_000
"""Each takes a hundred bytes or more of memory and may be written in one byte."""


class Nesting:
    """Keeps the measures of the containers of one file."""

    def __init__(self) -> None:
        self._measures: dict[int, tuple[int, int]] = {}
        """Expanded size and depth of each container by ``id``; those that are not here are empty."""
        self._kept: list[Any] = []
        """Containers whose ``id`` must stay theirs."""
        self._containers = 0

    def measured(self, container: Container, parts: list[Any]) -> Container:
        """Note a container's expanded size and depth; refuse monstrous ones."""
        if not parts:
            return container
        size, depth = self._measures.get(id(container), (1, 0))
        for part in parts:
            part_size, part_depth = self._measures.get(id(part), (1, 0))
            size += part_size
            depth = max(depth, part_depth + 1)
        if depth > _MAX_DEPTH or size > _MAX_EXPANSION:
            raise BundleError(f"values are nested {depth} deep and {size} in number, more than any model's")
        if id(container) not in self._measures:
            self._kept.append(container)
        self._measures[id(container)] = (size, depth)
        return container

    def counted(self, container: Container) -> Container:
        """Count a new container; refuse more of them than models have."""
        self.count(1)
        return container

    def count(self, number: int) -> None:
        """Count so many new containers."""
        self._containers += number
        if self._containers > _MAX_CONTAINERS:
            raise BundleError(f"it has over {_MAX_CONTAINERS} lists, tuples and dictionaries, more than any model's")
