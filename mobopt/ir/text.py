"""Graph text: TorchScript's own notation, printed and parsed.

Constants stand first, as ``prim::Constant`` lines; overloads are not written, as in TorchScript, and are chosen again
from the argument types when a text is parsed. A constant that has no literal (a tensor, a packed context) prints as
``<...>`` and is given to the parser by name.

Source of the notation: ``torch/csrc/jit/OVERVIEW.md`` and ``torch/csrc/jit/ir/irparser.cpp``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mobopt.errors import GraphError, UnsupportedError
from mobopt.ir.graph import Block, Graph, Node, Value
from mobopt.ir.literals import Scanner, parse_literal, print_literal
from mobopt.ir.origin import Origin
from mobopt.ir.schemas import match_arguments, resolve, schemas_of
from mobopt.ir.types import Type, parse_type


def print_graph(graph: Graph, sources: bool = False) -> str:
    """The text of a graph; with ``sources``, each node is followed by where it comes from."""
    head = ",\n      ".join(_declaration(value) for value in graph.inputs)
    lines = [f"graph({head}):"]
    for value in _constants(graph.block):
        lines.append(f"  {_declaration(value)} = prim::Constant{_constant_attribute(value)}()")
    _print_nodes(graph.block, "  ", sources, lines)
    lines.append(f"  return ({_names(graph.outputs)})")
    return "\n".join(lines) + "\n"


def _print_nodes(block: Block, indent: str, sources: bool, lines: list[str]) -> None:
    for node in block.nodes:
        outputs = ", ".join(_declaration(value) for value in node.outputs)
        attributes = ", ".join(f"{key}={_attribute(value)}" for key, value in node.attributes.items())
        suffix = f"[{attributes}]" if attributes else ""
        comment = f" # {' '.join(node.source.split())}" if sources and node.source else ""
        lines.append(f"{indent}{outputs} = {node.op}{suffix}({_names(node.inputs)}){comment}")
        for index, nested in enumerate(node.blocks):
            parameters = ", ".join(_declaration(value) for value in nested.parameters)
            lines.append(f"{indent}  block{index}({parameters}):")
            _print_nodes(nested, indent + "    ", sources, lines)
            lines.append(f"{indent}    -> ({_names(nested.outputs)})")


def _constants(block: Block) -> list[Value]:
    """Constants that the block's nodes read, in order of first use."""
    found: dict[Value, None] = {}
    for node in block.walk():
        found.update(dict.fromkeys(value for value in node.inputs if value.is_constant))
        for nested in node.blocks:
            found.update(dict.fromkeys(value for value in nested.outputs if value.is_constant))
    found.update(dict.fromkeys(value for value in block.outputs if value.is_constant))
    return list(found)


def _declaration(value: Value) -> str:
    return f"%{value.name} : {value.type}"


def _names(values: tuple[Value, ...]) -> str:
    return ", ".join(f"%{value.name}" for value in values)


def _constant_attribute(value: Value) -> str:
    return "" if value.constant is None else f"[value={print_literal(value.constant, value.type)}]"


def _attribute(value: Any) -> str:
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, Type) for item in value):
        return f"[{', '.join(map(str, value))}]"
    return print_literal(value)


_CONSTANT = re.compile(r"(?P<outputs>.*?)\s*=\s*prim::Constant(?:\[value=(?P<value>.*)\])?\(\)\s*(?:#.*)?")
_NODE = re.compile(r"(?P<outputs>.*?)\s*=\s(?P<op>\w+::\w+)")
_INPUTS = re.compile(r"\((?P<inputs>[^()]*)\)\s*(?:#\s*(?P<source>.*))?")
_BLOCK = re.compile(r"block\d+\((?P<parameters>.*)\):")
_RETURN = re.compile(r"(?:return|->)\s*\((?P<values>[^()]*)\)")


def parse_graph(text: str, constants: Mapping[str, Any] | None = None) -> Graph:
    """Read the text of a graph.

    Args:
        text: what :func:`print_graph` prints, or TorchScript's own graph text in its plain form.
        constants: values of the constants that have no literal, by name without ``%``.

    Raises:
        GraphError: the text can't be read; the message names the line.
    """
    return _GraphParser(text, constants or {}).parse()


