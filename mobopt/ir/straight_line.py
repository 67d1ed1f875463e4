"""Straight lines in parts: values with names, copies, what lies between some values and others, and the same as a
Program. Names tell values of copies apart, so they are given first."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from mobopt.errors import GraphError
from mobopt.ir.graph import Graph, Node, Value
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.program import Program
from mobopt.ir.schemas import schema_of
from mobopt.ir.types import TENSOR, ListType, TupleType, Type


def name_values(graph: Graph, prefix: str) -> None:
    """Give every tensor of a line that is computed, or given to it, a name of its own, which rewrites hand on."""
    for number, value in enumerate(graph.inputs):
        value.name = f"{prefix}.in{number}"
    for number, value in enumerate(value for node in graph.block.nodes for value in node.outputs):
        value.name = f"{prefix}.{number}"


def copy_line(graph: Graph) -> Graph:
    """A copy of a line whose nodes have no bodies; its values have the names of the line's, constants are shared."""
    nodes = list(graph.block.nodes)
    return _copied(graph.inputs, nodes, graph.outputs)


def cut_out(outputs: Sequence[Value], known: Container[str]) -> Graph:
    """The part of a line that computes some values from others.

    Args:
        outputs: what the part returns.
        known: names of values that are given to it. An output is computed all the same.

    Returns:
        A line whose inputs are what it reads of ``known`` and of the whole line's inputs, in the order of reading.
    """
    nodes: set[Node] = set()
    waiting = [value.producer for value in outputs]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting += [value.producer for value in node.inputs if value.name not in known]
    block = next((node.block for node in nodes), None)
    ordered = [] if block is None else [node for node in block.nodes if node in nodes]
    read = dict.fromkeys(value for node in ordered for value in node.inputs if not value.is_constant)
    return _copied([value for value in read if value.producer not in nodes], ordered, outputs)


def _copied(inputs: Sequence[Value], nodes: Sequence[Node], outputs: Sequence[Value]) -> Graph:
    graph = Graph()
    copies: dict[Value, Value] = {}
    for value in inputs:
        copies[value] = graph.block.add_parameter(Value(value.name, value.type))

    def copy(value: Value) -> Value:
        return value if value.is_constant else copies[value]

    for node in nodes:
        made = [Value(value.name, value.type) for value in node.outputs]
        graph.block.append(Node.call(node.qualified_op, map_leaves(node.args, Value, copy), made, node.origin))
        copies.update(zip(node.outputs, made, strict=True))
    graph.return_values(*map(copy, outputs))
    return graph


def as_program(line: Graph) -> Program:
    """A line as the method ``forward`` of a Program, which any runtime runs; it returns a tensor, or a tuple of them.

    Raises:
        GraphError: an operator gives its tensors in a form that a Program's node has no outputs for.
    """
    program = Program()
    graph = program.methods["forward"] = Graph()
    graph.add_input("self", program.self_type)
    values = {value: graph.add_input(_plain(value.name), TENSOR) for value in line.inputs}

    def operand(argument: Any, kind: Type) -> Value:
        if isinstance(argument, Value):
            if argument.is_constant:
                return values.setdefault(argument, graph.constant(argument.constant, TENSOR, "weight"))
            return values[argument]
        if any(True for _ in leaves_of(argument, Value)):
            element = kind.element if isinstance(kind, ListType) else TENSOR
            items = [operand(item, element) for item in argument]
            made = graph.create("prim::ListConstruct", items, [ListType(TENSOR)])
            return graph.block.append(made).output
        return graph.constant(argument, None if hasattr(argument, "state") else kind)

    for node in line.block.nodes:
        schema = schema_of(node.qualified_op)
        inputs = [operand(given, item.type) for given, item in zip(node.args, schema.arguments, strict=True)]
        for value, made in zip(node.outputs, _append(graph, node, inputs, schema.returns), strict=True):
            made.name = graph.unique_name(_plain(value.name))
            values[value] = made
    results = [operand(value, TENSOR) for value in line.outputs]
    if len(results) != 1:
        kind = TupleType((TENSOR,) * len(results))
        results = [graph.block.append(graph.create("prim::TupleConstruct", results, [kind])).output]
    graph.return_values(*results)
    return program


def _plain(name: str) -> str:
    return "x" if ".in" in name else f"t{name.replace('.', '_')}"


def _append(graph: Graph, node: Node, inputs: Sequence[Value], returns: Sequence[Type]) -> list[Value]:
    """The outputs of the node in a Program."""
    if len(returns) == 1 and isinstance(returns[0], ListType):
        made = graph.create(node.op, inputs, [returns[0]], overload=node.overload, origin=node.origin)
        graph.block.append(made)
        unpacked = graph.create("prim::ListUnpack", [made.output], [TENSOR] * len(node.outputs), origin=node.origin)
        return graph.block.append(unpacked).outputs
    if len(returns) != len(node.outputs):
        raise GraphError(f"{node.qualified_op} gives {len(node.outputs)} tensors in another form than it declares")
    made = graph.create(node.op, inputs, list(returns), overload=node.overload, origin=node.origin)
    return graph.block.append(made).outputs
