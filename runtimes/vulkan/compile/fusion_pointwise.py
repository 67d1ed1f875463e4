"""Joins pointwise nodes that feed each other into one: what is between them never reaches memory."""

from __future__ import annotations

from collections.abc import Container, Iterable

from mobopt.ir import Graph, Node
from mobopt.ir.rewriting import dissolve, enclose
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute_result
from mobopt.runtimes.vulkan.kernels.pointwise_program import ProgramBuilder, Term
from mobopt.runtimes.vulkan.lowerings.pointwise import expression_of, value_of
from mobopt.runtimes.vulkan.lowerings.registry import lowers, why_unsupported

FUSED = "mobopt::pointwise"
"""Pointwise nodes as one; they are the nodes of its body."""

_MAX_OPERANDS = 4
"""Fewer than the shader takes: each costs strides, and those of six seldom fit in the push constants."""


def fuse_pointwise(graph: Graph, on_host: Container[Node] = ()) -> None:
    """Join each pointwise node to the makers of its operands, where nothing else reads those.

    Nodes of ``on_host`` stay as they are.
    """
    fusible = {node for node in graph.block.nodes if node not in on_host and _is_fusible(node)}
    for node in graph.block.nodes:
        if node in fusible:
            whole = _joined_with_makers(node, fusible)
            fusible.add(whole)


def _joined_with_makers(node: Node, fusible: Container[Node]) -> Node:
    """The node, or one that holds it and those of its makers that could be joined to it."""
    whole = node
    for operand in dict.fromkeys(node.inputs):
        maker = operand.producer
        if maker is None or maker not in fusible or operand.sizes != node.output.sizes:
            continue
        if any(user is not node for user, _ in operand.uses):
            continue
        if _has_room([maker, whole]):
            whole = enclose([*_taken_apart(maker), *_taken_apart(whole)], FUSED)
    return whole


def _is_fusible(node: Node) -> bool:
    return expression_of(node.qualified_op) is not None and why_unsupported(node) is None


def _has_room(nodes: Iterable[Node]) -> bool:
    """Whether the shader can compute nodes as one."""
    builder, term = _built(nodes)
    builder.program(term)
    return builder.fits and len(builder.operands) <= _MAX_OPERANDS


def _taken_apart(node: Node) -> list[Node]:
    return dissolve(node) if node.op == FUSED else [node]


def _built(nodes: Iterable[Node]) -> tuple[ProgramBuilder, Term]:
    """The instructions of nodes in order, and the result of the last."""
    builder = ProgramBuilder()
    term = None
    for node in nodes:
        for part in node.blocks[0].nodes if node.op == FUSED else (node,):
            term = builder.stored_as(value_of(builder, part), part.output.dtype)
            builder.define(part.output, term)
        assert term is not None
        builder.define(node.output, term)
    assert term is not None
    return builder, term


@lowers(FUSED, exact=True)
def fused_pointwise(plan: Plan, node: Node) -> DeviceTensor:
    """Several pointwise operators as one dispatch."""
    builder, term = _built([node])
    return compute_result(plan, builder, term, node.output)
