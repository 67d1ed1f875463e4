"""TorchScript source out: a Program as the class text that lies under ``code/`` in an archive.

Every node becomes one statement. Source of the notation: ``torch/csrc/jit/serialization/python_print.cpp``.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mobopt.bundle.source_expressions import literal, operator_call
from mobopt.errors import BundleError
from mobopt.ir import Block, Graph, Node, Program, Value
from mobopt.ir.types import DictType, ListType, OptionalType, TupleType, Type

_RESERVED = {
    *keyword.kwlist,
    *("torch", "ops", "CONSTANTS", "annotate", "uninitialized", "unchecked_cast", "getattr", "isinstance", "range"),
    *("int", "float", "bool", "str", "device", "inf", "nan", "fork", "print", "list", "dict", "len", "Tensor"),
}
_FOREVER = (1 << 63) - 1
"""Trip count of a loop that only its condition ends."""


@dataclass
class Source:
    """What an archive holds of a Program's code."""

    files: dict[str, str] = field(default_factory=dict)
    """Text by path under ``code/``: ``__torch__/nets.py``."""
    constants: list[Any] = field(default_factory=list)
    """Values of ``CONSTANTS.c0``, ``CONSTANTS.c1`` and so on: the tuple of ``constants.pkl``."""


def print_source(program: Program) -> Source:
    """Print the program's class, and the named tuples that it uses.

    Raises:
        BundleError: a value has no form in TorchScript source.
    """
    source = Source()
    printer = _ClassPrinter(program, source.constants)
    classes = {program.class_name: printer.text()}
    for name, kind in printer.named_tuples.items():
        fields = "".join(f"  {item} : {t.annotation}\n" for item, t in zip(kind.fields, kind.elements, strict=True))
        classes[name] = f"class {name.rpartition('.')[2]}(NamedTuple):\n{fields}"
    for name, text in classes.items():
        path = name.rpartition(".")[0].replace(".", "/") + ".py"
        source.files[path] = source.files.get(path, "") + text
    return source


def attribute_names(program: Program) -> dict[str, str]:
    """Names of the attributes in a file: as they are, but that an attribute that a method sets needs an identifier.

    TorchScript reads any name with ``getattr(self, "a.b")``, and sets only ``self.name``.
    """
    written = {
        node.attributes["name"]
        for graph in program.methods.values()
        for node in graph.walk()
        if node.op == "prim::SetAttr"
    }
    names: dict[str, str] = {}
    for name in program.attributes:
        target = name
        if name in written and not is_identifier(name):
            target = "".join(character if character.isalnum() else "_" for character in name)
            while target in program.attributes or target in names.values():
                target += "_"
        names[name] = target
    return names


def is_identifier(name: str) -> bool:
    """Whether a name can stand in source as it is."""
    return name.isidentifier() and not keyword.iskeyword(name)


