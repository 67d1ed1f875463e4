"""Joins pointwise nodes that feed each other into one: what is between them never reaches memory."""

from __future__ import annotations

from collections.abc import Container, Iterable

from mobopt.ir import Graph, Node, Value
from mobopt.ir.node_list import InsertionPoint
from mobopt.ir.rewriting import dissolve, enclose
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute_result
from mobopt.runtimes.vulkan.kernels.pointwise_program import ProgramBuilder, Term
from mobopt.runtimes.vulkan.lowerings.pointwise import expression_of, needs_longs, value_of
from mobopt.runtimes.vulkan.lowerings.registry import lowers, why_unsupported

FUSED = "mobopt::pointwise"
"""Pointwise nodes as one; they are the nodes of its body."""

_MAX_OPERANDS = 4
"""Fewer than the shader takes: each costs strides, and those of six seldom fit in the push constants."""


def fuse_pointwise(graph: Graph, on_host: Container[Node] = (), long: Container[Value] = frozenset()) -> None:
    """Join each pointwise node to the makers of its operands, where nothing else reads those; numbers are made anew
    wherever they are read.

    Nodes of ``on_host`` stay as they are. Tensors of ``long`` have integers of 64 bits.
    """
    fusible = {node for node in graph.block.nodes if node not in on_host and _is_fusible(node)}
    for node in graph.block.nodes:
        if node in fusible:
            whole = _joined_with_makers(node, fusible, long)
            fusible.add(whole)


def _joined_with_makers(node: Node, fusible: Container[Node], long: Container[Value]) -> Node:
    """The node, or one that holds it and those of its makers that could be joined to it."""
    whole = node
    while True:
        makers = (_joinable(operand, whole, node, fusible, long) for operand in _operands(whole))
        maker = next((maker for maker in makers if maker is not None and _has_room([maker, whole], long)), None)
        if maker is None:
            return whole
        if any(not _is_part(user, whole) for user, _ in maker.output.uses):
            maker = _made_anew(maker, whole)
        whole = enclose([*_taken_apart(maker), *_taken_apart(whole)], FUSED)


def _joinable(operand: Value, whole: Node, node: Node, fusible: Container[Node], long: Container[Value]) -> Node | None:
    """The maker of an operand, if nothing outside of ``whole``, which ends with ``node``, reads that, or if it is a
    number that one step makes."""
    maker = operand.producer
    if maker is None or maker not in fusible or operand.sizes != node.output.sizes:
        return None
    is_step = operand.numel == 1 and maker.op != FUSED and operand not in long
    return maker if is_step or all(_is_part(user, whole) for user, _ in operand.uses) else None


def _made_anew(maker: Node, whole: Node) -> Node:
    """A copy of a node, whose result is read in its place by ``whole``."""
    made = Value("", maker.output.type)
    copy = InsertionPoint.before(maker).insert(Node.call(maker.qualified_op, maker.args, [made], maker.origin))
    for user, index in list(maker.output.uses):
        if _is_part(user, whole):
            user.replace_input(index, made)
    return copy


def _is_part(node: Node, whole: Node) -> bool:
    return node is whole or (whole.op == FUSED and node.block is whole.blocks[0])


def _operands(node: Node) -> Iterable[Value]:
    """What a node reads, or its body."""
    parts = [node] if node.op != FUSED else list(node.blocks[0].nodes)
    return dict.fromkeys(value for part in parts for value in part.inputs if value.producer not in parts)


def _is_fusible(node: Node) -> bool:
    return expression_of(node.qualified_op) is not None and why_unsupported(node) is None


def _has_room(nodes: Iterable[Node], long: Container[Value]) -> bool:
    """Whether the shader can compute nodes as one."""
    builder, term = _built(nodes, long)
    builder.program(term)
    return builder.fits and len(builder.operands) <= _MAX_OPERANDS


def _taken_apart(node: Node) -> list[Node]:
    return dissolve(node) if node.op == FUSED else [node]


def _built(nodes: Iterable[Node], long: Container[Value]) -> tuple[ProgramBuilder, Term]:
    """The instructions of nodes in order, and the result of the last."""
    parts = [(part, made) for node in nodes for part, made in _parts(node)]
    is_long = any(made in long or needs_longs(part, long) for part, made in parts)
    builder = ProgramBuilder(is_long=is_long)
    term = None
    for part, made in parts:
        term = builder.stored_as(value_of(builder, part), made.dtype, made in long)
        builder.define(part.output, term)
        builder.define(made, term)
    assert term is not None
    return builder, term


def _parts(node: Node) -> list[tuple[Node, Value]]:
    """The nodes that a node consists of, each with what the graph knows its result as."""
    if node.op != FUSED:
        return [(node, node.output)]
    parts = list(node.blocks[0].nodes)
    return [*[(part, part.output) for part in parts[:-1]], (parts[-1], node.output)]


@lowers(FUSED, exact=True, long=True)
def fused_pointwise(plan: Plan, node: Node) -> DeviceTensor:
    """Several pointwise operators as one dispatch."""
    builder, term = _built([node], plan.long)
    return compute_result(plan, builder, term, node.output)
