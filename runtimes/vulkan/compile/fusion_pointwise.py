"""Joins pointwise nodes that feed each other into one: what is between them never reaches memory."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from mobopt.ir import Graph, Node, Value
from mobopt.ir.nests import map_leaves
from mobopt.ir.node_list import InsertionPoint
from mobopt.ir.rewriting import dissolve, enclose
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute_result
from mobopt.runtimes.vulkan.kernels.pointwise_program import ProgramBuilder, Term
from mobopt.runtimes.vulkan.lowerings.pointwise import expression_of, needs_longs, value_of
from mobopt.runtimes.vulkan.lowerings.registry import lowers, why_unsupported
from mobopt.runtimes.vulkan.lowerings.wanted_layout import wanted_of

FUSED = "mobopt::pointwise"
"""Pointwise nodes as one; they are the nodes of its body."""

_MAX_OPERANDS = 4
"""Fewer than the shader takes: each costs strides, and those of six seldom fit in the push constants."""


def fuse_pointwise(
    graph: Graph,
    on_host: Container[Node] = (),
    long: Container[Value] = frozenset(),
    repeats_numbers: bool = False,
) -> None:
    """Join each pointwise node to the makers of its operands, where nothing else reads those; numbers are made anew
    wherever they are read.

    Given:
        %s : Float() = mobopt::pointwise()  # of %low and %high
        %z : Float() = mobopt::pointwise()  # of %low and %high
        %y : Float(7, 64) = mobopt::pointwise()  # of %x, %s and %z
    Result, if numbers are repeated:
        %y : Float(7, 64) = mobopt::pointwise()  # of %x, %low and %high

    Args:
        graph: a straight line.
        on_host: nodes that stay as they are.
        long: tensors that have integers of 64 bits.
        repeats_numbers: whether a number of several steps is made anew for each element of what reads it, which takes
            less time than a dispatch where many elements are computed side by side; so is one of each row.
    """
    fusible = {node for node in graph.block.nodes if node not in on_host and _is_fusible(node)}
    views = {node for node in graph.block.nodes if node not in on_host and _is_view_of_number(node)}
    joining = _Joining(fusible, views, long, repeats_numbers)
    for node in graph.block.nodes:
        if node in fusible:
            fusible.add(joining.with_makers(node))


@dataclass(frozen=True)
class _Joining:
    """Joins nodes to what makes their operands."""

    fusible: Container[Node]
    views: Container[Node]
    long: Container[Value]
    repeats_numbers: bool

    def with_makers(self, node: Node) -> Node:
        """The node, or one that holds it and those of its makers that could be joined to it."""
        whole = node
        while True:
            makers = (self._joinable(operand, whole, node) for operand in _operands(whole))
            maker = next((maker for maker in makers if maker is not None and self._has_room(maker, whole)), None)
            if maker is None:
                return whole
            is_read = any(not _is_part(user, whole) for user, _ in maker.output.uses)
            parts = _made_anew(maker, whole) if is_read else _taken_apart(maker)
            whole = enclose([*parts, *_taken_apart(whole)], FUSED)

    def _joinable(self, operand: Value, whole: Node, node: Node) -> Node | None:
        """The maker of an operand, if nothing outside of ``whole``, which ends with ``node``, reads that, or if it is
        made anew: a number, or one of each row."""
        maker, result = operand.producer, node.output
        if maker is None or not (maker in self.fusible or maker in self.views):
            return None
        is_number = operand.numel == 1 and operand not in self.long
        is_small = is_number or (operand not in self.long and _is_of_rows(operand, result))
        is_again = is_small and self.repeats_numbers
        if operand.sizes != result.sizes and not (is_number and result.numel == 1):
            return maker if is_again else None
        is_again |= is_number and maker.op != FUSED
        return maker if is_again or all(_is_part(user, whole) for user, _ in operand.uses) else None

    def _has_room(self, maker: Node, whole: Node) -> bool:
        """Whether the shader can compute both as one."""
        builder, term = _built([maker, whole], self.long)
        builder.program(term)
        return builder.fits and len(builder.operands) <= _MAX_OPERANDS


def _made_anew(maker: Node, whole: Node) -> list[Node]:
    """Copies of the nodes that make a number, before what makes it, the last of which ``whole`` reads in its place."""
    copies: dict[Value, Value] = {}
    made = []
    for part, result in _parts(maker):
        output = Value("", result.type)
        args = map_leaves(part.args, Value, lambda value: copies.get(value, value))
        copy = Node.call(part.qualified_op, args, [output], part.origin)
        copies[part.output] = output
        made.append(InsertionPoint.before(maker).insert(copy))
    for user, index in list(maker.output.uses):
        if _is_part(user, whole):
            user.replace_input(index, output)
    return made


def _is_part(node: Node, whole: Node) -> bool:
    return node is whole or (whole.op == FUSED and node.block is whole.blocks[0])


def _operands(node: Node) -> Iterable[Value]:
    """What a node reads, or its body."""
    parts = [node] if node.op != FUSED else list(node.blocks[0].nodes)
    return dict.fromkeys(value for part in parts for value in part.inputs if value.producer not in parts)


def _is_fusible(node: Node) -> bool:
    return expression_of(node.qualified_op) is not None and why_unsupported(node) is None


def _is_view_of_number(node: Node) -> bool:
    return has_trait(node.qualified_op, Trait.KEEPS_ORDER) and node.output.numel == 1


def _is_of_rows(operand: Value, result: Value) -> bool:
    """Whether a tensor has one element for each row of a result."""
    return operand.rank > 0 and operand.sizes[-1] == 1 and operand.sizes[:-1] == result.sizes[:-1]


def _taken_apart(node: Node) -> list[Node]:
    return dissolve(node) if node.op == FUSED else [node]


def _built(nodes: Iterable[Node], long: Container[Value]) -> tuple[ProgramBuilder, Term]:
    """The instructions of nodes in order, and the result of the last."""
    parts = [(part, made) for node in nodes for part, made in _parts(node)]
    is_long = any(made in long or needs_longs(part, long) for part, made in parts)
    builder = ProgramBuilder(is_long=is_long)
    term = None
    for part, made in parts:
        is_view = expression_of(part.qualified_op) is None
        value = builder.tensor(part.args[0]) if is_view else value_of(builder, part)
        term = builder.stored_as(value, made.dtype, made in long)
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
    return compute_result(plan, builder, term, node.output, wanted_of(node.output))
