"""TorchScript source out: the class of a Program, as PyTorch's importer reads it.

One statement per node, in order; constants that have no literal are ``CONSTANTS.cN``.

Source of the form: ``torch/csrc/jit/serialization/python_print.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mobopt.bundle.lite_writer import is_default
from mobopt.bundle.source_text import Names, is_identifier, literal, quoted, tuple_text
from mobopt.errors import BundleError, UnsupportedError
from mobopt.ir import Block, Graph, Node, Program, Value
from mobopt.ir.arguments import argument_name
from mobopt.ir.schemas import Argument, schema_of
from mobopt.ir.types import FLOAT, ListType, OptionalType, TupleType, Type

_MAX_TRIPS = (1 << 63) - 1


class ConstantTable:
    """Constants that source refers to as ``CONSTANTS.cN``.

    Attributes:
        values: each with its type, in order.
    """

    def __init__(self) -> None:
        self.values: list[tuple[Any, Type]] = []
        self._index: dict[int, int] = {}

    def reference(self, value: Any, kind: Type) -> str:
        """The expression for a value."""
        if id(value) not in self._index:
            self._index[id(value)] = len(self.values)
            self.values.append((value, kind))
        return f"CONSTANTS.c{self._index[id(value)]}"


def source_files(program: Program, constants: ConstantTable) -> dict[str, str]:
    """Source of a program by record name.

    Args:
        program: what to print; its attributes are the class's.
        constants: filled with the constants that the source refers to.

    Raises:
        BundleError: a graph holds what source has no form for.
    """
    named_tuples: dict[str, TupleType] = {}
    lines = _class_lines(program)
    for name, graph in program.methods.items():
        defaults = program.metadata.get("defaults", {}).get(name, {})
        lines += _MethodPrinter(program, graph, constants).lines(name, defaults)
        _collect_named_tuples(graph, named_tuples)
    files: dict[str, list[str]] = {}
    for kind in named_tuples.values():
        files.setdefault(_record(kind.name), []).extend(_named_tuple_lines(kind))
    files.setdefault(_record(program.class_name), []).extend(lines)
    for attribute in program.attributes.values():
        namespace = attribute.type.annotation.rpartition(".")[0]
        if namespace.startswith("__torch__.torch.classes."):
            files.setdefault(f"code/{namespace.replace('.', '/')}.py", [])
    return {record: "".join(f"{line}\n" for line in content) for record, content in files.items()}


def _record(qualified_name: str) -> str:
    prefix, _, name = qualified_name.rpartition(".")
    if not prefix.startswith("__torch__") or not is_identifier(name):
        raise BundleError(
            f"{qualified_name!r} can't be the name of a class in a model file; use __torch__.<module>.<Class>"
        )
    return f"code/{prefix.replace('.', '/')}.py"


def _class_lines(program: Program) -> list[str]:
    attributes = program.attributes
    parameters = "".join(f"{quoted(name)}, " for name, item in attributes.items() if item.is_parameter)
    buffers = "".join(f"{quoted(name)}, " for name, item in attributes.items() if item.is_buffer)
    lines = [f"class {program.class_name.rpartition('.')[2]}(Module):"]
    lines += [f"  __parameters__ = [{parameters}]", f"  __buffers__ = [{buffers}]"]
    if any(not is_identifier(name) for name in attributes):
        lines.append("  __annotations__ = []")
    for name, item in attributes.items():
        if is_identifier(name):
            lines.append(f"  {name} : {item.type.annotation}")
        else:
            lines.append(f"  __annotations__[{quoted(name)}] = {item.type.annotation}")
    return lines


def _named_tuple_lines(kind: TupleType) -> list[str]:
    fields = [f"  {name} : {element.annotation}" for name, element in zip(kind.fields, kind.elements, strict=True)]
    return [f"class {kind.name.rpartition('.')[2]}(NamedTuple):", *fields]


def _collect_named_tuples(graph: Graph, found: dict[str, TupleType]) -> None:
    values = [*graph.inputs, *(output for node in graph.walk() for output in node.outputs)]
    for value in values:
        _collect_from_type(value.type, found)


def _collect_from_type(kind: Type, found: dict[str, TupleType]) -> None:
    for part in ("element", "key", "value"):
        if isinstance(getattr(kind, part, None), Type):
            _collect_from_type(getattr(kind, part), found)
    if isinstance(kind, TupleType):
        for element in kind.elements:
            _collect_from_type(element, found)
        if kind.name:
            found[kind.name] = kind


class _MethodPrinter:
    """Prints one method."""

    def __init__(self, program: Program, graph: Graph, constants: ConstantTable) -> None:
        self.program = program
        self.graph = graph
        self.constants = constants
        self.names = Names()
        self.names_of: dict[Value, str] = {}
        self.out: list[str] = []
        self.indent = "    "

    def lines(self, method: str, defaults: Mapping[str, Any]) -> list[str]:
        """The whole method, indented as a member of its class."""
        if len(self.graph.outputs) != 1 or not self.graph.inputs:
            raise BundleError(f"method {method!r} must take the module itself first and return exactly one value")
        head = [f"{self.name(self.graph.inputs[0], 'self')}: {self.program.class_name}"]
        head += [f"{self.name(value)}: {value.type.annotation}" for value in self.graph.inputs[1:]]
        self.add_defaults(head, defaults)
        result = self.graph.outputs[0]
        self.nodes(self.graph.block)
        self.line(f"return {self.use(result)}")
        signature = ",\n    ".join(head)
        return [f"  def {method}({signature}) -> {result.type.annotation}:", *self.out]

    def add_defaults(self, head: list[str], defaults: Mapping[str, Any]) -> None:
        """Add defaults to the last parameters, as far as all of them have one."""
        for index, value in reversed(list(enumerate(self.graph.inputs))):
            name = argument_name(value.name)
            text = None
            if name in defaults:
                text = "None" if defaults[name] is None else literal(defaults[name], value.type)
            if text is None:
                return
            head[index] += f"={text}"

    def line(self, text: str) -> None:
        """Append a line."""
        self.out.append(f"{self.indent}{text}")

    def name(self, value: Value, hint: str | None = None) -> str:
        """Give a value its identifier."""
        self.names_of[value] = "self" if hint == "self" else self.names.take(hint or value.name)
        return self.names_of[value]

    def use(self, value: Value, target: Type | None = None) -> str:
        """An expression for a value; annotated where it goes into a variable of a wider type."""
        text = self.expression(value)
        if target is not None and target != value.type and not text.startswith("annotate("):
            return f"annotate({target.annotation}, {text})"
        return text

    def expression(self, value: Value) -> str:
        """A value's name, or its literal."""
        if not value.is_constant:
            return self.names_of[value]
        text = literal(value.constant, value.type)
        return self.constants.reference(value.constant, value.type) if text is None else text

    # Statements.

    def nodes(self, block: Block) -> None:
        """Every node of a block."""
        for node in block.nodes:
            if node.op == "prim::If":
                self.branch(node)
            elif node.op == "prim::Loop":
                self.loop(node)
            elif node.op == "prim::SetAttr":
                self.set_attribute(node)
            else:
                self.assign(node, self.call(node))

    def assign(self, node: Node, text: str) -> None:
        """A statement that gives a node's outputs their names."""
        if not node.outputs:
            unpacks = node.op in ("prim::ListUnpack", "prim::TupleUnpack")
            self.line(f"{self.names.take('')} = {text}" if unpacks else text)
        elif len(node.outputs) == 1 and node.op not in ("prim::ListUnpack", "prim::TupleUnpack"):
            self.line(f"{self.name(node.outputs[0])} = {text}")
        else:
            names = "".join(f"{self.name(value)}, " for value in node.outputs)
            self.line(f"{names}= {text}")

    def set_attribute(self, node: Node) -> None:
        """prim::SetAttr."""
        name = node.attributes["name"]
        if not is_identifier(name):
            raise BundleError(f"{node!r} sets attribute {name!r}, whose name can't be assigned to in source; rename it")
        self.line(f"{self.use(node.inputs[0])}.{name} = {self.use(node.inputs[1], self.program.attributes[name].type)}")

    def nested(self, block: Block, targets: Sequence[str], types: Sequence[Type]) -> None:
        """A block's nodes and the assignment of what it returns."""
        outer, self.indent = self.indent, self.indent + "  "
        before = len(self.out)
        self.nodes(block)
        self.assign_all(targets, block.outputs[len(block.outputs) - len(targets) :], types)
        if len(self.out) == before:
            self.line("pass")
        self.indent = outer

    def assign_all(self, targets: Sequence[str], values: Sequence[Value], types: Sequence[Type]) -> None:
        """Assign to several variables at once, for a value may be the old value of another of them."""
        pairs = list(zip(targets, values, types, strict=True))
        texts = [self.use(value, kind) for _, value, kind in pairs]
        if any(self.names_of.get(value) in targets for value in values) and len(pairs) > 1:
            self.line(f"{''.join(f'{target}, ' for target in targets)}= {tuple_text(texts)}")
            return
        for target, text in zip(targets, texts, strict=True):
            self.line(f"{target} = {text}")

    def branch(self, node: Node) -> None:
        """prim::If."""
        targets = [self.names.take(value.name) for value in node.outputs]
        types = [value.type for value in node.outputs]
        self.line(f"if {self.use(node.inputs[0])}:")
        self.nested(node.blocks[0], targets, types)
        self.line("else:")
        self.nested(node.blocks[1], targets, types)
        self.names_of.update(zip(node.outputs, targets, strict=True))

    def loop(self, node: Node) -> None:
        """prim::Loop, as a ``for`` or a ``while``."""
        limit, condition, *carried = node.inputs
        body = node.blocks[0]
        iteration, *parameters = body.parameters
        targets = [self.names.take(value.name) for value in node.outputs]
        types = [value.type for value in parameters]
        self.assign_all(targets, carried, types)
        self.names_of.update(zip(parameters, targets, strict=True))
        if _is_true(condition) and _is_true(body.outputs[0]):
            self.line(f"for {self.name(iteration)} in range({self.use(limit)}):")
            self.nested(body, targets, types)
        else:
            self.while_loop(node, targets, types)
        self.names_of.update(zip(node.outputs, targets, strict=True))

    def while_loop(self, node: Node, targets: list[str], types: list[Type]) -> None:
        """A loop with a condition; it also counts where its number of trips is limited or read."""
        limit, condition = node.inputs[:2]
        body = node.blocks[0]
        go_on = self.names.take("")
        self.line(f"{go_on} = {self.use(condition)}")
        endless = limit.is_constant and limit.constant == _MAX_TRIPS
        if endless and not body.parameters[0].uses:
            self.line(f"while {go_on}:")
            self.nested_while(body, targets, types, [f"{go_on} = {{}}"])
            return
        counter, bound = self.name(body.parameters[0]), self.use(limit)
        self.line(f"{counter} = 0")
        self.line(f"{go_on} = torch.__and__({go_on}, torch.lt({counter}, {bound}))")
        self.line(f"while {go_on}:")
        step = f"{counter} = torch.add({counter}, 1)"
        self.nested_while(body, targets, types, [step, f"{go_on} = torch.__and__({{}}, torch.lt({counter}, {bound}))"])

    def nested_while(self, body: Block, targets: list[str], types: list[Type], endings: list[str]) -> None:
        """A ``while``'s body; ``{}`` of the last lines is its condition."""
        outer, self.indent = self.indent, self.indent + "  "
        self.nodes(body)
        kept = self.names.take("")
        self.line(f"{kept} = {self.use(body.outputs[0])}")
        self.assign_all(targets, body.outputs[1:], types)
        for text in endings:
            self.line(text.format(kept))
        self.indent = outer

    # Expressions.

    def call(self, node: Node) -> str:
        """The expression of a node."""
        special = _SPECIAL.get(node.op)
        return special(self, node) if special is not None else self.operator(node)

    def operator(self, node: Node) -> str:
        """A call of an operator, without its last default arguments."""
        try:
            schema = schema_of(node.qualified_op)
        except UnsupportedError:
            raise BundleError(f"{node!r} can't be written as source: it is no known operator") from None
        namespace, _, name = node.op.partition("::")
        callee = f"torch.{name}" if namespace == "aten" else f"ops.{namespace}.{name}"
        count = len(node.inputs)
        if not schema.is_variadic:
            while count and _is_omitted(schema.arguments[count - 1], node.inputs[count - 1]):
                count -= 1
        arguments: list[str] = []
        for index, value in enumerate(node.inputs[:count]):
            argument = schema.arguments[index] if index < len(schema.arguments) else None
            text = self.argument(value, argument)
            if argument is not None and argument.keyword_only:
                if not _is_omitted(argument, value):
                    arguments.append(f"{argument.name}={text}")
            else:
                arguments.append(text)
        return f"{callee}({', '.join(arguments)})"

    def argument(self, value: Value, argument: Argument | None) -> str:
        """An argument's expression; a whole number that means a float is written as one."""
        is_float = argument is not None and argument.type in (FLOAT, OptionalType(FLOAT))
        if is_float and value.is_constant and type(value.constant) is int:
            return f"{value.constant}."
        if value.is_constant and value.constant is None:
            return "None"
        return self.use(value)

    def get_attribute(self, node: Node) -> str:
        """prim::GetAttr."""
        name, owner = node.attributes["name"], self.use(node.inputs[0])
        return f"{owner}.{name}" if is_identifier(name) else f"getattr({owner}, {quoted(name)})"

    def list_display(self, node: Node) -> str:
        """prim::ListConstruct."""
        kind = node.output.type
        text = f"[{', '.join(self.use(value) for value in node.inputs)}]"
        element = kind.element if isinstance(kind, ListType) else None
        is_plain = bool(node.inputs) and all(value.type == element for value in node.inputs)
        return text if is_plain else f"annotate({kind.annotation}, {text})"

    def dict_display(self, node: Node) -> str:
        """prim::DictConstruct."""
        texts = [self.use(value) for value in node.inputs]
        items = ", ".join(f"{key}: {value}" for key, value in zip(texts[::2], texts[1::2], strict=True))
        return f"annotate({node.output.type.annotation}, {{{items}}})"

    def tuple_display(self, node: Node) -> str:
        """prim::TupleConstruct."""
        kind = node.output.type
        if not isinstance(kind, TupleType):
            raise BundleError(f"{node!r} makes a {kind}, not a tuple")
        texts = [self.use(value, element) for value, element in zip(node.inputs, kind.elements, strict=True)]
        return f"{kind.name}({', '.join(texts)})" if kind.name else tuple_text(texts)

    def is_instance(self, node: Node) -> str:
        """prim::isinstance."""
        types = [kind.annotation for kind in node.attributes["types"]]
        return f"isinstance({self.use(node.inputs[0])}, {types[0] if len(types) == 1 else tuple_text(types)})"

    def tuple_slice(self, node: Node) -> str:
        """prim::TupleSlice."""
        return f"({self.use(node.inputs[0])})[{node.attributes['beg']}:{node.attributes['end']}]"

    def converted(self, node: Node) -> str:
        """Conversions that the importer inserts again where a type is annotated."""
        return f"annotate({node.output.type.annotation}, {self.use(node.inputs[0])})"


