"""Nests: values inside tuples, lists and dictionaries, as models take and return them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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


def copy_nests(values: Mapping[str, Any], kind: type[Kind], function: Callable[[Kind], Any]) -> dict[str, Any]:
    """The same nests in new containers, with ``function`` applied to leaves of type ``kind``; what is one list or
    dictionary in several places stays one."""
    copies: dict[int, Any] = {}
    return {name: _copied(value, kind, function, copies) for name, value in values.items()}


def _copied(value: Any, kind: type[Kind], function: Callable[[Kind], Any], copies: dict[int, Any]) -> Any:
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, tuple):
        items = [_copied(item, kind, function, copies) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if not isinstance(value, (list, dict)):
        return value
    if id(value) not in copies:
        if isinstance(value, list):
            copies[id(value)] = [_copied(item, kind, function, copies) for item in value]
        else:
            copies[id(value)] = {key: _copied(item, kind, function, copies) for key, item in value.items()}
    return copies[id(value)]