class _GraphParser:
    """Reads line by line; nesting follows from block headers and their ``->`` lines."""

    def __init__(self, text: str, constants: Mapping[str, Any]) -> None:
        self.text = text
        self.constants = constants
        self.graph = Graph()
        self.values: dict[str, Value] = {}

    def parse(self) -> Graph:
        """The graph of the whole text."""
        match = re.match(r"\s*graph\((.*?)\):[ \t]*(?:#.*)?\n", self.text, re.DOTALL)
        if match is None:
            raise GraphError("graph text must begin with 'graph(%x : Tensor, ...):'")
        for name, kind in self.declarations(re.sub(r"\s+", " ", match.group(1))):
            self.values[name] = self.graph.block.add_parameter(self.value(name, kind))
        self.lines = [line.strip() for line in self.text[match.end() :].splitlines() if line.strip()]
        self.lines.reverse()
        self.block(self.graph.block)
        if self.lines:
            raise GraphError(f"text is left over after the graph: {self.lines[-1]!r}")
        return self.graph

    def block(self, block: Block) -> None:
        """Nodes up to and with the line of returned values."""
        while self.lines:
            line = self.lines.pop()
            if match := _RETURN.fullmatch(line):
                block.returns.set_inputs(self.references(match["values"]))
                return
            self.node(block, line)
        raise GraphError("the text ends inside a block: a 'return (...)' or '-> (...)' line is missing")

    def node(self, block: Block, line: str) -> None:
        """One node with its nested blocks."""
        if match := _CONSTANT.fullmatch(line):
            self.constant(self.declarations(match["outputs"]), match["value"])
            return
        head = _NODE.match(f" {line}" if line.startswith("=") else line)
        if head is None:
            raise GraphError(f"can't read the line {line!r}")
        scanner = Scanner(head.string[head.end() :])
        attributes = scanner.attributes()
        tail = _INPUTS.fullmatch(scanner.rest)
        if tail is None:
            raise GraphError(f"can't read the line {line!r}")
        outputs = self.declarations(head["outputs"].strip())
        origin = Origin.of_line(tail["source"] or "")
        node = Node(head["op"], self.references(tail["inputs"]), attributes=attributes, origin=origin)
        block.append(node)
        while self.lines and (header := _BLOCK.fullmatch(self.lines[-1])):
            self.lines.pop()
            nested = node.add_block()
            for name, kind in self.declarations(header["parameters"]):
                self.values[name] = nested.add_parameter(self.value(name, kind))
            self.block(nested)
        for name, kind in outputs:
            self.values[name] = node.add_output(self.value(name, kind))
        if schemas_of(node.op):
            self.choose_overload(node, line)

    def choose_overload(self, node: Node, line: str) -> None:
        """Set the overload that the inputs' types ask for; one that takes just as many inputs comes first."""
        types = [value.type for value in node.inputs]
        whole = [schema for schema in schemas_of(node.op) if len(schema.arguments) == len(types)]
        try:
            found = next((schema for schema in whole if match_arguments(schema, types, None)), None)
            node.overload = (found or resolve(node.op, types)).overload
        except UnsupportedError as error:
            raise GraphError(f"{error}, in the line {line!r}") from None

    def constant(self, outputs: list[tuple[str, Type]], text: str | None) -> None:
        """A ``prim::Constant`` line, with the text of its value."""
        if len(outputs) != 1:
            raise GraphError(f"a constant must have one name and type, not {len(outputs)}")
        ((name, kind),) = outputs
        if name in self.constants:
            value = self.constants[name]
        else:
            value = None if text is None else parse_literal(text, kind)
        self.graph.reserve_name(name)
        self.values[name] = Value(name, kind, value)

    def value(self, name: str, kind: Type) -> Value:
        """A new value of exactly this name."""
        if name in self.values:
            raise GraphError(f"%{name} is defined twice")
        self.graph.reserve_name(name)
        return Value(name, kind)

    def references(self, text: str) -> list[Value]:
        """``%a, %b`` as values."""
        names = [item.strip().removeprefix("%") for item in text.split(",") if item.strip()]
        for name in names:
            if name not in self.values:
                raise GraphError(f"%{name} is used before it is defined")
        return [self.values[name] for name in names]

    def declarations(self, text: str) -> list[tuple[str, Type]]:
        """``%a : Tensor, %b : (int, int)`` as names and types."""
        parts = re.split(r"(?:^|,\s*)%([^\s,():]+)\s*:\s*", text)
        return [(name, parse_type(kind.strip())) for name, kind in zip(parts[1::2], parts[2::2], strict=True)]
