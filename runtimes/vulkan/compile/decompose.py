"""Puts operators that have kernels in the place of those that have none.

Runs before everything else of a build, so that what an operator is made of is simplified, fused and placed like what
the model wrote. A node is decomposed only where the device can compute all of its parts; others stay whole, for the
CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.facts import UNKNOWN
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.compile.widening import SINGLE
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, UndecomposedError
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported


def decompose(graph: Graph) -> None:
    """Replace every node without a lowering that has a decomposition into nodes that have lowerings."""
    made: list[Node] = []
    for node in graph.block.nodes:
        if why_unsupported(node) is not None:
            made += _replace(node)
    for node in reversed(made):
        if not any(value.is_used for value in node.outputs):
            node.destroy()


def _replace(node: Node) -> list[Node]:
    """Put the parts of a node in its place, if there are any; returns them."""
    build = NodeBuilder(node.origin)
    try:
        results = [_made_by_parts(build, value) for value in build.parts_of(node)]
    except UndecomposedError:
        build.discard()
        return []
    if any(result is None and value.is_used for value, result in zip(node.outputs, results, strict=True)):
        build.discard()
        return []
    if any(value.facts is not UNKNOWN for value in node.outputs):
        _declare_parts(build.nodes, zip(node.outputs, results, strict=True))
    for part in build.nodes:
        part.insert_before(node)
    for value, result in zip(node.outputs, results, strict=True):
        if result is not None:
            result.name, value.name = value.name, ""
            value.replace_all_uses_with(result)
    node.destroy()
    return build.nodes


def _declare_parts(parts: Sequence[Node], results: Iterable[tuple[Value, Value | None]]) -> None:
    """Say of a node of a widened line which of its parts may lie as halves: what is a result but for moves. The others
    are computed in float32, as kernels of one operator would."""
    for part in parts:
        for value in part.outputs:
            if value.dtype == torch.float32:
                value.facts = SINGLE
    made = set(parts)
    for value, result in results:
        while result is not None and result.producer in made:
            result.facts = value.facts
            is_move = has_trait(result.producer.qualified_op, Trait.MOVES_ELEMENTS)
            result = next(iter(result.producer.inputs), None) if is_move else None


def _made_by_parts(build: NodeBuilder, value: Value | None) -> Value | None:
    """A result that is a tensor of its own: neither what the node reads, nor a constant."""
    if value is None or value.producer in build.nodes:
        return value
    return build("aten::clone", value) if value.elements is None else value
