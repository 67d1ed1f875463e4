"""Where taps lie in the graph of a tapped method, and which of them each is computed from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mobopt.ir import Block, Graph, Node, Value
from mobopt.ops.records import Trait, record_of
from mobopt.tools.taps.graph import tapped_values
from mobopt.tools.taps.table import INPUT, OUTPUT


@dataclass(frozen=True)
class TapPlace:
    """A tapped value and the keys of those tapped ones that it is computed from."""

    value: Value
    before: tuple[str, ...]


def kind_of(key: str) -> str:
    """``input``, ``output``, or the number of a value in between."""
    return key.split(".")[0]


def places_of(graph: Graph) -> dict[str, TapPlace]:
    """Where the taps of a tapped method lie, by their keys.

    Raises:
        UnsupportedError: see :func:`tapped_values`.
    """
    values = tapped_values(graph)
    keys: dict[Value, str] = {}
    for key, value in values.items():
        if kind_of(key) not in (INPUT, OUTPUT):
            keys.setdefault(value, key)
    feeds = _Feeds(graph)
    return {key: TapPlace(value, tuple(sorted(feeds.nearest(value, keys)))) for key, value in values.items()}


class _Feeds:
    """What values are computed from, through branches, loops and lists."""

    def __init__(self, graph: Graph) -> None:
        self._bodies: dict[Value, tuple[Node, Block]] = {
            parameter: (node, block) for node in graph.walk() for block in node.blocks for parameter in block.parameters
        }

    def nearest(self, value: Value, keys: Mapping[Value, str]) -> set[str]:
        """The keys of the nearest tapped values that a value is computed from."""
        found: set[str] = set()
        seen = {value}
        waiting = [value]
        while waiting:
            for item in self._of(waiting.pop()):
                if item in keys:
                    found.add(keys[item])
                elif item not in seen:
                    seen.add(item)
                    waiting.append(item)
        return found

    def _of(self, value: Value) -> Iterator[Value]:
        node = value.producer
        if node is None:
            yield from self._into(value)
        elif node.op == "prim::Loop":
            number = node.outputs.index(value)
            yield from (node.inputs[0], node.inputs[1], node.inputs[number + 2], node.blocks[0].outputs[number + 1])
        elif node.blocks:
            number = node.outputs.index(value)
            yield from node.inputs
            yield from (block.outputs[number] for block in node.blocks)
        else:
            yield from node.inputs
        for user, place in value.uses:
            if place == 0 and Trait.FILLS in record_of(user.qualified_op).traits:
                yield from user.inputs[1:]

    def _into(self, parameter: Value) -> Iterator[Value]:
        """What is carried to a parameter of a loop's body: what the loop begins with, what a turn gives to the next."""
        if parameter not in self._bodies:
            return
        node, body = self._bodies[parameter]
        number = body.parameters.index(parameter)
        if number:  # the first is the number of the turn
            yield from (node.inputs[number + 1], body.outputs[number])
