"""The rules that every graph keeps, checked."""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import pairwise

from mobopt.errors import GraphError, UnsupportedError
from mobopt.ir.graph import Block, Graph, Node, Value
from mobopt.ir.nests import leaves_of
from mobopt.ir.program import Program
from mobopt.ir.schemas import Schema, accepts, schema_of, schemas_of

_UNSCHEMATIC = "prim::"
"""Operators of this namespace take their form from the language, not from a schema."""

_FUSED = "mobopt::"
"""Nodes of this namespace stand for those of their body; see :func:`mobopt.ir.rewriting.enclose`."""


def verify(program: Program) -> None:
    """Check use-def chains, dominance, nesting, attribute names and operator schemas of every method.

    Raises:
        GraphError: a rule is broken; the message names method and node.
    """
    for name, graph in program.methods.items():
        try:
            verify_graph(graph)
            _check_attributes(program, graph)
        except GraphError as error:
            raise GraphError(f"method {name!r}: {error}") from None


def verify_graph(graph: Graph) -> None:
    """Check one graph; see :func:`verify`."""
    _check_block(graph.block, set())
    users = {*_users(graph.block)}
    for value in _defined(graph.block):
        _check_uses(value, users)
    names = [value.name for value in _defined(graph.block) if value.name]
    if len(names) != len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise GraphError(f"%{twice} is defined twice")


def _check_block(block: Block, visible: set[Value]) -> None:
    visible = visible | set(block.parameters)
    for parameter in block.parameters:
        if parameter.owner is not block:
            raise GraphError(f"parameter %{parameter.name} does not know its block")
    for node in block.nodes:
        if node.block is not block:
            raise GraphError(f"{node!r} does not know its block")
        _check_node(node, visible)
        for nested in node.blocks:
            if nested.node is not node:
                raise GraphError(f"a block of {node!r} does not know its node")
            _check_block(nested, visible)
        visible.update(node.outputs)
    _check_inputs(block.returns, visible)
    _check_links(block)


def _check_links(block: Block) -> None:
    nodes = list(block.nodes)
    if len(nodes) != len(block.nodes) or list(reversed(block.nodes)) != nodes[::-1]:
        raise GraphError(f"the nodes of a block are not linked as they are counted: {len(nodes)}, {len(block.nodes)}")
    for earlier, later in pairwise(nodes):
        if not block.nodes.is_before(earlier, later):
            raise GraphError(f"{earlier!r} and {later!r} are numbered in another order than they stand")


def _check_node(node: Node, visible: set[Value]) -> None:
    _check_inputs(node, visible)
    for output in node.outputs:
        if output.producer is not node:
            raise GraphError(f"output %{output.name} of {node!r} does not know its producer")
    if node.op == "prim::If":
        _check_if(node)
    elif node.op == "prim::Loop":
        _check_loop(node)
    elif node.op.startswith(_FUSED) and not schemas_of(node.op):
        _check_fused(node)
    elif node.blocks:
        raise GraphError(f"{node!r} has blocks, which only branches, loops and fused nodes may have")
    elif not node.op.startswith(_UNSCHEMATIC):
        _check_schema(node)


def _check_uses(value: Value, nodes: Container[Node]) -> None:
    for node, index in value.uses:
        if node not in nodes or node.inputs[index] is not value:
            raise GraphError(f"%{value.name} is said to be used by {node!r}, which does not read it")


def _check_inputs(node: Node, visible: set[Value]) -> None:
    for index, value in enumerate(node.inputs):
        if (node, index) not in value._uses:
            raise GraphError(f"%{value.name} does not know its use in {node!r}")
        if not value.is_constant and value not in visible:
            raise GraphError(f"{node!r} reads %{value.name}, which is not defined before it")


def _check_if(node: Node) -> None:
    if len(node.blocks) != 2 or len(node.inputs) != 1:
        raise GraphError(f"{node!r} needs one condition and two blocks")
    for block in node.blocks:
        if len(block.outputs) != len(node.outputs):
            raise GraphError(f"a block of {node!r} returns {len(block.outputs)} values, not {len(node.outputs)}")


def _check_loop(node: Node) -> None:
    carried = len(node.inputs) - 2
    body = node.blocks[0] if len(node.blocks) == 1 else None
    if body is None or carried != len(node.outputs):
        raise GraphError(f"{node!r} needs one block and as many outputs as carried values")
    if len(body.parameters) != carried + 1 or len(body.outputs) != carried + 1:
        raise GraphError(f"the block of {node!r} must take (iteration, carried) and return (condition, carried)")


def _check_fused(node: Node) -> None:
    body = node.blocks[0] if len(node.blocks) == 1 else None
    if body is None or node.inputs or body.parameters:
        raise GraphError(f"{node!r} needs one block and nothing that it takes")
    if [value.type for value in body.outputs] != [value.type for value in node.outputs]:
        raise GraphError(f"the block of {node!r} makes other types")


def _check_schema(node: Node) -> None:
    try:
        schema = schema_of(node.qualified_op)
    except UnsupportedError as error:
        raise GraphError(f"{node!r}: {error}") from None
    if schema.is_variadic:
        return
    if node.has_inline_arguments:
        _check_arguments(node, schema)
        return
    if len(node.inputs) != len(schema.arguments):
        raise GraphError(f"{node!r} has {len(node.inputs)} inputs; its schema has {len(schema.arguments)}")
    for value, argument in zip(node.inputs, schema.arguments, strict=True):
        if not accepts(argument.type, value.type, convert=True) and argument.fixed_length is None:
            raise GraphError(f"{node!r} has {value.type} for {argument.name!r}, which is {argument.type}")


def _defined(block: Block) -> list[Value]:
    values = list(block.parameters)
    for node in block.nodes:
        for nested in node.blocks:
            values += _defined(nested)
        values += node.outputs
    return values


def _check_arguments(node: Node, schema: Schema) -> None:
    if len(node.args) != len(schema.arguments):
        raise GraphError(f"{node!r} has {len(node.args)} arguments; its schema has {len(schema.arguments)}")
    for value, argument in zip(node.args, schema.arguments, strict=True):
        if isinstance(value, Value) and not accepts(argument.type, value.type, convert=True):
            raise GraphError(f"{node!r} has {value.type} for {argument.name!r}, which is {argument.type}")
    if list(leaves_of(node.args, Value)) != list(node.inputs):
        raise GraphError(f"{node!r} reads other values than its arguments have")


def _users(block: Block) -> Iterator[Node]:
    yield block.returns
    for node in block.nodes:
        yield node
        for nested in node.blocks:
            yield from _users(nested)


def _check_attributes(program: Program, graph: Graph) -> None:
    for node in graph.walk():
        if node.op in ("prim::GetAttr", "prim::SetAttr") and node.inputs[0] is graph.inputs[0]:
            name = node.attributes.get("name")
            if name not in program.attributes:
                raise GraphError(f"{node!r} names attribute {name!r}, which the program does not have")
