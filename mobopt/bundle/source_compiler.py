"""Expressions of TorchScript source: literals, attributes, operators, calls and implicit conversions."""

from __future__ import annotations

import ast
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mobopt.bundle.attributes import ModuleTree, Submodule
from mobopt.bundle.builder import Allowance, value_type
from mobopt.bundle.source_library import SourceClass, SourceFunction, SourceLibrary
from mobopt.bundle.source_operators import (
    IMPLICIT,
    Display,
    Ignored,
    Item,
    NewObject,
    OperatorCalls,
    Reference,
    Several,
    common_type,
    without_none,
)
from mobopt.bundle.unpickler import PickledEnum, Unpickled
from mobopt.errors import BundleError
from mobopt.ir import Value
from mobopt.ir.schemas import accepts
from mobopt.ir.types import (
    BOOL,
    FLOAT,
    INT,
    STR,
    TENSOR,
    DictType,
    ListType,
    TupleType,
    Type,
)

_GRADIENT_MODES = ("no_grad", "enable_grad", "inference_mode", "set_grad_enabled")


_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "aten::add",
    ast.Sub: "aten::sub",
    ast.Mult: "aten::mul",
    ast.Div: "aten::div",
    ast.FloorDiv: "aten::floordiv",
    ast.Mod: "aten::remainder",
    ast.Pow: "aten::pow",
    ast.MatMult: "aten::matmul",
    ast.BitAnd: "aten::__and__",
    ast.BitOr: "aten::__or__",
    ast.BitXor: "aten::__xor__",
    ast.LShift: "aten::__lshift__",
    ast.RShift: "aten::__rshift__",
}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "aten::eq",
    ast.NotEq: "aten::ne",
    ast.Lt: "aten::lt",
    ast.LtE: "aten::le",
    ast.Gt: "aten::gt",
    ast.GtE: "aten::ge",
    ast.Is: "aten::__is__",
    ast.IsNot: "aten::__isnot__",
}
_SAMENESS = {"aten::eq": True, "aten::ne": False, "aten::__is__": True, "aten::__isnot__": False}
_BUILTIN_FUNCTIONS = {
    "int": "aten::Int",
    "float": "aten::Float",
    "bool": "aten::Bool",
    "complex": "aten::Complex",
    "str": "aten::str",
    "len": "aten::len",
    "list": "aten::list",
    "hash": "aten::hash",
    "ord": "aten::ord",
    "chr": "aten::chr",
    "bin": "aten::bin",
    "oct": "aten::oct",
    "hex": "aten::hex",
    "round": "aten::round",
    "sorted": "aten::sorted",
    "abs": "prim::abs",
    "min": "prim::min",
    "max": "prim::max",
    "print": "prim::Print",
    "unchecked_unwrap_optional": "prim::unchecked_unwrap_optional",
}
_VALUE_ATTRIBUTES = {"shape": "aten::size", "ndim": "aten::dim", "T": "aten::numpy_T"}
_NAMED_NUMBERS = {"inf": math.inf, "nan": math.nan, "infj": complex(0, math.inf), "nanj": complex(0, math.nan)}


