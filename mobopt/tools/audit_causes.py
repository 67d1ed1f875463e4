"""Why operators of a model run on the phone's CPU: which of them are the reason, and which only follow those.

A layer without a kernel keeps more than itself on the CPU: what is not worth a transfer stays beside it, and so do
shapes that only it asked for. So the operators on the CPU that hand tensors to each other are a region, and in each
region those that the GPU has no right kernel for are the causes; the others follow the nearest of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from mobopt.ir import Graph, Node, Program, Value
from mobopt.ir.types import TENSOR
from mobopt.ops import costs
from mobopt.ops.costs import Cost, Processor
from mobopt.ops.effects import holds_tensors, reads_metadata
from mobopt.ops.targets.verdicts import image_misfit

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Places:
    """Which operators run on the phone's CPU.

    Attributes:
        lacking: those that the GPU computes wrongly or not at all.
        misfits: those that only meet tensors that the GPU can't hold, such as integers.
        following: those that the GPU could run, but whose operands lie on the CPU.
    """

    lacking: frozenset[Node]
    misfits: frozenset[Node]
    following: frozenset[Node]

    @property
    def on_cpu(self) -> frozenset[Node]:
        """All of them."""
        return self.lacking | self.misfits | self.following


class Dataflow:
    """What operators cost, and which hand tensors to which, as the graphs are now; passes may change them later."""

    def __init__(self, program: Program, runtime: str) -> None:
        """Look at all methods.

        Args:
            program: the model, before its tensors are moved between processors; what is not known of these costs
                nothing.
            runtime: release of PyTorch on the phone.
        """
        self._gpu = costs.gpu(runtime)
        self._costs: dict[Node, Cost] = {}
        self._operands: dict[Node, tuple[Value, ...]] = {}
        self._makers: dict[Value, Node] = {}
        self._bytes: dict[Value, int] = {}
        for graph in program.methods.values():
            for node in _operators(graph):
                self._costs[node] = costs.cost_of_node(node, program.attributes)
                self._operands[node] = tuple(dict.fromkeys(_tensors(node.inputs)))
                self._makers.update((value, node) for value in node.outputs)
                for value in (*self._operands[node], *node.outputs):
                    self._bytes[value] = _FLOAT_BYTES * costs.elements(value)
        self._misfits = {node for node in self._costs if _meets_misfit(node)}
        self._counting = {node for node in self._costs if _only_counts(node)}

    def meets_misfit(self, node: Node) -> bool:
        """Whether an operator reads or makes a tensor that the GPU can't hold."""
        return node in self._misfits

    def share_on_gpu(self, on_cpu: Collection[Node]) -> float | None:
        """The part of all multiply-adds that the GPU does; None where no sizes are known."""
        whole = costs.total(self._costs.values()).multiply_adds
        left = costs.total(cost for node, cost in self._costs.items() if node not in on_cpu).multiply_adds
        return left / whole if whole else None

    def causes(self, places: Places) -> dict[Node, Node]:
        """For each operator on the CPU that has a reason other than itself: the nearest that is one.

        Causes have themselves. Arithmetic on sizes, which costs nothing, has none.
        """
        found: dict[Node, Node] = {}
        for region in self._regions(places.on_cpu):
            first = [node for node in region if node in places.lacking and self._operands[node]]
            rest = [node for node in region if node not in places.following and node not in self._counting]
            found |= self._nearest(region, first or rest)
        return found

    def microseconds_saved(self, places: Places, mended: Collection[Node]) -> float:
        """What a call would take less, roughly, if the GPU could run these operators; see :mod:`mobopt.ops.costs`."""
        return self._microseconds(places.on_cpu) - self._microseconds(self._without(places, mended))

    def _without(self, places: Places, mended: Collection[Node]) -> set[Node]:
        """What stays on the CPU if some operators don't."""
        stays: set[Node] = set()
        for node in self._costs:
            follows = node in places.following and all(
                self._makers.get(value) in stays for value in self._operands[node]
            )
            if follows or (node in places.lacking | places.misfits and node not in mended):
                stays.add(node)
        return stays

    def _microseconds(self, on_cpu: Collection[Node]) -> float:
        took = sum(cost.on(costs.CPU if node in on_cpu else self._gpu) for node, cost in self._costs.items())
        moves = {
            (value, node in on_cpu)
            for node, operands in self._operands.items()
            for value in operands
            if value in self._makers and (self._makers[value] in on_cpu) != (node in on_cpu)
        }
        return took + sum(_transfer(costs.DOWNLOAD if down else costs.UPLOAD, self._bytes[v]) for v, down in moves)

    def _regions(self, on_cpu: Collection[Node]) -> Iterator[list[Node]]:
        """Operators on the CPU that hand tensors to each other, in order."""
        neighbours = self._neighbours(on_cpu)
        seen: set[Node] = set()
        for start in self._costs:
            if start in on_cpu and start not in seen:
                reached = {start}
                queue = deque(reached)
                while queue:
                    new = [node for node in neighbours[queue.popleft()] if node not in reached]
                    reached.update(new)
                    queue.extend(new)
                seen |= reached
                yield [node for node in self._costs if node in reached]

    def _neighbours(self, nodes: Collection[Node]) -> dict[Node, list[Node]]:
        found: dict[Node, list[Node]] = {node: [] for node in nodes}
        for node in nodes:
            for maker in filter(None, map(self._makers.get, self._operands[node])):
                if maker in found:
                    found[node].append(maker)
                    found[maker].append(node)
        return found

    def _nearest(self, region: list[Node], causes: list[Node]) -> dict[Node, Node]:
        neighbours = self._neighbours(region)
        nearest = {node: node for node in causes}
        queue = deque(causes)
        while queue:
            node = queue.popleft()
            for other in neighbours[node]:
                if other not in nearest:
                    nearest[other] = nearest[node]
                    queue.append(other)
        return nearest


def _operators(graph: Graph) -> list[Node]:
    """What reads elements of tensors, or makes some."""
    nodes = [node for node in graph.walk() if not node.op.startswith("prim::") and not reads_metadata(node)]
    return [node for node in nodes if any(True for _ in _tensors((*node.inputs, *node.outputs)))]


def _tensors(values: Iterable[Value]) -> Iterator[Value]:
    """Computed tensors, also those in lists and those that come out of one."""
    for value in values:
        node = value.producer
        if value.is_constant or not holds_tensors(value.type) or (node is not None and node.op == "prim::GetAttr"):
            continue
        if node is None or not node.op.startswith("prim::"):
            yield value
        elif node.blocks:
            yield from _tensors(block.outputs[-len(node.outputs) :][node.outputs.index(value)] for block in node.blocks)
        else:
            yield from _tensors(node.inputs)


def _meets_misfit(node: Node) -> bool:
    return any(image_misfit(value.facts) is not None for value in (*_tensors(node.inputs), *node.outputs))


def _only_counts(node: Node) -> bool:
    """Whether all tensors are integers without dimensions, as sizes are in traced models."""
    values = [value for value in (*node.inputs, *node.outputs) if value.type == TENSOR and not value.is_constant]
    return all((value.facts.known_sizes, value.facts.known_dtype) == ((), "int64") for value in values)


def _transfer(processor: Processor, count: int) -> float:
    return Cost(1, 0, count).on(processor)
