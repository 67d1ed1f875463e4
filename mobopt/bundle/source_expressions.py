"""Expressions of serialised TorchScript source: each becomes values of a graph."""

from __future__ import annotations

import ast
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from mobopt.bundle.source_files import SourceFile, SourceLibrary, dotted_name, shown
from mobopt.bundle.source_graph import GraphWriter, common_type, constant_type
from mobopt.bundle.source_scope import (
    Binding,
    FunctionReference,
    GradientMode,
    ObjectReference,
    Results,
    Scope,
    TupleReference,
)
from mobopt.errors import GraphError, InputError, UnsupportedError
from mobopt.ir import Attribute, Program, Value
from mobopt.ir.schemas import accepts
from mobopt.ir.types import (
    ANY,
    BOOL,
    COMPLEX,
    DEVICE,
    FLOAT,
    INT,
    NONE,
    STR,
    DictType,
    ListType,
    OptionalType,
    TupleType,
    Type,
)

Result = TypeVar("Result")

_GRADIENT_MODES = frozenset(
    f"__torch__.torch.autograd.grad_mode.{name}"
    for name in ("no_grad", "enable_grad", "set_grad_enabled", "inference_mode")
)
_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "remainder",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.BitAnd: "__and__",
    ast.BitOr: "__or__",
    ast.BitXor: "__xor__",
    ast.LShift: "__lshift__",
    ast.RShift: "__rshift__",
}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Is: "__is__",
    ast.IsNot: "__isnot__",
}
_CASTS = {"int": "Int", "float": "Float", "bool": "Bool", "complex": "Complex", "str": "str"}
_FUNCTIONS = {"len": "aten::len", "sorted": "aten::sorted", "print": "prim::Print"}
_NUMBERS = {"inf": math.inf, "nan": math.nan, "infj": complex(0, math.inf), "nanj": complex(0, math.nan)}
_LIST_KINDS: dict[Type, int] = {INT: 0, FLOAT: 1, BOOL: 2, COMPLEX: 3}
"""Numbers of ``prim::tolist``'s element types."""


@dataclass
class Model:
    """What all functions of a model share while they are translated."""

    library: SourceLibrary
    constants: Sequence[Any]
    program: Program
    paths: dict[int, str]
    """Dotted path of each object by its identity: a shared module keeps the first."""


