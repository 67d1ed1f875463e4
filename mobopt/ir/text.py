"""Graph text: TorchScript's own notation, printed and parsed.

Constants stand first, as ``prim::Constant`` lines. As in TorchScript, an overload is not written where the types of the
arguments say it; where they choose another one, it is (``aten::add.Scalar``). In straight lines, plain arguments stand
among the others (``aten::add.Tensor(%x, %y, 1)``), overloads are always written, and types have dtypes and sizes
(``Float(1, 3)``). A constant that has no literal (a tensor, a packed context) prints as ``<...>`` and is given to the
parser by name; see :func:`named_constants`.

Source of the notation: ``torch/csrc/jit/OVERVIEW.md`` and ``torch/csrc/jit/ir/irparser.cpp``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch

from mobopt.errors import GraphError, UnsupportedError
from mobopt.ir.facts import FACTS_TEXT, UNKNOWN, parse_facts
from mobopt.ir.graph import Block, Graph, Node, Value
from mobopt.ir.guards import Guards
from mobopt.ir.literals import Scanner, parse_literal, print_literal
from mobopt.ir.origin import Origin
from mobopt.ir.schemas import match_arguments, resolve, schemas_of
from mobopt.ir.types import TensorType, Type, parse_type

_FORMS = (torch.dtype, torch.layout, torch.memory_format)
"""Plain arguments that are written as attributes of torch."""


def print_graph(graph: Graph, sources: bool = False, digests: bool = True, facts: bool = True) -> str:
    """The text of a graph.

    Args:
        graph: any graph; values without a name are numbered.
        sources: whether each node is followed by where it comes from.
        digests: whether constant tensors are told apart by their elements, all of which must be read for that.
        facts: whether types of tensors are followed by what else is known of them.
    """
    return _Printer(graph, sources, digests, facts).text()


def named_constants(graph: Graph) -> dict[str, Any]:
    """The constants of a graph that have no literal, by the names under which its text must be given them."""
    printer = _Printer(graph, sources=False, digests=False, facts=False)
    printer.text()
    return printer.without_literal


class _Printer:
    """Prints one graph."""

    def __init__(self, graph: Graph, sources: bool, digests: bool, facts: bool) -> None:
        self.graph = graph
        self.sources = sources
        self.digests = digests
        self.facts = facts
        self.without_literal: dict[str, Any] = {}
        self.constants = list(dict.fromkeys(value for value in _read(graph.block) if value.is_constant))
        self.lines: list[str] = []
        self._names: dict[Value, str] = {}
        self._taken = {value.name for value in (*self.constants, *_made(graph.block))}
        self._next = 0

    def text(self) -> str:
        """The whole text."""
        head = ",\n      ".join(map(self.declaration, self.graph.inputs))
        self.lines = [f"graph({head}):"]
        for value in self.constants:
            self.lines.append(f"  {self.declaration(value)} = prim::Constant{self.constant(value)}()")
        self.nodes(self.graph.block, "  ")
        self.lines.append(f"  return ({self.names(self.graph.outputs)})")
        return "\n".join(self.lines) + "\n"

    def nodes(self, block: Block, indent: str) -> None:
        """The lines of a block's nodes."""
        for node in block.nodes:
            outputs = ", ".join(map(self.declaration, node.outputs))
            attributes = ", ".join(f"{key}={_attribute(value)}" for key, value in node.attributes.items())
            suffix = f"[{attributes}]" if attributes else ""
            comment = f" # {' '.join(node.source.split())}" if self.sources and node.source else ""
            inputs = ", ".join(map(self.argument, node.args))
            self.lines.append(f"{indent}{outputs} = {_written_op(node)}{suffix}({inputs}){comment}")
            for index, nested in enumerate(node.blocks):
                parameters = ", ".join(map(self.declaration, nested.parameters))
                self.lines.append(f"{indent}  block{index}({parameters}):")
                self.nodes(nested, indent + "    ")
                self.lines.append(f"{indent}    -> ({self.names(nested.outputs)})")

    def name(self, value: Value) -> str:
        """``%a``"""
        if value.name:
            return f"%{value.name}"
        if value not in self._names:
            while str(self._next) in self._taken:
                self._next += 1
            self._names[value] = str(self._next)
            self._next += 1
        return f"%{self._names[value]}"

    def names(self, values: tuple[Value, ...]) -> str:
        """``%a, %b``"""
        return ", ".join(map(self.name, values))

    def declaration(self, value: Value) -> str:
        """``%a : Tensor float32[1, 3]``"""
        facts = f" {value.facts.text}" if self.facts and value.facts is not UNKNOWN else ""
        return f"{self.name(value)} : {value.type}{facts}"

    def constant(self, value: Value) -> str:
        """``[value=1]``"""
        if value.constant is None:
            return ""
        text = print_literal(value.constant, value.type, self.digests)
        if "<" in text:
            self.without_literal[self.name(value).removeprefix("%")] = value.constant
        return f"[value={text}]"

    def argument(self, value: Any) -> str:
        """An argument of a node: a value, or a plain one."""
        if isinstance(value, Value):
            return self.name(value)
        if isinstance(value, (list, tuple)):
            items = ", ".join(map(self.argument, value))
            return f"[{items}]" if isinstance(value, list) else f"({items}{',' if len(value) == 1 else ''})"
        if isinstance(value, (bool, *_FORMS)):
            return str(value)
        text = print_literal(value)
        if not text.startswith("<"):
            return f"device({text})" if isinstance(value, torch.device) else text
        key = f"{type(value).__name__}.{len(self.without_literal)}"
        self.without_literal[key] = value
        return f"<{key}>"


