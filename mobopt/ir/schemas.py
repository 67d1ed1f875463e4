"""Operator schemas: names, types and defaults of arguments, and the choice of an overload from argument types.

Schemas of PyTorch's own operators come from the installed torch; those that stock torch lacks (``vulkan_prepack::``
and its kin) are added by :mod:`mobopt.ops` with :func:`register_schema`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch

from mobopt.errors import UnsupportedError
from mobopt.ir.types import (
    ANY,
    ANY_LIST,
    ANY_TUPLE,
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    NONE,
    SCALAR,
    TENSOR,
    DictType,
    ListType,
    OptionalType,
    TensorType,
    TupleType,
    Type,
    parse_type,
)


@dataclass(frozen=True)
class Argument:
    """One argument of an operator."""

    name: str
    type: Type
    has_default: bool = False
    default: Any = None
    keyword_only: bool = False
    is_written: bool = False
    """Whether the operator changes it in place."""
    aliases: bool = False
    """Whether a result may share its memory."""
    fixed_length: int | None = None
    """N of ``int[N]``: a single element is accepted and repeated N times."""


@dataclass(frozen=True)
class Schema:
    """What an operator takes and returns."""

    name: str
    overload: str
    arguments: tuple[Argument, ...]
    returns: tuple[Type, ...]
    is_variadic: bool = False

    @property
    def qualified_name(self) -> str:
        """Name with overload."""
        return f"{self.name}.{self.overload}" if self.overload else self.name

    @cached_property
    def is_mutating(self) -> bool:
        """Whether it changes an argument in place."""
        return any(argument.is_written for argument in self.arguments)

    @cached_property
    def is_aliasing(self) -> bool:
        """Whether a result may share memory with an argument."""
        return any(argument.aliases for argument in self.arguments)


_REGISTERED: dict[str, list[Schema]] = {}


def register_schema(text: str) -> Schema:
    """Make an operator known that torch lacks, from its schema in PyTorch's notation."""
    schema = parse_schema(text)
    _REGISTERED.setdefault(schema.name, []).append(schema)
    return schema


@cache
def schemas_of(name: str) -> tuple[Schema, ...]:
    """All overloads of an operator, in torch's order; empty if the name is unknown."""
    if name in _REGISTERED:
        return tuple(_REGISTERED[name])
    return tuple(_from_torch(schema) for schema in _schemas_of_torch(name))


@cache
def _schemas_of_torch(name: str) -> tuple[Any, ...]:
    try:
        return tuple(torch._C._jit_get_schemas_for_operator(name))
    except RuntimeError:
        return ()


@cache
def schema_of(qualified_name: str) -> Schema:
    """The schema of ``namespace::name`` or ``namespace::name.overload``.

    Raises:
        UnsupportedError: there is no such operator.
    """
    name, _, overload = qualified_name.partition(".")
    for found in _schemas_of_torch(name) if name not in _REGISTERED else ():
        if found.overload_name == overload:
            return _from_torch(found)
    for schema in schemas_of(name):
        if schema.overload == overload:
            return schema
    known = ", ".join(schema.qualified_name for schema in schemas_of(name))
    hint = f"; its overloads are {known}" if known else ""
    raise UnsupportedError(f"unknown operator {qualified_name}{hint}")


@cache
def known_schema(qualified_name: str) -> Schema | None:
    """The same, or None if there is no such operator."""
    name, _, overload = qualified_name.partition(".")
    return next((schema for schema in schemas_of(name) if schema.overload == overload), None)


def _from_torch(schema: Any) -> Schema:
    arguments = tuple(
        Argument(
            name=argument.name,
            type=parse_type(_type_text(argument.type)),
            has_default=argument.has_default_value(),
            default=argument.default_value,
            keyword_only=argument.kwarg_only,
            is_written=argument.alias_info is not None and argument.alias_info.is_write,
            aliases=argument.alias_info is not None,
            fixed_length=argument.N,
        )
        for argument in schema.arguments
    )
    returns = tuple(parse_type(_type_text(result.type)) for result in schema.returns)
    return Schema(schema.name, schema.overload_name, arguments, returns, "..." in str(schema))


def _type_text(kind: Any) -> str:
    text: str = kind.annotation_str
    return "Any" if re.search(r"Future|RRef|Await|[^\w.\[\], ()]", text) else text


def parse_schema(text: str) -> Schema:
    """Read one schema in PyTorch's notation, where class types may be unknown to torch.

    Source: ``torch/csrc/jit/frontend/function_schema_parser.cpp`` describes the notation.
    """
    match = re.fullmatch(r"\s*([\w:]+)(?:\.(\w+))?\((.*)\)\s*->\s*(.+?)\s*", text)
    if match is None:
        raise UnsupportedError(f"can't read the operator schema {text!r}")
    name, overload, arguments, returns = match.groups()
    parsed: list[Argument] = []
    keyword_only = False
    for item in _split_top_level(arguments):
        if item == "*":
            keyword_only = True
        else:
            parsed.append(_parse_argument(item, keyword_only))
    inner = returns[1:-1] if returns.startswith("(") else returns
    results = tuple(parse_type(item.rsplit(" ", 1)[0]) for item in _split_top_level(inner))
    return Schema(name, overload or "", tuple(parsed), results)


