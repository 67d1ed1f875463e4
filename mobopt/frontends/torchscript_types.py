"""Types of torch's TorchScript values as ours."""

from __future__ import annotations

import re
from typing import Any

from mobopt.errors import UnsupportedError
from mobopt.ir.types import (
    ANY,
    BOOL,
    COMPLEX,
    DEVICE,
    FLOAT,
    GENERATOR,
    INT,
    NONE,
    SCALAR,
    STR,
    TENSOR,
    ClassType,
    DictType,
    ListType,
    OptionalType,
    TupleType,
    Type,
)

_SIMPLE = {
    "TensorType": TENSOR,
    "IntType": INT,
    "FloatType": FLOAT,
    "BoolType": BOOL,
    "ComplexType": COMPLEX,
    "StringType": STR,
    "NumberType": SCALAR,
    "DeviceObjType": DEVICE,
    "GeneratorType": GENERATOR,
    "NoneType": NONE,
    "AnyType": ANY,
    "SymIntType": INT,
    "ScalarTypeType": INT,
    "LayoutType": INT,
    "MemoryFormatType": INT,
}


def convert_type(kind: Any) -> Type:
    """Our type for a ``torch._C.Type``; shapes and dtypes of tensor types are dropped.

    Raises:
        UnsupportedError: a Program has no such type.
    """
    name = kind.kind()
    if name in _SIMPLE:
        return _SIMPLE[name]
    if name == "ListType":
        return ListType(convert_type(kind.getElementType()))
    if name == "OptionalType":
        return OptionalType(convert_type(kind.getElementType()))
    if name == "DictType":
        return DictType(convert_type(kind.getKeyType()), convert_type(kind.getValueType()))
    if name == "TupleType":
        return _convert_tuple(kind)
    if name == "ClassType":
        return ClassType(kind.annotation_str)
    if name == "UnionType":
        return _convert_union(kind)
    raise UnsupportedError(f"the type {kind.annotation_str} has no counterpart in a mobile model")


def _convert_tuple(kind: Any) -> TupleType:
    elements = tuple(convert_type(item) for item in kind.elements())
    match = re.fullmatch(r"NamedTuple\((.*)\)", kind.str())
    if match is None:
        return TupleType(elements)
    fields = tuple(part.partition(" : ")[0].strip() for part in _top_level_items(match.group(1)))
    return TupleType(elements, kind.annotation_str, fields)


def _top_level_items(text: str) -> list[str]:
    depth = start = 0
    items = []
    for index, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            items.append(text[start:index])
            start = index + 1
    return [*items, text[start:]]


def _convert_union(kind: Any) -> Type:
    """``Union[T, None]`` is an optional; ``Union[int, float, complex]`` is a number."""
    members = [convert_type(item) for item in kind.containedTypes()]
    others = [item for item in members if item != NONE]
    if len(others) == 1:
        return OptionalType(others[0])
    if set(others) <= {INT, FLOAT, COMPLEX, BOOL}:
        return OptionalType(SCALAR) if NONE in members else SCALAR
    raise UnsupportedError(f"the type {kind.annotation_str} has no counterpart in a mobile model")
