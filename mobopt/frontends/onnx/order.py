"""The order of a graph's nodes: each after those that make what it reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def in_order(nodes: Sequence[Any]) -> Sequence[Any]:
    """The nodes as they are, or each moved behind the last one that makes something for it.

    ONNX wants them so, but tools that append what they add (casts of a model that is turned into halves) don't sort,
    and onnxruntime does it for them. A cyclic graph stays as it is.
    """
    makers = {name: number for number, node in enumerate(nodes) for name in node.output if name}
    needs = [[makers[name] for name in _reads(node) if name in makers] for node in nodes]
    if _is_fit(range(len(nodes)), needs):
        return nodes
    order = _sorted(needs)
    return [nodes[number] for number in order] if _is_fit(order, needs) else nodes


def _is_fit(order: Sequence[int], needs: Sequence[Sequence[int]]) -> bool:
    """Whether each number comes after those that it needs."""
    places = {number: place for place, number in enumerate(order)}
    return all(places[need] < places[number] for number, needed in enumerate(needs) for need in needed)


def _sorted(needs: Sequence[Sequence[int]]) -> list[int]:
    """Numbers after those that each needs, else in order."""
    order: dict[int, None] = {}
    begun: set[int] = set()
    for first in range(len(needs)):
        waiting = [first]
        while waiting:
            number = waiting[-1]
            missing = [need for need in needs[number] if need not in begun]
            begun.add(number)
            if missing:
                waiting += reversed(missing)
                continue
            order.setdefault(waiting.pop())
    return list(order)


def _reads(node: Any) -> Iterator[str]:
    """Names that a node reads, its inner graphs among it."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            made = {item.name for item in (*graph.input, *graph.initializer)}
            made.update(name for inner in graph.node for name in inner.output)
            yield from (name for inner in graph.node for name in _reads(inner) if name not in made)
            yield from (item.name for item in graph.output if item.name not in made)