def _parse_argument(text: str, keyword_only: bool) -> Argument:
    declaration, equals, default = text.partition("=")
    kind, _, name = declaration.strip().rpartition(" ")
    length = re.search(r"\[(\d+)\]", kind)
    return Argument(
        name=name,
        type=parse_type(kind),
        has_default=bool(equals),
        default=_DEFAULTS[default.strip()] if equals else None,
        keyword_only=keyword_only,
        fixed_length=int(length.group(1)) if length else None,
    )


_DEFAULTS: dict[str, Any] = {"None": None, "True": True, "False": False, "0": 0, "1": 1}


def _split_top_level(text: str) -> list[str]:
    """Comma-separated items outside brackets."""
    items: list[str] = []
    depth = start = 0
    for index, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            items.append(text[start:index].strip())
            start = index + 1
    last = text[start:].strip()
    return [*items, last] if last else items


@cache
def argument_names(qualified_name: str) -> tuple[str, ...]:
    """Names of an operator's arguments, in the order of its schema.

    Raises:
        UnsupportedError: there is no such operator.
    """
    return tuple(argument.name for argument in schema_of(qualified_name).arguments)


def accepts(expected: Type, actual: Type, convert: bool = False) -> bool:
    """Whether a value of one type can be given where another is expected.

    With ``convert``, the implicit conversions of TorchScript count too (int to float, Tensor to number).
    """
    if expected in (actual, ANY) or actual == ANY:
        return True
    if isinstance(actual, TensorType):
        return accepts(expected, TENSOR, convert)
    if isinstance(expected, OptionalType):
        inner = actual.element if isinstance(actual, OptionalType) else actual
        return actual == NONE or accepts(expected.element, inner, convert)
    if isinstance(expected, ListType) and isinstance(actual, ListType):
        return accepts(expected.element, actual.element, convert)
    if expected in (ANY_LIST, ANY_TUPLE):
        return isinstance(actual, ListType if expected == ANY_LIST else TupleType)
    if isinstance(expected, DictType) and isinstance(actual, DictType):
        return accepts(expected.key, actual.key) and accepts(expected.value, actual.value)
    if isinstance(expected, TupleType) and isinstance(actual, TupleType):
        pairs = zip(expected.elements, actual.elements, strict=False)
        return len(expected.elements) == len(actual.elements) and all(accepts(e, a, convert) for e, a in pairs)
    if expected == SCALAR:
        return actual in (INT, FLOAT, BOOL, COMPLEX) or (convert and actual == TENSOR)
    if convert:
        return (expected, actual) in {
            (FLOAT, INT),
            (INT, TENSOR),
            (FLOAT, TENSOR),
            (BOOL, TENSOR),
            (INT, SCALAR),
            (FLOAT, SCALAR),
        }
    return False


def match_arguments(
    schema: Schema, positional: Sequence[Type], keywords: Mapping[str, Type] | None, convert: bool = False
) -> bool:
    """Whether a call with these argument types fits a schema; see :func:`resolve` for ``keywords``."""
    named: Mapping[str, Type] = keywords or {}
    if len(positional) > len(schema.arguments) and not schema.is_variadic:
        return False
    known = {argument.name for argument in schema.arguments}
    if not set(named) <= known:
        return False
    for index, argument in enumerate(schema.arguments):
        if index < len(positional):
            misplaced = argument.name in named or (argument.keyword_only and keywords is not None)
            if misplaced or not _fits(argument, positional[index], convert):
                return False
        elif argument.name in named:
            if not _fits(argument, named[argument.name], convert):
                return False
        elif not argument.has_default:
            return False
    return True


def _fits(argument: Argument, actual: Type, convert: bool) -> bool:
    if accepts(argument.type, actual, convert):
        return True
    kind = argument.type.element if isinstance(argument.type, OptionalType) else argument.type
    broadcasts = argument.fixed_length is not None and isinstance(kind, ListType)
    return broadcasts and isinstance(kind, ListType) and accepts(kind.element, actual, convert)


def resolve(name: str, positional: Sequence[Type], keywords: Mapping[str, Type] | None = None) -> Schema:
    """Choose the overload that TorchScript would choose: the first that fits, without conversions before with.

    Args:
        name: the operator, without overload.
        positional: types of the positional arguments.
        keywords: types of the keyword arguments of a call in source; None for a node of a graph, whose inputs list
            keyword-only arguments too, in the order of the schema.

    Raises:
        UnsupportedError: the operator is unknown, or no overload takes these types.
    """
    candidates = schemas_of(name)
    if not candidates:
        raise UnsupportedError(f"unknown operator {name}: neither the installed torch nor mobopt knows it")
    for convert in (False, True):
        for schema in candidates:
            if match_arguments(schema, positional, keywords, convert):
                return schema
    given = ", ".join([*map(str, positional), *(f"{key}={kind}" for key, kind in (keywords or {}).items())])
    raise UnsupportedError(f"no overload of {name} takes ({given})")
