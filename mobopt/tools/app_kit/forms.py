"""Forms: types of a method's arguments and results, as far as generated code can take them apart and put them together.

A form says the same for every language: a tuple is a record with a name and fields, and what has no place in an API of
values (devices, objects, numbers of any kind) is opaque, with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mobopt.ir.types import (
    BOOL,
    FLOAT,
    INT,
    NONE,
    STR,
    TENSOR,
    DictType,
    ListType,
    OptionalType,
    TensorType,
    TupleType,
    Type,
)
from mobopt.tools.app_kit.names import identifier, pascal_case

_KINDS: dict[Type, str] = {TENSOR: "tensor", INT: "int", FLOAT: "float", BOOL: "bool", STR: "str"}


@dataclass(frozen=True)
class Form:
    """Base of all forms."""


@dataclass(frozen=True)
class Plain(Form):
    """A single value: ``tensor``, ``int``, ``float``, ``bool`` or ``str``."""

    kind: str


@dataclass(frozen=True)
class Items(Form):
    """A list."""

    element: Form


@dataclass(frozen=True)
class Mapping(Form):
    """A dictionary; its keys are ``str`` or ``int``."""

    key: str
    value: Form


@dataclass(frozen=True)
class Maybe(Form):
    """A value or nothing."""

    element: Form


@dataclass(frozen=True)
class Record(Form):
    """A tuple, as a structure with a name of its own."""

    name: str
    fields: tuple[tuple[str, Form], ...]


@dataclass(frozen=True)
class Nothing(Form):
    """What a method without a result returns."""


@dataclass(frozen=True)
class Opaque(Form):
    """What generated code can't carry."""

    reason: str


def form_of(kind: Type, name: str) -> Form:
    """The form of a type.

    Args:
        kind: of an argument or a result.
        name: of records, if it holds tuples: ``ForwardResult``; inner ones get longer names.
    """
    if kind in _KINDS:
        return Plain(_KINDS[kind])
    if isinstance(kind, TensorType):
        return Plain("tensor")
    if kind == NONE:
        return Nothing()
    if isinstance(kind, ListType):
        return Items(form_of(kind.element, f"{name}Item"))
    if isinstance(kind, OptionalType):
        return Maybe(form_of(kind.element, name))
    if isinstance(kind, DictType) and kind.key in (STR, INT):
        return Mapping(_KINDS[kind.key], form_of(kind.value, f"{name}Value"))
    if isinstance(kind, TupleType):
        return _record(kind, name)
    if isinstance(kind, DictType):
        return Opaque(f"a dictionary has keys of the type {kind.key}, and only int and str are carried")
    return Opaque(f"a value has the type {kind.annotation}")


def _record(kind: TupleType, name: str) -> Record:
    fields: list[tuple[str, Form]] = []
    for number, element in enumerate(kind.elements):
        given = kind.fields[number] if kind.fields else f"item{number}"
        field = identifier(given, taken=[other for other, _ in fields])
        fields.append((field, form_of(element, name + pascal_case(field))))
    return Record(name, tuple(fields))


def parts_of(form: Form) -> Iterator[Form]:
    """The form and all forms inside it, inner ones first."""
    if isinstance(form, (Items, Maybe)):
        yield from parts_of(form.element)
    elif isinstance(form, Mapping):
        yield from parts_of(form.value)
    elif isinstance(form, Record):
        for _, field in form.fields:
            yield from parts_of(field)
    yield form


def records_of(form: Form) -> Iterator[Record]:
    """All records inside a form, inner ones first."""
    yield from (part for part in parts_of(form) if isinstance(part, Record))


def opaque_reason(form: Form) -> str:
    """Why a form can't be carried; empty if it can."""
    for part in parts_of(form):
        if isinstance(part, Opaque):
            return part.reason
    return ""