class _ClassPrinter:
    """Prints one class, collecting constants and named tuples on the way."""

    def __init__(self, program: Program, constants: list[Any]) -> None:
        self.program = program
        self.constants = constants
        self.constant_names: dict[int, str] = {}
        self.named_tuples: dict[str, TupleType] = {}
        self.attributes = attribute_names(program)

    def text(self) -> str:
        """The whole class."""
        program = self.program
        lines = [f"class {program.class_name.rpartition('.')[2]}(Module):"]
        for title, chosen in (
            ("__parameters__", [name for name, item in program.attributes.items() if item.is_parameter]),
            ("__buffers__", [name for name, item in program.attributes.items() if item.is_buffer]),
        ):
            lines.append(f"  {title} = [{''.join(f'{literal(self.attributes[name])}, ' for name in chosen)}]")
        lines += self.declarations()
        for name, graph in program.methods.items():
            defaults = program.metadata.get("defaults", {}).get(name, {})
            lines += _MethodPrinter(self, graph).method(name, defaults)
        return "\n".join(lines) + "\n"

    def declarations(self) -> Iterator[str]:
        """One line for each attribute."""
        needs_table = any(not is_identifier(name) for name in self.attributes.values())
        if needs_table:
            yield "  __annotations__ = []"
        for name, attribute in self.program.attributes.items():
            target, kind = self.attributes[name], self.annotation(attribute.type)
            if is_identifier(target):
                yield f"  {target} : {kind}"
            else:
                yield f"  __annotations__[{literal(target)}] = {kind}"

    def annotation(self, kind: Type) -> str:
        """The spelling of a type; named tuples are noted, so that their classes are printed too."""
        self.note_named_tuples(kind)
        return kind.annotation

    def note_named_tuples(self, kind: Type) -> None:
        """Remember every named tuple inside a type."""
        if isinstance(kind, TupleType):
            if kind.name:
                if not kind.name.startswith("__torch__."):
                    raise BundleError(f"the named tuple {kind.name!r} has no qualified name, so it can't be written")
                self.named_tuples[kind.name] = kind
            for element in kind.elements:
                self.note_named_tuples(element)
        elif isinstance(kind, (ListType, OptionalType)):
            self.note_named_tuples(kind.element)
        elif isinstance(kind, DictType):
            self.note_named_tuples(kind.key)
            self.note_named_tuples(kind.value)

    def constant(self, value: Any) -> str:
        """``CONSTANTS.cN`` for a tensor or an object; the same object gets the same name."""
        if id(value) not in self.constant_names:
            self.constant_names[id(value)] = f"CONSTANTS.c{len(self.constants)}"
            self.constants.append(value)
        return self.constant_names[id(value)]


