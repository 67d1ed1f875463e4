"""Where a node comes from: the nodes of the model as it was read, which rewrites and fusions keep and join."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class ModelNode(NamedTuple):
    """A node of the model as it was read, before any rewrite."""

    method: str
    """Name of the method that it stands in; empty while the model is being read."""
    number: int
    """Its place in the method's graph, in the order of :meth:`~mobopt.ir.Graph.walk`."""
    text: str
    """The node in short: ``aten::conv2d %x.5``."""
    line: str
    """``conv.py:554 in features.0``; empty if the file does not tell."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The nodes of the model that a node, or a dispatch of a runtime, stands for.

    It is immutable; ``a | b`` is the union. It prints as the lines of the model's source, each once, and is true if it
    has any.
    """

    nodes: tuple[ModelNode, ...] = ()
    """In the model's order, each once."""

    @staticmethod
    def of_line(line: str) -> Origin:
        """Of one node that is not numbered yet, at a line of source."""
        return Origin((ModelNode("", 0, "", line),)) if line else NOWHERE

    @staticmethod
    def union(origins: Iterable[Origin]) -> Origin:
        """Of all the nodes together."""
        found = {node for origin in origins for node in origin.nodes}
        return Origin(tuple(sorted(found)))

    def __or__(self, other: Origin) -> Origin:
        """Of the nodes of both."""
        if self.nodes == other.nodes or not other.nodes:
            return self
        return other if not self.nodes else Origin(tuple(sorted({*self.nodes, *other.nodes})))

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of the model's source, each once, in the model's order."""
        return tuple(dict.fromkeys(node.line for node in self.nodes if node.line))

    def __str__(self) -> str:
        return ", ".join(self.lines)

    def __bool__(self) -> bool:
        return any(node.line for node in self.nodes)


NOWHERE = Origin()
"""Of what no node of the model asked for."""