class ExpressionTranslator(ABC):
    """Translates the expressions of one function."""

    def __init__(self, model: Model, writer: GraphWriter, file: SourceFile, scope: Scope) -> None:
        self.model = model
        self.writer = writer
        self.file = file
        self.scope = scope

    @abstractmethod
    def inline(
        self, function: FunctionReference, positional: Sequence[Binding], named: Mapping[str, Binding], node: ast.Call
    ) -> Binding:
        """What a call of a function of the source returns."""

    def value(self, node: ast.expr, expected: Type | None = None) -> Value:
        """An expression's value; ``expected`` is the type of a display that does not tell its own."""
        return self.as_value(self.binding(node, expected), node)

    def as_value(self, binding: Binding, node: ast.AST) -> Value:
        """One value for what an expression stands for."""
        if isinstance(binding, Value):
            return binding
        if isinstance(binding, Results):
            return self.writer.tuple_of(binding.values) if binding.values else self.writer.constant(None)
        raise self.file.error(node, f"{shown(node)} is a module, class or function, which a graph has no value for")

    def binding(self, node: ast.expr, expected: Type | None = None) -> Binding:
        """What an expression stands for."""
        self.writer.spend(1)
        match node:
            case ast.Constant():
                return self.literal(node)
            case ast.Name():
                return self.name(node)
            case ast.Attribute():
                return self.attribute(node)
            case ast.Call():
                return self.call(node, expected)
            case ast.Subscript():
                return self.subscript(node)
            case ast.Tuple():
                return self.tuple(node, expected)
            case ast.List():
                return self.list(node, expected)
            case ast.Dict():
                return self.dictionary(node, expected)
            case ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.Compare() | ast.IfExp():
                return self.operation(node)
        raise self.file.error(node, f"{shown(node)} is a construct that serialised TorchScript does not have")

    # Names and attributes.

    def literal(self, node: ast.Constant) -> Value:
        """A number, string, bool or None."""
        if node.value is not None and not isinstance(node.value, (bool, int, float, complex, str)):
            raise self.file.error(node, f"{shown(node)} is a literal that TorchScript does not have")
        return self.writer.constant(node.value)

    def name(self, node: ast.Name) -> Binding:
        """A variable, or one of the names that mean a number."""
        found = self.scope.get(node.id)
        if found is not None:
            return found
        if node.id in _NUMBERS:
            return self.writer.constant(_NUMBERS[node.id])
        raise self.file.error(node, f"the variable {node.id!r} is not defined on every path to here")

    def attribute(self, node: ast.Attribute) -> Binding:
        """``CONSTANTS.c0``, a definition of the source, or an attribute of an object or named tuple."""
        name = self.global_name(node)
        if name is not None:
            return self.definition(name, node)
        return self.attribute_of(self.binding(node.value), node.attr, node)

    def global_name(self, node: ast.expr) -> str | None:
        """The dotted name of something that is no variable."""
        name = dotted_name(node)
        root = name.partition(".")[0] if name else ""
        return name if root in ("torch", "ops", "CONSTANTS", "__torch__") and self.scope.get(root) is None else None

    def definition(self, name: str, node: ast.AST) -> Binding:
        """What a global name stands for."""
        if name.startswith("CONSTANTS.c") and name[11:].isdecimal():
            index = int(name[11:])
            if index >= len(self.model.constants):
                raise self.file.error(node, f"{name}: constants.pkl has {len(self.model.constants)} entries only")
            return self.guarded(node, lambda: self.writer.pooled(name, self.model.constants[index]))
        if name in _GRADIENT_MODES:
            return GradientMode()
        found = self.model.library.find(name) if name.startswith("__torch__.") else None
        if found is None:
            raise self.file.error(node, f"{name} is not defined in the file")
        file, definition = found
        if isinstance(definition, ast.FunctionDef):
            return FunctionReference(file, definition)
        kind = self.model.library.class_of(name)
        if kind.base != "NamedTuple":
            raise self.file.error(node, f"{name} is a class; mobopt reads no code that makes objects of classes")
        assert isinstance(node, ast.expr)
        return TupleReference(self.type(node))

    def attribute_of(self, owner: Binding, name: str, node: ast.AST) -> Binding:
        """An attribute of an object, or a field of a named tuple."""
        if isinstance(owner, ObjectReference):
            return self.object_attribute(owner, name, node)
        if isinstance(owner, Value) and isinstance(owner.type, TupleType) and name in owner.type.fields:
            return self.tuple_item(owner, owner.type.fields.index(name), node)
        raise self.file.error(node, f"{shown(node)}: there is no attribute {name!r}")

    def object_attribute(self, owner: ObjectReference, name: str, node: ast.AST) -> Binding:
        """Read an attribute, or name a submodule, a method or a constant of the class."""
        declared = owner.definition.annotations.get(name)
        if declared is None and name in owner.definition.constants:
            return self.literal_constant(owner.definition.constants[name], owner.definition.file)
        if declared is None or name not in owner.state.attributes:
            raise self.file.error(node, f"{shown(node)}: data.pkl has no attribute {joined(owner.path, name)!r}")
        state = owner.state.attributes[name]
        if is_object(state):
            return reference(self.model, state, joined(owner.path, name))
        attribute = declare_attribute(self.model, owner, name)
        receiver = self.writer.graph.inputs[0]
        path = joined(owner.path, name)
        return self.writer.node("prim::GetAttr", [receiver], [attribute.type], attributes={"name": path}).output

    def literal_constant(self, node: ast.expr, file: SourceFile) -> Value:
        """The value of a ``Final`` attribute or of a default."""
        self.writer.spend(sum(1 for _ in ast.walk(node)))
        try:
            return self.writer.constant(ast.literal_eval(node))
        except (ValueError, TypeError, SyntaxError, GraphError):
            raise file.error(node, f"{shown(node)} is not a constant") from None

    def type(self, node: ast.expr) -> Type:
        """An annotation's type."""
        return self.model.library.type_of(node, self.file)

    # Calls.

    def call(self, node: ast.Call, expected: Type | None) -> Binding:
        """A call of an operator, a function, a method, or one of the language's own forms."""
        name = self.global_name(node.func)
        if name is not None and name.partition(".")[0] in ("torch", "ops"):
            return self.operator_call(name, node)
        if isinstance(node.func, ast.Name) and self.scope.get(node.func.id) is None:
            return self.language_call(node.func.id, node)
        if isinstance(node.func, ast.Attribute) and name is None:
            return self.method_call(node.func, node, expected)
        if name is not None and name.removesuffix(".__new__") in _GRADIENT_MODES:
            return GradientMode()
        if name is not None and name.endswith(".__new__"):
            raise self.file.error(node, f"{shown(node)} makes an object of a class, which mobopt does not read")
        return self.apply(self.binding(node.func), node)

    def apply(self, callee: Binding, node: ast.Call) -> Binding:
        """Call a function or make a named tuple."""
        positional = [self.binding(item) for item in node.args]
        named = {keyword.arg: self.binding(keyword.value) for keyword in node.keywords if keyword.arg}
        if isinstance(callee, FunctionReference):
            return self.inline(callee, positional, named, node)
        if isinstance(callee, TupleReference) and isinstance(callee.type, TupleType) and not named:
            return self.named_tuple(callee.type, [self.as_value(item, node) for item in positional], node)
        raise self.file.error(node, f"{shown(node)}: {shown(node.func)} can't be called")

    def named_tuple(self, kind: TupleType, items: Sequence[Value], node: ast.AST) -> Value:
        """A named tuple of these items."""
        if len(items) != len(kind.elements):
            raise self.file.error(node, f"{kind.name} has {len(kind.elements)} fields, not {len(items)}")
        values = [self.converted(item, field, node) for item, field in zip(items, kind.elements, strict=True)]
        return self.writer.node("prim::TupleConstruct", values, [kind]).output

    def operator_call(self, name: str, node: ast.Call) -> Binding:
        """``torch.name(...)`` or ``ops.namespace.name(...)``."""
        parts = name.split(".")
        if parts[0] == "torch":
            parts = ["ops", "aten", *parts[1:]]
        if len(parts) != 3:
            raise self.file.error(node, f"{name} is not an operator")
        positional = [self.value(item) for item in node.args]
        named = {keyword.arg: self.value(keyword.value) for keyword in node.keywords if keyword.arg}
        if parts[1:] == ["aten", "device"] and all(value.is_constant for value in positional) and not named:
            return self.device([value.constant for value in positional], node)
        return self.operator(f"{parts[1]}::{parts[2]}", positional, named, node)

    def operator(self, name: str, positional: Sequence[Value], named: Mapping[str, Value], node: ast.AST) -> Binding:
        """Results of an operator."""
        results = self.guarded(node, lambda: self.writer.operator(name, positional, named))
        return results[0] if len(results) == 1 else Results(results)

    def device(self, arguments: Sequence[Any], node: ast.AST) -> Value:
        """``torch.device("vulkan")``."""
        try:
            return self.writer.constant(torch.device(*arguments))
        except (RuntimeError, TypeError) as error:
            reason = str(error).split("\n", 1)[0]
            raise self.file.error(node, f"{shown(node)} is not a device ({reason})") from None

    def method_call(self, callee: ast.Attribute, node: ast.Call, expected: Type | None) -> Binding:
        """``(module).forward(x, )``, or an operator written as a method."""
        owner = self.binding(callee.value)
        if isinstance(owner, ObjectReference):
            method = owner.definition.methods.get(callee.attr)
            if method is None:
                raise self.file.error(node, f"{owner.definition.name} has no method {callee.attr!r}")
            return self.apply(FunctionReference(owner.definition.file, method, owner), node)
        if isinstance(owner, GradientMode):
            return self.writer.constant(None)
        if callee.attr == "tolist" and expected is not None:
            return self.tolist(self.as_value(owner, node), expected)
        positional = [self.as_value(owner, callee), *(self.value(item) for item in node.args)]
        named = {keyword.arg: self.value(keyword.value) for keyword in node.keywords if keyword.arg}
        return self.operator(f"aten::{callee.attr}", positional, named, node)

    def tolist(self, tensor: Value, expected: Type) -> Value:
        """``annotate(List[int], x.tolist())``."""
        element, depth = expected, 0
        while isinstance(element, ListType):
            element, depth = element.element, depth + 1
        kind = self.writer.constant(_LIST_KINDS.get(element, 0))
        return self.writer.node("prim::tolist", [tensor, self.writer.constant(depth), kind], [expected]).output

    def language_call(self, name: str, node: ast.Call) -> Binding:
        """A call of one of the names that TorchScript itself defines."""
        match name, node.args:
            case ("annotate", [kind, item]):
                expected = self.type(kind)
                return self.converted(self.value(item, expected), expected, node)
            case ("unchecked_cast", [kind, item]):
                return self.writer.node("prim::unchecked_cast", [self.value(item)], [self.type(kind)]).output
            case ("unchecked_unwrap_optional", [item]):  # of old releases
                return self.operator("prim::unchecked_unwrap_optional", [self.value(item)], {}, node)
            case ("uninitialized", [kind]):
                return self.writer.node("prim::Uninitialized", [], [self.type(kind)]).output
            case ("isinstance", [item, kind]):
                return self.is_instance(self.value(item), kind)
            case ("getattr", [owner, ast.Constant(value=str(attribute))]):
                return self.attribute_of(self.binding(owner), attribute, node)
            case ("fork" | "awaitable", _):
                raise self.file.error(
                    node, f"{shown(node)}: mobile GPU runtimes run one thing after another; call it, don't fork it"
                )
        operator = f"aten::{_CASTS[name]}" if name in _CASTS else _FUNCTIONS.get(name)
        if operator is None:
            raise self.file.error(node, f"{shown(node)}: TorchScript has no function {name!r} of this form")
        if operator == "prim::Print":
            self.writer.node(operator, [self.value(item) for item in node.args], [])
            return Results(())
        return self.operator(operator, [self.value(item) for item in node.args], {}, node)

    def is_instance(self, value: Value, node: ast.expr) -> Value:
        """``isinstance(x, T)``; known beforehand unless x is optional or anything."""
        kinds = node.elts if isinstance(node, ast.Tuple) else [node]
        possible = [value.type.element, NONE] if isinstance(value.type, OptionalType) else [value.type]
        matching: list[Type] = []
        for kind in kinds:
            if isinstance(kind, ast.Name) and kind.id in ("list", "tuple"):
                wanted = ListType if kind.id == "list" else TupleType
                matching += [item for item in possible if isinstance(item, wanted)]
            else:
                matching.append(self.type(kind))
        if ANY not in possible:
            hits = [any(accepts(kind, item) for kind in matching) for item in possible]
            if len(set(hits)) == 1:
                return self.writer.constant(hits[0])
        return self.writer.node("prim::isinstance", [value], [BOOL], attributes={"types": tuple(matching)}).output

    # Containers.

    def tuple(self, node: ast.Tuple, expected: Type | None) -> Binding:
        """A tuple display."""
        hints: Sequence[Type | None] = [None] * len(node.elts)
        if isinstance(expected, TupleType) and len(expected.elements) == len(node.elts):
            hints = expected.elements
        items = [self.value(item, hint) for item, hint in zip(node.elts, hints, strict=True)]
        return self.writer.tuple_of(items)

    def list(self, node: ast.List, expected: Type | None) -> Value:
        """A list display; its element type is the expected one, or common to the items."""
        wanted = expected.element if isinstance(expected, OptionalType) else expected
        hint = wanted.element if isinstance(wanted, ListType) else None
        items = [self.value(item, hint) for item in node.elts]
        element = hint or self.common([item.type for item in items], node)
        result = self.writer.list_of(items, element)
        if result is None:
            raise self.file.error(node, f"{shown(node)} has items that are not {element}")
        return result

    def dictionary(self, node: ast.Dict, expected: Type | None) -> Value:
        """A dictionary display."""
        kind = expected.element if isinstance(expected, OptionalType) else expected
        hint = kind if isinstance(kind, DictType) else None
        keys = [self.value(key) for key in node.keys if key is not None]
        values = [self.value(item, hint.value if hint else None) for item in node.values]
        if len(keys) != len(values):
            raise self.file.error(node, f"{shown(node)} is not a dictionary of TorchScript")
        if hint is None:
            hint = DictType(
                self.common([key.type for key in keys], node), self.common([item.type for item in values], node)
            )
        pairs = [item for pair in zip(keys, values, strict=True) for item in pair]
        return self.writer.node("prim::DictConstruct", pairs, [hint]).output

    def common(self, kinds: Sequence[Type], node: ast.AST) -> Type:
        """The type of a container's items."""
        result: Type | None = kinds[0] if kinds else None
        for kind in kinds[1:]:
            result = None if result is None else common_type(result, kind)
        if result is None:
            raise self.file.error(node, f"the items of {shown(node)} have no common type; it needs annotate(...)")
        return result

    def subscript(self, node: ast.Subscript) -> Binding:
        """An item or a slice of a tuple, list, dictionary or string."""
        owner = self.value(node.value)
        if isinstance(node.slice, ast.Slice):
            return self.slice(owner, node.slice, node)
        index = self.value(node.slice)
        if isinstance(owner.type, TupleType):
            if not index.is_constant or not isinstance(index.constant, int):
                raise self.file.error(node, f"{shown(node)}: the index of a tuple must be a number")
            return self.tuple_item(owner, index.constant, node)
        return self.operator("aten::__getitem__", [owner, index], {}, node)

    def tuple_item(self, owner: Value, index: int, node: ast.AST) -> Value:
        """One element of a tuple."""
        assert isinstance(owner.type, TupleType)
        elements = owner.type.elements
        if not -len(elements) <= index < len(elements):
            raise self.file.error(node, f"{shown(node)}: the tuple has {len(elements)} elements")
        return self.writer.node("prim::TupleIndex", [owner, self.writer.constant(index)], [elements[index]]).output

    def slice(self, owner: Value, bounds: ast.Slice, node: ast.AST) -> Binding:
        """``x[1:3]`` of a tuple, list or string."""
        ends = [self.value(item) if item else self.writer.constant(None) for item in (bounds.lower, bounds.upper)]
        step = self.value(bounds.step) if bounds.step else self.writer.constant(1)
        if not isinstance(owner.type, TupleType):
            return self.operator("aten::slice", [owner, *ends, step], {}, node)
        if not all(item.is_constant for item in (*ends, step)) or step.constant != 1:
            raise self.file.error(node, f"{shown(node)}: the slice of a tuple must have constant ends and no step")
        begin, end, _ = slice(ends[0].constant, ends[1].constant).indices(len(owner.type.elements))
        kind = TupleType(owner.type.elements[begin:end])
        return self.writer.node("prim::TupleSlice", [owner], [kind], attributes={"beg": begin, "end": end}).output

    # Operations.

    def operation(self, node: ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.Compare | ast.IfExp) -> Binding:
        """An infix or prefix operator, or ``a if c else b``."""
        number = _literal_number(node)
        if number is not None:
            return self.writer.constant(number)
        match node:
            case ast.BinOp() if type(node.op) in _BINARY:
                operands = [self.value(node.left), self.value(node.right)]
                return self.operator(f"aten::{_BINARY[type(node.op)]}", operands, {}, node)
            case ast.UnaryOp(op=ast.Not()):
                return self.negated(self.condition(node.operand), node)
            case ast.UnaryOp(op=ast.USub() | ast.Invert()):
                name = "aten::neg" if isinstance(node.op, ast.USub) else "aten::bitwise_not"
                return self.operator(name, [self.value(node.operand)], {}, node)
            case ast.BoolOp():
                return self.lazy(node, node.values)
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                return self.comparison(left, operator, right, node)
            case ast.IfExp():
                condition = self.condition(node.test)
                return self.choice(condition, lambda: self.value(node.body), lambda: self.value(node.orelse), node)
        raise self.file.error(node, f"{shown(node)} is an operation that TorchScript does not have")

    def comparison(self, left: ast.expr, operator: ast.cmpop, right: ast.expr, node: ast.AST) -> Binding:
        """``a < b``, ``a is None``, ``a in b``."""
        operands = [self.value(left), self.value(right)]
        if isinstance(operator, (ast.In, ast.NotIn)):
            found = self.operator("aten::__contains__", operands[::-1], {}, node)
            return found if isinstance(operator, ast.In) else self.negated(self.as_value(found, node), node)
        return self.operator(f"aten::{_COMPARISONS[type(operator)]}", operands, {}, node)

    def negated(self, value: Value, node: ast.AST) -> Value:
        """``not`` of a bool."""
        return self.as_value(self.operator("aten::__not__", [value], {}, node), node)

    def lazy(self, node: ast.BoolOp, operands: Sequence[ast.expr]) -> Value:
        """``a and b``, ``a or b``: the right side is computed only if it matters."""
        first = self.condition(operands[0])
        if len(operands) == 1:
            return first
        if isinstance(node.op, ast.And):
            return self.choice(first, lambda: self.lazy(node, operands[1:]), lambda: self.writer.constant(False), node)
        return self.choice(first, lambda: self.writer.constant(True), lambda: self.lazy(node, operands[1:]), node)

    def choice(
        self, condition: Value, then: Callable[[], Value], otherwise: Callable[[], Value], node: ast.AST
    ) -> Value:
        """One of two values, only that one computed."""
        chosen = self.writer.node("prim::If", [condition], [])
        results: list[Value] = []
        for compute in (then, otherwise):
            block = chosen.add_block()
            with self.writer.inside(block):
                results.append(compute())
            block.returns.add_input(results[-1])
        kind = self.common([value.type for value in results], node)
        return chosen.add_output(self.writer.graph.value(kind))

    def condition(self, node: ast.expr) -> Value:
        """An expression as a bool."""
        return self.converted(self.value(node), BOOL, node)

    # Conversions and errors.

    def converted(self, value: Value, expected: Type, node: ast.AST) -> Value:
        """A value of the expected type."""
        if expected == DEVICE and value.type == STR and value.is_constant:
            return self.device([value.constant], node)
        result = self.guarded(node, lambda: self.writer.convert(value, expected))
        if result is None:
            raise self.file.error(node, f"{shown(node)} is {value.type} where {expected} belongs")
        return result

    def guarded(self, node: ast.AST, compute: Callable[[], Result]) -> Result:
        """Run something; what it refuses is refused at a node."""
        try:
            return compute()
        except (UnsupportedError, GraphError, InputError) as error:
            raise self.file.error(node, str(error)) from None


