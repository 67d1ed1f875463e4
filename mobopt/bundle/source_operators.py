"""Calls of operators: the overload that is meant, and TorchScript's implicit conversions of arguments.

Source of the rules: ``torch/csrc/jit/frontend/schema_matching.cpp``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mobopt.bundle.attributes import ModuleTree, Submodule
from mobopt.bundle.builder import Allowance, GraphBuilder
from mobopt.bundle.result_types import join
from mobopt.bundle.unpickler import PickledEnum
from mobopt.errors import BundleError, MoboptError
from mobopt.ir import Block, Value
from mobopt.ir.schemas import Argument, Schema, accepts, resolve, schemas_of
from mobopt.ir.types import ANY, BOOL, DEVICE, FLOAT, INT, NONE, SCALAR, TENSOR, ListType, OptionalType, TupleType, Type

IMPLICIT: dict[Type, str] = {INT: "aten::IntImplicit", FLOAT: "aten::FloatImplicit", SCALAR: "aten::ScalarImplicit"}
"""Operators that turn a tensor into a number where one is expected."""


@dataclass(frozen=True)
class Reference:
    """A function or class by its qualified name."""

    name: str


@dataclass(eq=False)
class NewObject:
    """An object of a class that is neither a module nor a named tuple, until its ``__init__`` has ended.

    From then on it is a named tuple of its attributes: TorchScript's objects are passed by reference, which is the same
    for what nobody changes any more.
    """

    type: TupleType
    block: Block
    """Where it is made; its attributes are set there too, not in a branch or loop."""
    fields: dict[str, Value] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its class."""
        return self.type.name


class Ignored:
    """A context manager that says nothing about a model that only infers."""


@dataclass(frozen=True)
class Several:
    """The results of an operator that has several."""

    values: tuple[Value, ...]


Item = Value | Submodule | Reference | NewObject | Ignored | Several | PickledEnum


@dataclass(frozen=True)
class Display:
    """A list display that is an operator's argument."""

    values: tuple[Value, ...]
    type: ListType