def _made(block: Block) -> Iterator[Value]:
    """Parameters of a block and what its nodes make, also nested ones."""
    yield from block.parameters
    for node in block.nodes:
        yield from node.outputs
        for nested in node.blocks:
            yield from _made(nested)


def _read(block: Block) -> Iterator[Value]:
    """What nodes of a block read, also nested ones, then what it returns."""
    for node in block.nodes:
        yield from node.inputs
        for nested in node.blocks:
            yield from _read(nested)
    yield from block.outputs


def _written_op(node: Node) -> str:
    """The operator, with its overload unless the types of its arguments say it."""
    if not node.has_inline_arguments and _chosen_overload(node.op, _types(node)) == node.overload:
        return node.op
    return node.qualified_op


def _types(node: Node) -> tuple[Type, ...]:
    return tuple(value.type for value in node.inputs)


@cache
def _chosen_overload(op: str, types: tuple[Type, ...]) -> str:
    """The overload that types of inputs ask for, one that takes just as many first; none of what has no schema."""
    schemas = schemas_of(op)
    if not schemas:
        return ""
    whole = (schema for schema in schemas if len(schema.arguments) == len(types))
    found = next((schema for schema in whole if match_arguments(schema, types, None)), None)
    try:
        return (found or resolve(op, types)).overload
    except UnsupportedError:
        return ""


def _attribute(value: Any) -> str:
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, Type) for item in value):
        return f"[{', '.join(map(str, value))}]"
    return print_literal(value)


_CONSTANT = re.compile(r"(?P<outputs>.*?)\s*=\s*prim::Constant(?:\[value=(?P<value>.*)\])?\(\)\s*(?:#.*)?")
_NODE = re.compile(r"(?P<outputs>.*?)\s*=\s(?P<op>\w+::\w+)(?P<overload>\.\w+)?")
_COMMENT = re.compile(r"(?:#\s*(?P<source>.*))?")
_BLOCK = re.compile(r"block\d+\((?P<parameters>.*)\):")
_RETURN = re.compile(r"(?:return|->)\s*\((?P<values>[^()]*)\)")
_TYPE_AND_FACTS = re.compile(rf"(?P<type>.*\S) (?P<facts>{FACTS_TEXT})")
_DIGEST = re.compile(r"<Tensor [^<>]* [0-9a-f]{16}>")


def parse_graph(text: str, constants: Mapping[str, Any] | None = None, guards: Guards | None = None) -> Graph:
    """Read the text of a graph.

    Args:
        text: what :func:`print_graph` prints, or TorchScript's own graph text in its plain form.
        constants: values of the constants that have no literal, by name without ``%``.
        guards: what the symbols of sizes belong to, if there are any.

    Raises:
        GraphError: the text can't be read; the message names the line.
    """
    return _GraphParser(text, constants or {}, guards or Guards()).parse()