def is_object(state: Any) -> bool:
    """Whether an unpickled value is a module or another object of the source's classes."""
    return isinstance(getattr(state, "attributes", None), dict)


def reference(model: Model, state: Any, path: str) -> ObjectReference:
    """An object by its path; one that is reached on several paths keeps the first."""
    return ObjectReference(model.paths.setdefault(id(state), path), model.library.class_of(state.qualified_name), state)


def declare_attribute(model: Model, owner: ObjectReference, name: str) -> Attribute:
    """Enter an attribute that is no object into the program's table.

    Raises:
        BundleError: its value has not the declared type.
    """
    path = joined(owner.path, name)
    if path in model.program.attributes:
        return model.program.attributes[path]
    definition = owner.definition
    declared = model.library.type_of(definition.annotations[name], definition.file)
    value = owner.state.attributes[name]
    try:
        kind = constant_type(value, declared)
    except GraphError:
        kind = None
    if kind is None:
        raise definition.file.error(
            definition.annotations[name],
            f"attribute {path!r} is declared as {declared}, but data.pkl has a {type(value).__name__}",
        )
    attribute = Attribute(
        kind,
        value,
        is_parameter=name in definition.lists.get("__parameters__", ()),
        is_buffer=name in definition.lists.get("__buffers__", ()),
    )
    model.program.attributes[path] = attribute
    return attribute


def joined(path: str, name: str) -> str:
    """A dotted path one name longer."""
    return f"{path}.{name}" if path else name


def _literal_number(node: ast.expr) -> int | float | complex | None:
    """The number that a signed or complex literal means: ``-1``, ``-inf``, ``1.+2.j``; else None."""
    match node:
        case ast.Constant(value=value) if isinstance(value, (int, float, complex)) and not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return _NUMBERS.get(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = _literal_number(operand)
            return None if number is None else -number
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            real, imaginary = _literal_number(left), _literal_number(right)
            if isinstance(real, (int, float)) and isinstance(imaginary, complex):
                return real + imaginary if isinstance(node.op, ast.Add) else real - imaginary
    return None
