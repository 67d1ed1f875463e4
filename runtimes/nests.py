"""Nests: values inside tuples, lists and dictionaries, as models take and return them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Kind = TypeVar("Kind")


def map_leaves(value: Any, kind: type[Kind], function: Callable[[Kind], Any]) -> Any:
    """The same nest, in new containers, with ``function`` applied to every leaf of type ``kind``; others are kept."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, list):
        return [map_leaves(item, kind, function) for item in value]
    if isinstance(value, tuple):
        items = [map_leaves(item, kind, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: map_leaves(item, kind, function) for key, item in value.items()}
    return value


def leaves_of(value: Any, kind: type[Kind]) -> Iterator[Kind]:
    """Every leaf of type ``kind``, in order."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves_of(item, kind)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves_of(item, kind)