class _ArgumentScanner(Scanner):
    """Reads the arguments of a node: names of values and plain values."""

    def __init__(self, text: str, values: Mapping[str, Value], constants: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.values = values
        self.constants = constants
        self.has_plain = False

    def value(self) -> Any:
        """A value of the graph, or a plain one."""
        if (name := self.take(r"%[^\s,()\[\]]+")) is not None:
            if name[1:] not in self.values:
                raise GraphError(f"{name} is used before it is defined")
            return self.values[name[1:]]
        self.has_plain = True
        if (word := self.take(r"(?:True|False)\b")) is not None:
            return word == "True"
        if (word := self.take(r"torch\.\w+")) is not None and isinstance(
            found := getattr(torch, word.removeprefix("torch."), None), _FORMS
        ):
            return found
        if self.take(r"device\("):
            (name,) = self.items(r"\)", super().value)
            return torch.device(name)
        if (key := self.take(r"<[\w.]+>")) is not None:
            if key[1:-1] not in self.constants:
                raise GraphError(f"the argument {key} has no literal; give its value to parse_graph by name")
            return self.constants[key[1:-1]]
        return super().value()


class _GraphParser:
    """Reads line by line; nesting follows from block headers and their ``->`` lines."""

    def __init__(self, text: str, constants: Mapping[str, Any], guards: Guards) -> None:
        self.text = text
        self.constants = constants
        self.guards = guards
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
        scanner = _ArgumentScanner(head.string[head.end() :], self.values, self.constants)
        attributes = scanner.attributes()
        scanner.has_plain = False
        if not scanner.take(r"\("):
            raise GraphError(f"can't read the line {line!r}")
        args = scanner.items(r"\)", scanner.value)
        tail = _COMMENT.fullmatch(scanner.rest)
        if tail is None:
            raise GraphError(f"can't read the line {line!r}")
        outputs = self.declarations(head["outputs"].strip())
        origin = Origin.of_line(tail["source"] or "")
        overload = (head["overload"] or "").removeprefix(".")
        typed = any(isinstance(value, Value) and isinstance(value.type, TensorType) for value in args)
        if scanner.has_plain or (overload and typed):
            node = Node.call(f"{head['op']}.{overload}" if overload else head["op"], args, [], origin)
        else:
            node = Node(head["op"], args, overload=overload, origin=origin)
            if not overload:
                self.choose_overload(node, line)
        node.attributes.update(attributes)
        block.append(node)
        while self.lines and (header := _BLOCK.fullmatch(self.lines[-1])):
            self.lines.pop()
            nested = node.add_block()
            for name, kind in self.declarations(header["parameters"]):
                self.values[name] = nested.add_parameter(self.value(name, kind))
            self.block(nested)
        for name, kind in outputs:
            self.values[name] = node.add_output(self.value(name, kind))

    def choose_overload(self, node: Node, line: str) -> None:
        """Set the overload that the inputs' types ask for.

        Raises:
            GraphError: none takes them.
        """
        node.overload = _chosen_overload(node.op, _types(node))
        if node.overload or not schemas_of(node.op):
            return
        try:
            resolve(node.op, _types(node))
        except UnsupportedError as error:
            raise GraphError(f"{error}, in the line {line!r}") from None

    def constant(self, outputs: list[tuple[str, str]], text: str | None) -> None:
        """A ``prim::Constant`` line, with the text of its value."""
        if len(outputs) != 1:
            raise GraphError(f"a constant must have one name and type, not {len(outputs)}")
        ((name, written),) = outputs
        kind = parse_type(written)
        if name in self.constants:
            value = self.constants[name]
            if text is not None and _DIGEST.search(text) and print_literal(value, kind, digests=True) != text:
                raise GraphError(f"the value that was given for the constant %{name} is not {text}")
        else:
            value = None if text is None else parse_literal(text, kind)
        self.graph.reserve_name(name)
        self.values[name] = Value(name, kind, value)

    def value(self, name: str, text: str) -> Value:
        """A new value of exactly this name, of a type with what is known of it."""
        if name in self.values:
            raise GraphError(f"%{name} is defined twice")
        self.graph.reserve_name(name)
        match = _TYPE_AND_FACTS.fullmatch(text)
        value = Value(name, parse_type(text if match is None else match["type"], self.guards))
        if match is not None:
            value.facts = parse_facts(match["facts"], self.guards)
        return value

    def references(self, text: str) -> list[Value]:
        """``%a, %b`` as values."""
        names = [item.strip().removeprefix("%") for item in text.split(",") if item.strip()]
        for name in names:
            if name not in self.values:
                raise GraphError(f"%{name} is used before it is defined")
        return [self.values[name] for name in names]

    def declarations(self, text: str) -> list[tuple[str, str]]:
        """``%a : Tensor, %b : (int, int)`` as names and the texts of types."""
        parts = re.split(r"(?:^|,\s*)%([^\s,():]+)\s*:\s*", text)
        return [(name, kind.strip()) for name, kind in zip(parts[1::2], parts[2::2], strict=True)]