def _is_true(value: Value) -> bool:
    return value.is_constant and value.constant is True


def _is_omitted(argument: Argument, value: Value) -> bool:
    return argument.has_default and is_default(value, argument.default)


def _function(name: str) -> Callable[[_MethodPrinter, Node], str]:
    return lambda printer, node: f"{name}({', '.join(printer.use(value) for value in node.inputs)})"


def _typed(name: str) -> Callable[[_MethodPrinter, Node], str]:
    return lambda printer, node: f"{name}({', '.join([node.output.type.annotation, *map(printer.use, node.inputs)])})"


def _view(printer: _MethodPrinter, node: Node) -> str:
    """``aten::view``; that of a dtype as a copy, for PyTorch's compiler takes the dtype's number for sizes."""
    if node.overload != "dtype":
        return printer.operator(node)
    x, dtype = map(printer.use, node.inputs)
    return f"torch.view_copy({x}, dtype={dtype})"


_SPECIAL: dict[str, Callable[[_MethodPrinter, Node], str]] = {
    "aten::view": _view,
    "prim::GetAttr": _MethodPrinter.get_attribute,
    "prim::ListConstruct": _MethodPrinter.list_display,
    "prim::DictConstruct": _MethodPrinter.dict_display,
    "prim::TupleConstruct": _MethodPrinter.tuple_display,
    "prim::TupleSlice": _MethodPrinter.tuple_slice,
    "prim::TupleIndex": lambda printer, node: f"({printer.use(node.inputs[0])})[{printer.use(node.inputs[1])}]",
    "prim::ListUnpack": lambda printer, node: printer.use(node.inputs[0]),
    "prim::TupleUnpack": lambda printer, node: printer.use(node.inputs[0]),
    "prim::isinstance": _MethodPrinter.is_instance,
    "prim::unchecked_cast": _typed("unchecked_cast"),
    "prim::Uninitialized": _typed("uninitialized"),
    "prim::RaiseException": _function("ops.prim.RaiseException"),
    "prim::Print": _function("print"),
    "prim::tolist": lambda printer, node: (
        f"annotate({node.output.type.annotation}, {printer.use(node.inputs[0])}.tolist())"
    ),
    "prim::unchecked_unwrap_optional": _function("unchecked_unwrap_optional"),
    "aten::Int": _function("int"),
    "aten::Float": _function("float"),
    "aten::Bool": _function("bool"),
    "aten::Complex": _function("complex"),
    "aten::str": _function("str"),
    "aten::IntImplicit": _MethodPrinter.converted,
    "aten::FloatImplicit": _MethodPrinter.converted,
    "aten::ScalarImplicit": _MethodPrinter.converted,
}