class _MethodPrinter:
    """Prints one method."""

    def __init__(self, owner: _ClassPrinter, graph: Graph) -> None:
        self.owner = owner
        self.graph = graph
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.taken = set(_RESERVED)

    def method(self, name: str, defaults: Mapping[str, Any]) -> list[str]:
        """The lines of the whole method."""
        parameters = []
        for index, value in enumerate(self.graph.inputs):
            argument = self.define(value)
            kind = self.owner.program.self_type if index == 0 else value.type
            default = f"={literal(defaults[argument])}" if argument in defaults else ""
            parameters.append(f"{argument}: {self.owner.annotation(kind)}{default}")
        if len(self.graph.outputs) != 1:
            raise BundleError(
                f"method {name!r} returns {len(self.graph.outputs)} values; TorchScript methods return one"
            )
        (result,) = self.graph.outputs
        head = ",\n    ".join(parameters)
        self.lines.append(f"  def {name}({head}) -> {self.owner.annotation(result.type)}:")
        self.block(self.graph.block, 2)
        self.line(2, f"return {self.value(result)}")
        return self.lines

    def line(self, depth: int, text: str) -> None:
        """One statement."""
        self.lines.append("  " * depth + text)

    def define(self, value: Value) -> str:
        """Give a value a name that nothing else has."""
        base = value.name.split(".")[0] if not value.name.startswith("prepack_folding") else value.name
        base = "".join(character if character.isalnum() else "_" for character in base) or "_"
        if base[0].isdigit():
            base = f"_{base}"
        name, count = base, 0
        while name in self.taken:
            name, count = f"{base}{count}" if not base[-1].isdigit() else f"{base}_{count}", count + 1
        self.taken.add(name)
        self.names[value] = name
        return name

    def value(self, value: Value) -> str:
        """The expression that reads a value."""
        if not value.is_constant:
            return self.names[value]
        return self.constant(value.constant, value.type)

    def constant(self, constant: Any, kind: Type) -> str:
        """The expression of a constant."""
        if constant is None and isinstance(kind, OptionalType):
            return f"annotate({self.owner.annotation(kind)}, None)"
        if isinstance(constant, (list, tuple)) and not isinstance(kind, OptionalType):
            return self.sequence(constant, kind)
        if isinstance(constant, dict):
            element = kind.value if isinstance(kind, DictType) else kind
            items = [f"{literal(key)}: {self.constant(item, element)}" for key, item in constant.items()]
            return f"annotate({self.owner.annotation(kind)}, {{{', '.join(items)}}})"
        if isinstance(constant, torch.Tensor) or hasattr(constant, "qualified_name"):
            return self.owner.constant(constant)
        return literal(constant)

    def sequence(self, constant: Sequence[Any], kind: Type) -> str:
        """A list or tuple constant."""
        if isinstance(kind, TupleType):
            return self.tuple(kind, [self.constant(c, t) for c, t in zip(constant, kind.elements, strict=True)])
        element = kind.element if isinstance(kind, ListType) else kind
        text = f"[{', '.join(self.constant(item, element) for item in constant)}]"
        return text if constant and not isinstance(element, OptionalType) else f"annotate({kind.annotation}, {text})"

    def tuple(self, kind: TupleType, items: Sequence[str]) -> str:
        """A tuple display, or the call of a named tuple."""
        if kind.name:
            return f"{self.owner.annotation(kind)}({', '.join(items)})"
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"

    def typed(self, value: Value, kind: Type) -> str:
        """The expression of a value where ``kind`` is wanted, with the annotation that the compiler needs for it."""
        text = self.value(value)
        if value.type == kind or text.startswith("annotate("):
            return text
        return f"annotate({self.owner.annotation(kind)}, {text})"

    def block(self, block: Block, depth: int) -> None:
        """Every node of a block."""
        for node in block.nodes:
            if node.op == "prim::If":
                self.branch(node, depth)
            elif node.op == "prim::Loop":
                self.loop(node, depth)
            else:
                self.statement(node, depth)

    def statement(self, node: Node, depth: int) -> None:
        """A node without blocks."""
        if node.op == "prim::SetAttr":
            target = self.owner.attributes[node.attributes["name"]]
            self.line(depth, f"{self.value(node.inputs[0])}.{target} = {self.value(node.inputs[1])}")
            return
        expression = self.expression(node)
        names = [self.define(output) for output in node.outputs]
        if not names:
            self.line(depth, expression)
        elif node.op in ("prim::ListUnpack", "prim::TupleUnpack"):
            self.line(depth, f"{', '.join(names)}, = {expression}")
        else:
            self.line(depth, f"{', '.join(names)} = {expression}")

    def expression(self, node: Node) -> str:
        """The right-hand side of a node without blocks."""
        values = [self.value(value) for value in node.inputs]
        match node.op:
            case "prim::GetAttr":
                name = self.owner.attributes[node.attributes["name"]]
                return f"{values[0]}.{name}" if is_identifier(name) else f"getattr({values[0]}, {literal(name)})"
            case "prim::ListConstruct":
                return self.list_display(node)
            case "prim::DictConstruct":
                pairs = ", ".join(f"{key}: {item}" for key, item in zip(values[::2], values[1::2], strict=True))
                return f"annotate({self.owner.annotation(node.output.type)}, {{{pairs}}})"
            case "prim::TupleConstruct":
                kind = node.output.type
                if not isinstance(kind, TupleType):
                    raise BundleError(f"{node!r} makes a {kind}, which is no tuple")
                items = [self.typed(v, t) for v, t in zip(node.inputs, kind.elements, strict=True)]
                return self.tuple(kind, items)
            case "prim::ListUnpack" | "prim::TupleUnpack":
                return values[0]
            case "prim::TupleIndex":
                return f"({values[0]})[{values[1]}]"
            case "prim::TupleSlice":
                return f"({values[0]})[{node.attributes['beg']}:{node.attributes['end']}]"
            case "prim::unchecked_cast":
                return f"unchecked_cast({self.owner.annotation(node.output.type)}, {values[0]})"
            case "prim::Uninitialized":
                return f"uninitialized({self.owner.annotation(node.output.type)})"
            case "prim::isinstance":
                return f"isinstance({values[0]}, [{', '.join(node.attributes['types'])}])"
        return operator_call(node, values)

    def list_display(self, node: Node) -> str:
        """A list display, annotated where its elements don't say its type."""
        kind = node.output.type
        text = f"[{', '.join(self.value(value) for value in node.inputs)}]"
        plain = isinstance(kind, ListType) and all(value.type == kind.element for value in node.inputs)
        return text if node.inputs and plain else f"annotate({self.owner.annotation(kind)}, {text})"

    def branch(self, node: Node, depth: int) -> None:
        """``if`` and ``else``; each ends by naming what the node makes."""
        condition = self.value(node.inputs[0])
        targets = [(self.define(output), output.type) for output in node.outputs]
        for keyword_, block in zip((f"if {condition}:", "else:"), node.blocks, strict=True):
            self.line(depth, keyword_)
            self.block(block, depth + 1)
            for (name, kind), value in zip(targets, block.outputs, strict=True):
                self.line(depth + 1, f"{name} = {self.typed(value, kind)}")
            if not block.nodes and not targets:
                self.line(depth + 1, "pass")

    def loop(self, node: Node, depth: int) -> None:
        """A counted loop as ``for``, one that a condition ends as ``while``, and both as ``while`` with a counter."""
        body = node.blocks[0]
        trips, start, *carried = node.inputs
        counter, *parameters = body.parameters
        names = []
        for output, parameter, initial in zip(node.outputs, parameters, carried, strict=True):
            names.append(self.define(output))
            self.names[parameter] = names[-1]
            self.line(depth, f"{names[-1]} = {self.typed(initial, output.type)}")
        kinds = [output.type for output in node.outputs]
        condition, *following = body.outputs
        is_counted = _is_true(start) and _is_true(condition)
        if is_counted:
            self.line(depth, f"for {self.define(counter)} in range({self.value(trips)}):")
            self.block(body, depth + 1)
            self.next_values(names, following, kinds, depth + 1, is_empty=not body.nodes)
            return
        test = self.fresh("going")
        if trips.is_constant and trips.constant == _FOREVER and not counter.uses:
            self.line(depth, f"{test} = {self.value(start)}")
            self.line(depth, f"while {test}:")
            self.block(body, depth + 1)
            self.next_values([test, *names], [condition, *following], [condition.type, *kinds], depth + 1)
            return
        self.counted_while(node, test, names, kinds, depth)

    def counted_while(self, node: Node, test: str, names: list[str], kinds: list[Type], depth: int) -> None:
        """A loop that either its count or its condition ends."""
        body = node.blocks[0]
        trips, start = self.value(node.inputs[0]), self.value(node.inputs[1])
        count = self.define(body.parameters[0])
        condition, *following = body.outputs
        self.line(depth, f"{count} = 0")
        self.line(depth, f"{test} = torch.__and__(torch.lt({count}, {trips}), {start})")
        self.line(depth, f"while {test}:")
        self.block(body, depth + 1)
        self.next_values([test, *names], [condition, *following], [condition.type, *kinds], depth + 1)
        self.line(depth + 1, f"{count} = torch.add({count}, 1)")
        self.line(depth + 1, f"{test} = torch.__and__(torch.lt({count}, {trips}), {test})")

    def next_values(
        self, names: list[str], values: Sequence[Value], kinds: list[Type], depth: int, is_empty: bool = False
    ) -> None:
        """What a loop carries into its next turn, all at once, since new values may read old ones."""
        if names:
            news = ", ".join(self.typed(value, kind) for value, kind in zip(values, kinds, strict=True))
            self.line(depth, f"{', '.join(names)} = {news}")
        elif is_empty:
            self.line(depth, "pass")

    def fresh(self, base: str) -> str:
        """A name for a variable that is no value of the graph."""
        name, count = base, 0
        while name in self.taken:
            name, count = f"{base}{count}", count + 1
        self.taken.add(name)
        return name


def _is_true(value: Value) -> bool:
    return value.is_constant and value.constant is True
