"""Types that files leave out: what an operator returns for the types it is given, and where branches meet."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from mobopt.errors import BundleError
from mobopt.ir.schemas import Schema
from mobopt.ir.types import (
    ANY,
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    NONE,
    SCALAR,
    DictType,
    ListType,
    OptionalType,
    TupleType,
    Type,
    parse_type,
)

_NUMBERS = (BOOL, INT, FLOAT, COMPLEX, SCALAR)


def result_types(schema: Schema, inputs: Sequence[Type]) -> tuple[Type, ...]:
    """Types of an operator's results, with the type variables of generic operators bound by its inputs.

    Args:
        schema: the operator.
        inputs: types of its inputs, one for each argument of the schema.
    """
    generic = _generic_schema(schema.name, schema.overload)
    if generic is None:
        return schema.returns
    bound: dict[str, Type] = {}
    for argument, actual in zip(generic.arguments, inputs, strict=False):
        _bind(argument.type, actual, bound)
    return tuple(_substitute(result.type, bound) for result in generic.returns)


def argument_types(schema: Schema, inputs: Sequence[Type]) -> Sequence[Type]:
    """Types that an operator expects of its inputs, with type variables bound by the inputs before."""
    generic = _generic_schema(schema.name, schema.overload)
    if generic is None:
        return [argument.type for argument in schema.arguments]
    bound: dict[str, Type] = {}
    expected: list[Type] = []
    for argument, actual in zip(generic.arguments, inputs, strict=False):
        _bind(argument.type, actual, bound)
        expected.append(_substitute(argument.type, bound))
    return expected


@cache
def _generic_schema(name: str, overload: str) -> Any:
    """torch's own schema, if type variables occur in it."""
    try:
        schemas = torch._C._jit_get_schemas_for_operator(name)
    except RuntimeError:
        return None
    for schema in schemas:
        if schema.overload_name == overload:
            return schema if any(_has_variable(argument.type) for argument in schema.arguments) else None
    return None


def _parts(kind: Any) -> list[Any]:
    """Types inside a type of torch's."""
    match kind.kind():
        case "ListType" | "OptionalType":
            return [kind.getElementType()]
        case "DictType":
            return [kind.getKeyType(), kind.getValueType()]
        case "TupleType":
            return list(kind.elements())
        case _:
            return []


def _has_variable(kind: Any) -> bool:
    return kind.kind() == "VarType" or any(_has_variable(part) for part in _parts(kind))


def _bind(kind: Any, actual: Type, bound: dict[str, Type]) -> None:
    if kind.kind() == "VarType":
        bound.setdefault(kind.annotation_str, actual)
        return
    if isinstance(actual, OptionalType) and kind.kind() != "OptionalType":
        actual = actual.element
    elements: Sequence[Type] = ()
    if isinstance(actual, ListType) and kind.kind() == "ListType":
        elements = [actual.element]
    elif isinstance(actual, DictType) and kind.kind() == "DictType":
        elements = [actual.key, actual.value]
    elif isinstance(actual, TupleType) and kind.kind() == "TupleType":
        elements = actual.elements
    elif kind.kind() == "OptionalType":
        elements = [actual.element if isinstance(actual, OptionalType) else actual]
    for part, element in zip(_parts(kind), elements, strict=False):
        _bind(part, element, bound)


def _substitute(kind: Any, bound: dict[str, Type]) -> Type:
    match kind.kind():
        case "VarType":
            return bound.get(kind.annotation_str, ANY)
        case "ListType":
            return ListType(_substitute(kind.getElementType(), bound))
        case "OptionalType":
            return OptionalType(_substitute(kind.getElementType(), bound))
        case "DictType":
            return DictType(*(_substitute(part, bound) for part in _parts(kind)))
        case "TupleType":
            return TupleType(tuple(_substitute(part, bound) for part in _parts(kind)))
        case _:
            return parse_type(kind.annotation_str)


def join(left: Type, right: Type) -> Type:
    """The type of a value that comes from either of two places.

    Raises:
        BundleError: no type holds both.
    """
    joined = _join(left, right)
    if joined is None:
        raise BundleError(f"two branches give a value the types {left} and {right}, which have no common type")
    return joined


def _join(left: Type, right: Type) -> Type | None:
    if left == right or right == ANY:
        return left
    if left == ANY:
        return right
    if NONE in (left, right):
        other = right if left == NONE else left
        return other if isinstance(other, OptionalType) else OptionalType(other)
    if isinstance(left, OptionalType) or isinstance(right, OptionalType):
        inner = _join(_unwrapped(left), _unwrapped(right))
        return None if inner is None else OptionalType(inner)
    if isinstance(left, ListType) and isinstance(right, ListType):
        element = _join(left.element, right.element)
        return None if element is None else ListType(element)
    if isinstance(left, DictType) and isinstance(right, DictType):
        value = _join(left.value, right.value)
        return None if value is None or left.key != right.key else DictType(left.key, value)
    if isinstance(left, TupleType) and isinstance(right, TupleType) and len(left.elements) == len(right.elements):
        elements = [_join(a, b) for a, b in zip(left.elements, right.elements, strict=True)]
        return TupleType(tuple(e for e in elements if e), left.name, left.fields) if all(elements) else None
    return SCALAR if left in _NUMBERS and right in _NUMBERS else None


def _unwrapped(kind: Type) -> Type:
    return kind.element if isinstance(kind, OptionalType) else kind
