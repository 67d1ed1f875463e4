"""A Program: the methods of a model, inlined, and the attributes that they read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mobopt.ir.graph import Block, Graph, Node, Value
from mobopt.ir.guards import Guards, closed_guards
from mobopt.ir.origin import ModelNode, Origin
from mobopt.ir.types import ClassType, Type


@dataclass
class Attribute:
    """An attribute of the module: a tensor, a packed context, or a plain value."""

    type: Type
    value: Any
    is_parameter: bool = False
    is_buffer: bool = False


@dataclass
class Program:
    """A whole model.

    Each method's graph has the module itself as its first parameter; ``prim::GetAttr[name="a.b"](%self)`` reads
    attribute ``a.b`` of :attr:`attributes`. Submodules are inlined, so attributes have dotted names and belong to the
    root.
    """

    methods: dict[str, Graph] = field(default_factory=dict)
    attributes: dict[str, Attribute] = field(default_factory=dict)
    class_name: str = "__torch__.Module"
    """Qualified name of the module's class."""
    observed: object = None
    """The example calls whose run told the facts of its tensors; None before one."""
    size_symbols: Guards = field(default_factory=closed_guards)
    """What stands for sizes of inputs that were declared to vary."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What is known beside the model: ``defaults`` ({method: {argument: value}}), ``input_rules`` ({method:
    :class:`~mobopt.ir.input_rules.InputRules`}, of models that were exported), ``names`` (what weights were called, and
    whether they were buffers, by their memory), and what a file said: versions, extra files."""

    @property
    def self_type(self) -> ClassType:
        """Type of the methods' first parameter."""
        return ClassType(self.class_name)

    def number_nodes(self) -> None:
        """Make every node its own origin: this is the model that later rewrites come from."""
        for name, graph in self.methods.items():
            for index, node in enumerate(graph.walk()):
                line = node.origin.nodes[0].line if node.origin.nodes else ""
                node.origin = Origin((ModelNode(name, index, describe(node), line),))

    def clone(self) -> Program:
        """A copy whose graphs and attribute table can be changed freely; tensors and contexts are shared."""
        return Program(
            methods={name: clone_graph(graph) for name, graph in self.methods.items()},
            attributes={name: Attribute(**vars(item)) for name, item in self.attributes.items()},
            class_name=self.class_name,
            observed=self.observed,
            size_symbols=self.size_symbols,
            metadata=dict(self.metadata),
        )


def describe(node: Node) -> str:
    """A node in short, as messages name it: its operator and its first output."""
    return f"{node.op} %{node.outputs[0].name}" if node.outputs else node.op


def clone_graph(graph: Graph) -> Graph:
    """A structural copy of a graph; constants' values are shared."""
    copy = Graph()
    copy._names = dict(graph._names)
    copy._taken = set(graph._taken)
    copy_block_into(graph.block, copy.block, {})
    return copy


def copy_block_into(source: Block, target: Block, values: dict[Value, Value]) -> None:
    """Append copies of a block's parameters, nodes and returns to ``target``; ``values`` maps old values to new and
    grows."""
    for parameter in source.parameters:
        values[parameter] = target.add_parameter(_copied(parameter))
    for node in source.nodes:
        target.append(copy_node(node, values))
    target.returns.set_inputs([_mapped(value, values) for value in source.outputs])


def copy_node(node: Node, values: dict[Value, Value]) -> Node:
    """A copy of a node that stands in no block yet; ``values`` maps old values to new and grows."""
    copy = Node(
        node.op,
        [_mapped(value, values) for value in node.inputs],
        overload=node.overload,
        attributes=node.attributes,
        origin=node.origin,
    )
    for block in node.blocks:
        copy_block_into(block, copy.add_block(), values)
    for output in node.outputs:
        values[output] = copy.add_output(_copied(output))
    return copy


def _copied(value: Value) -> Value:
    copy = Value(value.name, value.type)
    copy.facts = value.facts
    return copy


def _mapped(value: Value, values: dict[Value, Value]) -> Value:
    if value not in values and value.is_constant:
        values[value] = Value(value.name, value.type, value.constant, value.attribute)
    return values.get(value, value)
