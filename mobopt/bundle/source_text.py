"""Spelling of TorchScript source: identifiers, literals, and how a node is called.

Source: ``torch/csrc/jit/serialization/python_print.cpp`` and ``torch/csrc/jit/frontend/strtod.cpp``.
"""

from __future__ import annotations

import keyword
import math
import re
from typing import Any

import torch

from mobopt.ir.arguments import argument_name
from mobopt.ir.types import BOOL, FLOAT, INT, STR, ListType, OptionalType, TupleType, Type

# fmt: off
_RESERVED = frozenset({
    "torch", "ops", "CONSTANTS", "annotate", "uninitialized", "unchecked_cast", "unchecked_unwrap_optional",
    "getattr", "isinstance", "range", "inf", "nan", "infj", "nanj", "int", "float", "bool", "str", "complex",
    "number", "print", "fork", "len", "list", "dict", "tuple", "Tensor", "List", "Dict", "Tuple", "Optional", "Any",
    "Device", "self", "rpc_async", "awaitable", "hasattr", "hash", "min", "max", "abs", "all", "any", "sorted",
    "zip", "enumerate", "reversed", "ord", "chr", "bin", "oct", "hex", "divmod", "round",
})
# fmt: on


def is_identifier(name: str) -> bool:
    """Whether a name can stand in source as it is."""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


class Names:
    """Identifiers for the values of one method, each used once."""

    def __init__(self) -> None:
        self._taken = set(_RESERVED)
        self._next: dict[str, int] = {}

    def take(self, hint: str) -> str:
        """An identifier like ``hint`` (``x`` from ``x.1``), or ``_0``, ``_1`` and so on if that has no name in it."""
        base = re.sub(r"\W", "_", argument_name(hint), flags=re.ASCII)
        if not base or base[0].isdigit():
            base = "_"
        name, count = base, self._next.get(base, 0)
        while name in self._taken or name == "_" or keyword.iskeyword(name):
            name = f"{base}{count}"
            count += 1
        self._next[base] = count
        self._taken.add(name)
        return name


def quoted(text: str) -> str:
    """A string literal; bytes that are not printable ASCII are octal escapes."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return '"' + "".join(escapes.get(c, c if " " <= c <= "~" else f"\\{ord(c):03o}") for c in text) + '"'


def literal(value: Any, kind: Type) -> str | None:
    """A constant as source; None if it must stand in the table of constants."""
    if isinstance(kind, OptionalType) and value is not None:
        return literal(value, kind.element)
    if value is None:
        return f"annotate({kind.annotation}, None)" if isinstance(kind, OptionalType) else "None"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return f"{value}." if kind == FLOAT else str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return quoted(value) if value.isascii() else None
    if isinstance(value, torch.device):
        return f"torch.device({quoted(str(value))})"
    if isinstance(value, list) and isinstance(kind, ListType):
        return _sequence(value, kind.element, kind)
    if isinstance(value, tuple) and isinstance(kind, TupleType) and not kind.name:
        items = [literal(item, element) for item, element in zip(value, kind.elements, strict=True)]
        return None if None in items else tuple_text([item for item in items if item is not None])
    return None


def _sequence(values: list[Any], element: Type, kind: Type) -> str | None:
    if element not in (INT, FLOAT, BOOL, STR):
        return None
    items = [literal(item, element) for item in values]
    if None in items:
        return None
    return f"[{', '.join(item for item in items if item)}]" if items else f"annotate({kind.annotation}, [])"


def tuple_text(items: list[str]) -> str:
    """A tuple display."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _float(value: float) -> str:
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if math.isnan(value):
        return "nan"
    text = repr(value)
    return text.removesuffix("0") if text.endswith(".0") else text