class Compiler(OperatorCalls, ABC):
    """Compiles expressions into the current block.

    Attributes:
        environment: variables by name.
    """

    def __init__(self, modules: ModuleTree, library: SourceLibrary, constants: Unpickled, allowance: Allowance) -> None:
        super().__init__(modules, allowance)
        self.library = library
        self.constants = constants
        self.environment: dict[str, Item] = {}
        self.path = ""
        """Of the module whose method is being read."""
        self._constant_values: dict[int, Value] = {}

    def error(self, node: ast.AST, message: str) -> BundleError:
        """An error at a place of the source, and at the author's line if that is known."""
        line = getattr(node, "lineno", "?")
        place = self.place(node) if hasattr(node, "lineno") else ""
        own = f"{self.record.removeprefix('code/')}:{line}"
        author = f" ({place})" if place and not place.startswith(own) else ""
        return BundleError(f"{self.record}:{line}{author}: {message}")

    def place(self, node: ast.AST) -> str:
        """``conv.py:554 in features.0``: the author's line, and the module that it runs in."""
        line = self.library.place(self.record, node)
        return f"{line} in {self.path}" if self.path else line

    @abstractmethod
    def inline(
        self, function: SourceFunction, call: ast.AST, arguments: Sequence[Item], keywords: dict[str, Item]
    ) -> Item:
        """Compile a called function in place; returns its result."""

    def expression(self, node: ast.expr, expected: Type | None = None) -> Item:
        """Compile an expression into one item, converted to the expected type if there is one."""
        item = self.evaluate(node, expected)
        if isinstance(item, Several):
            item = self.value(item, node)
        return self.converted(item, expected) if isinstance(item, Value) and expected is not None else item

    def evaluate(self, node: ast.expr, expected: Type | None = None) -> Item:
        """Compile an expression; an operator with several results gives them apart."""
        self.builder.step()
        match node:
            case ast.Constant(value=value):
                return self.literal(value, node)
            case ast.Name():
                return self.name(node)
            case ast.Attribute():
                return self.attribute(node)
            case ast.Call():
                return self.call(node, expected)
            case ast.List(elts=elements):
                return self.list_display(elements, expected)
            case ast.Tuple(elts=elements):
                return self.tuple_display(elements, expected)
            case ast.Dict():
                return self.dict_display(node, expected)
            case ast.Subscript():
                return self.subscript(node)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() | complex() as number)):
                return self.literal(-number, node)  # the lowest integer has no positive literal
            case ast.UnaryOp():
                return self.unary(node)
            case ast.BinOp(op=op, left=left, right=right):
                return self.binary(op, self.expression(left), self.expression(right), node)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.compare(op, left, right, node)
            case ast.BoolOp(op=op, values=values):
                return self.boolean(isinstance(op, ast.And), values)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.choice(test, lambda: self.expression(body), lambda: self.expression(orelse))
            case _:
                raise self.error(node, f"{type(node).__name__} expressions are not read: {ast.unparse(node)[:80]!r}")

    # Literals and names.

    def literal(self, value: Any, node: ast.AST) -> Value:
        """A literal."""
        if isinstance(value, str):
            return self.builder.constant(_decoded(value))
        if value is None or isinstance(value, (bool, int, float, complex)):
            if type(value) is int and not -(1 << 63) <= value < 1 << 63:
                raise self.error(node, f"{value} is not a 64-bit integer")
            return self.builder.constant(value)
        raise self.error(node, f"{value!r} is not a literal of TorchScript")

    def name(self, node: ast.Name) -> Item:
        """A variable."""
        if node.id in self.environment:
            return self.environment[node.id]
        if node.id in _NAMED_NUMBERS:
            return self.builder.constant(_NAMED_NUMBERS[node.id])
        raise self.error(node, f"the variable {node.id!r} is not defined here")

    def dotted(self, node: ast.expr) -> str:
        """``a.b.c`` if the expression is that and ``a`` is not a variable, else an empty string."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in self.environment:
            return ""
        return ".".join([node.id, *reversed(parts)])

    def attribute(self, node: ast.Attribute) -> Item:
        """``a.b``"""
        dotted = self.dotted(node)
        if dotted.startswith("CONSTANTS.c"):
            return self.table_constant(dotted.removeprefix("CONSTANTS.c"), node)
        if dotted.startswith("__torch__."):
            return self.class_member(dotted, node)
        return self.member(self.expression(node.value), node.attr, node)

    def table_constant(self, number: str, node: ast.AST) -> Value:
        """``CONSTANTS.cN``"""
        table = self.constants.value
        index = int(number) if number.isdigit() else -1
        if not 0 <= index < len(table):
            raise self.error(node, f"CONSTANTS.c{number} does not exist; constants.pkl holds {len(table)} constants")
        if index not in self._constant_values:
            kind = value_type(table[index], self.constants.types)
            self._constant_values[index] = self.builder.constant(table[index], kind)
        return self._constant_values[index]

    def class_member(self, dotted: str, node: ast.AST) -> Item:
        """A function or class by name, or a member of an enumeration."""
        owner, _, name = dotted.rpartition(".")
        if owner.rpartition(".")[2] in _GRADIENT_MODES or name in _GRADIENT_MODES:
            return Reference(dotted)
        try:
            self.library.find(dotted)
            return Reference(dotted)
        except BundleError:
            found = self.library.find(owner, self.record, getattr(node, "lineno", 0))
        if not isinstance(found, SourceClass) or found.base != "Enum" or name not in found.members:
            raise self.error(node, f"{dotted} is neither a function nor a member of an enumeration")
        return PickledEnum(owner, found.members[name])

    def member(self, owner: Item, name: str, node: ast.AST) -> Item:
        """An attribute of a module, a field of a named tuple, or a property of a tensor."""
        if isinstance(owner, Submodule):
            return self.module_member(owner, name, node)
        if isinstance(owner, PickledEnum):
            return self.enum_member(owner, name, node)
        if isinstance(owner, NewObject) and name in owner.fields:
            return owner.fields[name]
        value = self.value(owner, node)
        if isinstance(value.type, TupleType) and name in value.type.fields:
            return self.tuple_element(value, self.builder.constant(value.type.fields.index(name)), node)
        op = _VALUE_ATTRIBUTES.get(name, f"prim::{name}")
        return self.call_operator(op, [value], {}, node)

    def enum_member(self, member: PickledEnum, name: str, node: ast.AST) -> Value:
        """The name or the value of a member of an enumeration."""
        members = self.library.find_class(member.class_name).members
        names = [key for key, value in members.items() if value == member.value]
        if name not in ("name", "value") or not names:
            raise self.error(node, f"{member.class_name} has no {name!r} of {member.value!r}")
        return self.builder.constant(member.value if name == "value" else names[0])

    def module_member(self, module: Submodule, name: str, node: ast.AST) -> Item:
        """An attribute of a module: a module, a value, or a constant of its class."""
        member = module.members.get(name)
        if isinstance(member, (Submodule, PickledEnum)):
            return member
        if member is None:
            constant = self.library.find_class(module.class_name).constants.get(name)
            if constant is None:
                raise self.error(node, f"{module.path or 'the model'} has no attribute {name!r}")
            return self.expression(constant)
        kind = self.modules.attributes[member].type
        return self.builder.node("prim::GetAttr", [self.module_value], [kind], attributes={"name": member}, name=name)[
            0
        ]

    # Containers.

    def list_display(self, elements: Sequence[ast.expr], expected: Type | None) -> Value:
        """``[a, b]``"""
        wanted = without_none(expected)
        element = wanted.element if isinstance(wanted, ListType) else None
        values = [self.value(self.expression(item, element), item) for item in elements]
        return self.builder.node("prim::ListConstruct", values, [ListType(element or common_type(values))])[0]

    def tuple_display(self, elements: Sequence[ast.expr], expected: Type | None) -> Value:
        """``(a, b)``"""
        wanted = without_none(expected)
        kinds = wanted.elements if isinstance(wanted, TupleType) and len(wanted.elements) == len(elements) else ()
        pairs = zip(elements, kinds or [None] * len(elements), strict=True)
        values = [self.value(self.expression(item, kind), item) for item, kind in pairs]
        return self.builder.node("prim::TupleConstruct", values, [TupleType(tuple(value.type for value in values))])[0]

    def dict_display(self, node: ast.Dict, expected: Type | None) -> Value:
        """``{a: b}``"""
        wanted = without_none(expected)
        kinds = (wanted.key, wanted.value) if isinstance(wanted, DictType) else (None, None)
        keys = [self.value(self.expression(key, kinds[0]), node) for key in node.keys if key is not None]
        values = [self.value(self.expression(item, kinds[1]), node) for item in node.values]
        if len(keys) != len(values):
            raise self.error(node, "a dictionary display unpacks another, which is not read")
        kind = (
            wanted
            if isinstance(wanted, DictType)
            else DictType(common_type(keys) if keys else STR, common_type(values) if values else TENSOR)
        )
        pairs = [value for pair in zip(keys, values, strict=True) for value in pair]
        return self.builder.node("prim::DictConstruct", pairs, [kind])[0]

    def subscript(self, node: ast.Subscript) -> Item:
        """``a[b]``"""
        owner = self.expression(node.value)
        if isinstance(owner, Submodule):
            return self.module_at(owner, node)
        value = self.value(owner, node)
        if isinstance(node.slice, ast.Slice):
            return self.slice(value, node.slice, node)
        index = self.value(self.expression(node.slice), node)
        if isinstance(value.type, TupleType):
            return self.tuple_element(value, index, node)
        if value.type == TENSOR:
            if not accepts(INT, index.type):
                raise self.error(
                    node, f"a tensor is indexed with a {index.type}; only whole numbers and slices are read"
                )
            return self.call_operator("aten::select", [value, self.builder.constant(0), index], {}, node)
        return self.call_operator("aten::__getitem__", [value, index], {}, node)

    def module_at(self, container: Submodule, node: ast.Subscript) -> Item:
        """A module of a list by its number, or of a dictionary by its name."""
        index = self.value(self.expression(node.slice), node)
        if not index.is_constant:
            what = f"which module of {container.path!r} it calls is known when it runs"
            raise self.error(node, f"{what}; call each of them, and choose among their results")
        return self.module_member(container, str(index.constant), node)

    def tuple_element(self, value: Value, index: Value, node: ast.AST) -> Value:
        """An element of a tuple."""
        number = index.constant if index.is_constant else None
        if index.type != INT:
            raise self.error(node, f"an element of {value.type} is chosen by a {index.type}")
        assert isinstance(value.type, TupleType)
        kind = value.type.type_at(number)
        if kind is None and number is None:
            raise self.error(node, f"an element of {value.type} is chosen by a number that is not known")
        if kind is None:
            raise self.error(node, f"{value.type} has no element {number}")
        return self.builder.node("prim::TupleIndex", [value, index], [kind])[0]

    def slice(self, value: Value, node: ast.Slice, where: ast.AST) -> Item:
        """``a[b:c:d]``"""
        parts = [
            None if part is None else self.value(self.expression(part), part)
            for part in (node.lower, node.upper, node.step)
        ]
        if isinstance(value.type, TupleType):
            bounds = [part.constant if part is not None and part.is_constant else part for part in parts]
            if bounds[2] not in (None, 1) or not all(bound is None or type(bound) is int for bound in bounds):
                raise self.error(where, "a tuple is sliced with bounds that are not known")
            begin, end, _ = slice(bounds[0], bounds[1]).indices(len(value.type.elements))
            kind = TupleType(value.type.elements[begin:end])
            return self.builder.node("prim::TupleSlice", [value], [kind], attributes={"beg": begin, "end": end})[0]
        given = [part or self.builder.constant(default) for part, default in zip(parts, (None, None, 1), strict=True)]
        leading = [self.builder.constant(0)] if value.type == TENSOR else []
        return self.call_operator("aten::slice", [value, *leading, *given], {}, where)

    def unpacked(self, item: Item, count: int, node: ast.AST) -> Sequence[Item]:
        """The parts of a tuple, a list, or an operator's results."""
        if isinstance(item, Several) and len(item.values) == count:
            return item.values
        value = self.value(item, node)
        kind = value.type
        if isinstance(kind, TupleType) and len(kind.elements) == count:
            return self.builder.node("prim::TupleUnpack", [value], kind.elements)
        if isinstance(kind, ListType):
            return self.builder.node("prim::ListUnpack", [value], [kind.element] * count)
        raise self.error(node, f"a {kind} is unpacked into {count} variables")

    # Sugar.

    def unary(self, node: ast.UnaryOp) -> Item:
        """``-a``, ``not a``"""
        value = self.value(self.expression(node.operand), node)
        if isinstance(node.op, ast.USub) and value.is_constant and isinstance(value.constant, (int, float, complex)):
            return self.builder.constant(-value.constant)
        names: dict[type[ast.unaryop], str] = {
            ast.USub: "aten::neg",
            ast.Not: "aten::__not__",
            ast.Invert: "aten::bitwise_not",
        }
        if type(node.op) not in names:
            raise self.error(node, f"{ast.unparse(node)[:80]!r} is not read")
        return self.call_operator(names[type(node.op)], [value], {}, node)

    def binary(self, op: ast.operator, left: Item, right: Item, node: ast.AST) -> Item:
        """``a + b``"""
        return self.call_operator(_BINARY[type(op)], [left, right], {}, node)

    def compare(self, op: ast.cmpop, left: ast.expr, right: ast.expr, node: ast.AST) -> Item:
        """``a < b``"""
        items = [self.expression(left), self.expression(right)]
        if isinstance(op, (ast.In, ast.NotIn)):
            found = self.call_operator("aten::__contains__", items[::-1], {}, node)
            return found if isinstance(op, ast.In) else self.call_operator("aten::__not__", [found], {}, node)
        return self.call_operator(_COMPARISONS[type(op)], items, {}, node)

    def boolean(self, is_and: bool, values: Sequence[ast.expr]) -> Item:
        """``a and b``, ``a or b``: the rest is evaluated only if it matters."""
        if len(values) == 1:
            return self.expression(values[0])

        def rest() -> Item:
            return self.boolean(is_and, values[1:])

        def known() -> Item:
            return self.builder.constant(not is_and)

        return self.choice(values[0], rest if is_and else known, known if is_and else rest)

    def choice(self, test: ast.expr, then: Callable[[], Item], otherwise: Callable[[], Item]) -> Value:
        """An expression that a condition chooses."""
        condition = self.converted(self.value(self.expression(test), test), BOOL)
        node = self.builder.if_else(condition)
        results: list[Value] = []
        for block, build in zip(node.blocks, (then, otherwise), strict=True):
            with self.builder.inside(block):
                results.append(self.value(build(), test))
        return self.builder.finish_if(node, results[:1], results[1:])[0]

    # Calls.

    def call(self, node: ast.Call, expected: Type | None) -> Item:
        """A call."""
        if isinstance(node.func, ast.Name) and node.func.id not in self.environment:
            return self.builtin(node.func.id, node, expected)
        dotted = self.dotted(node.func)
        if dotted == "torch.device" and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
            return self.device(node.args[0].value, node)
        if dotted.startswith("torch."):
            return self.call_with(f"aten::{dotted.removeprefix('torch.')}", node)
        if dotted.startswith("ops."):
            namespace, _, name = dotted.removeprefix("ops.").partition(".")
            return self.call_with(f"{namespace}::{name}", node)
        if dotted.startswith("__torch__."):
            return self.call_reference(dotted, node)
        return self.call_value(node, expected)

    def call_value(self, node: ast.Call, expected: Type | None) -> Item:
        """A call of a method, or of a function that a variable names."""
        if not isinstance(node.func, ast.Attribute):
            function = self.expression(node.func)
            if isinstance(function, Reference):
                return self.call_reference(function.name, node)
            raise self.error(node, f"{ast.unparse(node.func)[:80]!r} is called, which is not a function")
        owner = self.expression(node.func.value)
        if isinstance(owner, Ignored):
            return self.none()
        if isinstance(owner, Submodule):
            method = self.library.find_class(owner.class_name).methods.get(node.func.attr)
            if method is None:
                raise self.error(node, f"{owner.class_name} has no method {node.func.attr!r}")
            return self.inline(method, node, [owner, *self.arguments(node)], self.keywords(node))
        if isinstance(owner, NewObject) and node.func.attr == "__init__":
            return self.initialized(owner, node)
        if isinstance(owner, Value) and isinstance(owner.type, TupleType) and owner.type.name:
            method = self.library.find_class(owner.type.name).methods.get(node.func.attr)
            if method is not None:
                return self.inline(method, node, [owner, *self.arguments(node)], self.keywords(node))
        if node.func.attr == "tolist":
            return self.to_list(self.value(owner, node), expected, node)
        return self.call_operator(f"aten::{node.func.attr}", [owner, *self.arguments(node)], self.keywords(node), node)

    def call_reference(self, name: str, node: ast.Call) -> Item:
        """A call of a function, or of a named tuple's class."""
        owner, _, last = name.rpartition(".")
        if last == "__new__" and owner.rpartition(".")[2] in _GRADIENT_MODES:
            return Ignored()
        if last == "__new__":
            return NewObject(self.library.named_tuple(self.record_class(owner, node)), self.builder.block)
        found = self.library.find(name, self.record, node.lineno)
        if isinstance(found, SourceFunction):
            return self.inline(found, node, self.arguments(node), self.keywords(node))
        return self.construct(found, node)

    def record_class(self, name: str, node: ast.AST) -> SourceClass:
        """A class whose objects are values with named fields."""
        found = self.library.find_class(name)
        if not found.is_record:
            raise self.error(node, f"it makes an object of the class {name}, which is no class of values")
        return found

    def initialized(self, made: NewObject, node: ast.Call) -> Item:
        """``x.__init__(...)`` of a new object: every variable that holds it holds a named tuple from then on."""
        method = self.library.find_class(made.name).methods.get("__init__")
        if method is None:
            raise self.error(node, f"the class {made.name} has no __init__; the file is damaged")
        self.inline(method, node, [made, *self.arguments(node)], self.keywords(node))
        missing = [name for name in made.type.fields if name not in made.fields]
        if missing or self.builder.block is not made.block:
            where = f"sets {missing[0]!r} in a branch or not at all" if missing else "is called in a branch"
            raise self.error(node, f"__init__ of {made.name} {where}, which is not read; set every attribute once")
        values = [made.fields[name] for name in made.type.fields]
        value = self.builder.node("prim::TupleConstruct", values, [made.type])[0]
        self.environment = {name: value if item is made else item for name, item in self.environment.items()}
        return self.none()

    def construct(self, found: SourceClass, node: ast.Call) -> Value:
        """A named tuple."""
        kind = self.library.named_tuple(self.record_class(found.name, node))
        if len(node.args) != len(kind.elements) or node.keywords:
            raise self.error(
                node, f"{found.name} is made of {len(node.args)} values; it has {len(kind.elements)} fields"
            )
        values = [
            self.value(self.expression(item, part), item) for item, part in zip(node.args, kind.elements, strict=True)
        ]
        return self.builder.node("prim::TupleConstruct", values, [kind])[0]

    def arguments(self, node: ast.Call) -> list[Item]:
        """Positional arguments of a call."""
        return [self.expression(argument) for argument in node.args]

    def keywords(self, node: ast.Call) -> dict[str, Item]:
        """Keyword arguments of a call."""
        return {keyword.arg: self.expression(keyword.value) for keyword in node.keywords if keyword.arg is not None}

    def builtin(self, name: str, node: ast.Call, expected: Type | None) -> Item:
        """A function of the language."""
        match name, node.args:
            case "annotate", [kind, value]:
                return self.annotated(self.library.type(kind, self.record), value)
            case "uninitialized", [kind]:
                return self.builder.node("prim::Uninitialized", [], [self.library.type(kind, self.record)])[0]
            case "unchecked_cast", [kind, value]:
                item = self.value(self.expression(value), node)
                return self.builder.cast(item, self.library.type(kind, self.record))
            case "isinstance", [value, kinds]:
                return self.is_instance(self.expression(value), kinds, node)
            case "getattr", [owner, ast.Constant(value=str(attribute))]:
                return self.member(self.expression(owner), attribute, node)
            case _ if name in _BUILTIN_FUNCTIONS:
                return self.call_with(_BUILTIN_FUNCTIONS[name], node)
            case _:
                raise self.error(node, f"{name}() is not read")

    def annotated(self, kind: Type, node: ast.expr) -> Item:
        """``annotate(T, value)``"""
        value = self.expression(node, kind)
        if isinstance(value, Value) and value.type == TENSOR and kind in IMPLICIT:
            return self.call_operator(IMPLICIT[kind], [value], {}, node)
        return value

    def is_instance(self, item: Item, kinds: ast.expr, node: ast.AST) -> Value:
        """``isinstance(a, T)``"""
        names = kinds.elts if isinstance(kinds, (ast.Tuple, ast.List)) else [kinds]
        types = tuple(self.library.type(name, self.record) for name in names)
        return self.builder.node("prim::isinstance", [self.value(item, node)], [BOOL], attributes={"types": types})[0]

    def to_list(self, value: Value, expected: Type | None, node: ast.AST) -> Value:
        """``annotate(List[int], x.tolist())``"""
        depth, element = 0, expected
        while isinstance(element, ListType):
            depth, element = depth + 1, element.element
        codes: dict[Type | None, int] = {INT: 0, FLOAT: 1, BOOL: 2}
        if expected is None or element not in codes:
            raise self.error(node, "tolist() is called without an annotation of the list's type")
        inputs = [value, self.builder.constant(depth), self.builder.constant(codes[element])]
        return self.builder.node("prim::tolist", inputs, [expected])[0]

    def raise_message(self, values: Sequence[Value]) -> None:
        """prim::RaiseException with a message and the exception's class."""
        self.builder.node("prim::RaiseException", values, [])

    def call_operator(
        self, name: str, positional: Sequence[Item | Display], keywords: Mapping[str, Item | Display], node: ast.AST
    ) -> Item:
        """A call of an operator, which notes where it stands."""
        if hasattr(node, "lineno"):
            self.builder.source = self.place(node)
        if len(positional) == 2 and all(isinstance(item, PickledEnum) for item in positional):
            if name not in _SAMENESS:
                raise self.error(node, f"{name} is called on members of an enumeration, which can only be compared")
            return self.builder.constant((positional[0] == positional[1]) is _SAMENESS[name])
        return super().call_operator(name, positional, keywords, node)

    def call_with(self, name: str, node: ast.Call) -> Item:
        """A call of an operator; lists of constants that it only reads are constants themselves."""
        if name == "prim::RaiseException":
            values = [self.value(item, node) for item in self.arguments(node)]
            self.raise_message([*values, self.none()][:2])
            return Several(())
        positional = [self.display_or_expression(argument) for argument in node.args]
        keywords = {item.arg: self.display_or_expression(item.value) for item in node.keywords if item.arg is not None}
        return self.call_operator(name, positional, keywords, node)

    def display_or_expression(self, node: ast.expr) -> Item | Display:
        """An argument; a list display waits until it is known what the operator does with it."""
        if not isinstance(node, ast.List):
            return self.expression(node)
        values = tuple(self.value(self.expression(item), item) for item in node.elts)
        return Display(values, ListType(common_type(values)))


def _decoded(text: str) -> str:
    """A string whose characters beyond ASCII were written as octal escapes of UTF-8."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text