class OperatorCalls:
    """Appends calls of operators to the current block.

    Attributes:
        modules: attributes of the root module and below.
        record: the source record that is being read.
        module_value: the graph's parameter for the root module.
    """

    module_value: Value

    def __init__(self, modules: ModuleTree, allowance: Allowance) -> None:
        self.modules = modules
        self.builder = GraphBuilder(allowance)
        self.record = ""

    def error(self, node: ast.AST, message: str) -> BundleError:
        """An error at a place of the source."""
        return BundleError(f"{self.record}:{getattr(node, 'lineno', '?')}: {message}")

    def none(self) -> Value:
        """The constant None."""
        return self.builder.constant(None)

    def value(self, item: Item, node: ast.AST | None) -> Value:
        """An item that must be a value."""
        if isinstance(item, Several):
            kind = TupleType(tuple(value.type for value in item.values))
            return self.builder.node("prim::TupleConstruct", item.values, [kind])[0] if item.values else self.none()
        if item is self.modules.root:
            return self.module_value
        if not isinstance(item, Value):
            what = item.path if isinstance(item, Submodule) else getattr(item, "name", "a context manager")
            if isinstance(item, PickledEnum):
                what = f"a member of {item.class_name}"
            raise self.error(node or ast.Pass(), f"{what!r} is used as a value, which mobopt does not read")
        return item

    def device(self, name: Any, node: ast.AST) -> Value:
        """``torch.device("cpu")``"""
        try:
            return self.builder.constant(torch.device(name))
        except (RuntimeError, TypeError):
            raise self.error(node, f"{name!r} is not a device") from None

    def call_operator(
        self, name: str, positional: Sequence[Item | Display], keywords: Mapping[str, Item | Display], node: ast.AST
    ) -> Item:
        """A call of an operator: choose the overload, convert the arguments, append the node."""
        given = [item if isinstance(item, Display) else self.value(item, node) for item in positional]
        named = {key: item if isinstance(item, Display) else self.value(item, node) for key, item in keywords.items()}
        schema = self.choose(name, given, named, node)
        count = len(schema.arguments)
        inputs: dict[int, Value] = {}
        for index, argument in enumerate(schema.arguments):
            item = given[index] if index < len(given) else named.get(argument.name)
            if item is not None:
                inputs[index] = self.as_argument(item, argument)
        extra = [self.materialised(item, None) for item in given[count:]]
        results = self.builder.operator(schema, inputs, extra)
        return results[0] if len(results) == 1 else Several(tuple(results))

    def choose(
        self, name: str, given: Sequence[Value | Display], named: Mapping[str, Value | Display], node: ast.AST
    ) -> Schema:
        """The overload that a call means."""
        types = [item.type for item in given]
        keyword_types = {key: item.type for key, item in named.items()}
        if not schemas_of(name):
            raise self.error(node, f"unknown operator {name}: neither the installed torch nor mobopt knows it")
        try:
            return resolve(name, types, keyword_types)
        except MoboptError as error:
            as_lists = [_list_of_tuple(kind) for kind in types]
            if as_lists == types:
                raise self.error(node, str(error)) from None
        try:
            return resolve(name, as_lists, keyword_types)
        except MoboptError as error:
            raise self.error(node, str(error)) from None

    def as_argument(self, item: Value | Display, argument: Argument) -> Value:
        """An argument in the form that the operator takes."""
        value = self.materialised(item, argument)
        kind = without_none(argument.type)
        if (
            kind is not None
            and isinstance(kind, ListType)
            and argument.fixed_length
            and accepts(kind.element, value.type)
        ):
            return self.repeated(value, argument.fixed_length, kind)
        if isinstance(kind, ListType) and isinstance(value.type, TupleType):
            return self.listed(value, kind)
        return self.converted(value, argument.type)

    def materialised(self, item: Value | Display, argument: Argument | None) -> Value:
        """A value; a display of constants that is only read becomes a constant."""
        if isinstance(item, Value):
            return item
        kind = without_none(argument.type) if argument is not None else None
        is_read = (
            isinstance(kind, ListType)
            and kind.element in (INT, FLOAT, BOOL)
            and not getattr(argument, "is_written", False)
        )
        if is_read and all(value.is_constant for value in item.values):
            element = item.type.element if item.values else kind.element if isinstance(kind, ListType) else ANY
            return self.builder.constant([value.constant for value in item.values], ListType(element))
        settled = kind if isinstance(kind, ListType) and kind.element not in (ANY, SCALAR) else item.type
        return self.builder.node("prim::ListConstruct", item.values, [settled])[0]

    def repeated(self, value: Value, count: int, kind: ListType) -> Value:
        """A single element where a list of a fixed length belongs."""
        if value.is_constant:
            return self.builder.constant([value.constant] * count, kind)
        return self.builder.node("prim::ListConstruct", [value] * count, [kind])[0]

    def listed(self, value: Value, kind: ListType) -> Value:
        """A tuple where a list belongs."""
        assert isinstance(value.type, TupleType)
        if value.is_constant:
            return self.builder.constant(list(value.constant), kind)
        parts = self.builder.node("prim::TupleUnpack", [value], value.type.elements)
        return self.builder.node("prim::ListConstruct", parts, [kind])[0]

    def converted(self, value: Value, expected: Type) -> Value:
        """A value with TorchScript's implicit conversions to an expected type; constants take on the type itself."""
        wanted = without_none(expected) or expected
        if value.type == TENSOR and wanted in IMPLICIT:
            return self.value(self.call_operator(IMPLICIT[wanted], [value], {}, None or ast.Pass()), None)
        if value.is_constant:
            return self.constant_of(value, expected, wanted)
        return value

    def constant_of(self, value: Value, expected: Type, wanted: Type) -> Value:
        """A constant of the type that is expected."""
        known = value.constant
        if known is None and isinstance(expected, OptionalType) and value.type == NONE:
            return self.builder.constant(None, expected)
        if type(known) is int and wanted == FLOAT:
            return self.builder.constant(float(known))
        if isinstance(known, str) and wanted == DEVICE:
            return self.device(known, ast.Pass())
        return value


def without_none(kind: Type | None) -> Type | None:
    """The type inside an optional one."""
    return kind.element if isinstance(kind, OptionalType) else kind


def common_type(values: Sequence[Value]) -> Type:
    """The type that holds all values."""
    kind: Type = values[0].type if values else ANY
    for value in values[1:]:
        kind = join(kind, value.type)
    return kind


def _list_of_tuple(kind: Type) -> Type:
    if isinstance(kind, TupleType) and kind.elements and len(set(kind.elements)) == 1:
        return ListType(kind.elements[0])
    return kind
