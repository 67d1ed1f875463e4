"""Constants as graph text: printed, and read back as values of their types.

Numbers, strings (in JSON's spelling), lists, tuples, dictionaries and None nest; bools are written 0 and 1, devices as
strings. What has no literal (a tensor, a packed context) prints as ``<...>``; of a tensor that says dtype, sizes and a
digest of the elements.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import torch

from mobopt.errors import GraphError
from mobopt.ir.types import (
    BOOL,
    DEVICE,
    FLOAT,
    ClassType,
    DictType,
    ListType,
    OptionalType,
    TupleType,
    Type,
    parse_type,
)


def print_literal(value: Any, kind: Type | None = None, digests: bool = False) -> str:
    """The text of a value; ``kind`` is its type, if known. With ``digests``, tensors of other elements differ."""
    if isinstance(kind, OptionalType):
        kind = kind.element
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, torch.Tensor):
        digest = f" {digest_of(value)}" if digests else ""
        return f"<Tensor {str(value.dtype).removeprefix('torch.')} {list(value.shape)}{digest}>"
    if isinstance(value, (str, torch.device)):
        return json.dumps(str(value))
    if isinstance(value, int):
        return repr(float(value)) if kind == FLOAT else repr(value)
    if value is None or isinstance(value, (float, complex)):
        return repr(value)
    if isinstance(value, list):
        return _list(value, kind, digests)
    if isinstance(value, tuple):
        kinds = (
            kind.elements if isinstance(kind, TupleType) and len(kind.elements) == len(value) else [None] * len(value)
        )
        items = [print_literal(item, element, digests) for item, element in zip(value, kinds, strict=True)]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if isinstance(value, dict):
        key, element = (kind.key, kind.value) if isinstance(kind, DictType) else (None, None)
        items = [f"{print_literal(k, key)}: {print_literal(v, element, digests)}" for k, v in value.items()]
        return f"{{{', '.join(items)}}}"
    return f"<{type(value).__name__}>"


def digest_of(tensor: torch.Tensor) -> str:
    """16 hexadecimal digits that tell a tensor's elements from others (BLAKE2b of their bytes in row-major order);
    ``unknown`` for what is no dense tensor of plain numbers."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        return "unknown"
    return hashlib.blake2b(bytes_of(tensor), digest_size=8).hexdigest()


def bytes_of(tensor: torch.Tensor) -> bytes:
    """A dense tensor's elements on the CPU, in row-major order."""
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    dense = dense.as_strided((dense.numel(),), (1,))  # one of one element counts as contiguous with any stride
    return bytes(dense.view(torch.uint8).numpy().tobytes())


def _list(values: list[Any], kind: Type | None, digests: bool) -> str:
    if not values and kind is not None:
        return f"annotate({kind.annotation}, [])"
    element = kind.element if isinstance(kind, ListType) else None
    return f"[{', '.join(print_literal(item, element, digests) for item in values)}]"


def parse_literal(text: str, kind: Type) -> Any:
    """The value of a literal, of a type.

    Raises:
        GraphError: it is not a literal, or not one of that type.
    """
    scanner = Scanner(text)
    try:
        value = typed(scanner.value(), kind)
    except (ValueError, TypeError, AttributeError, RuntimeError):
        raise GraphError(f"{text!r} is not a constant of type {kind}") from None
    if scanner.rest:
        raise scanner.error()
    return value


def typed(value: Any, kind: Type) -> Any:
    """A literal's plain value as its type wants it: bools from 0 and 1, devices from strings.

    Raises:
        GraphError: values of the type have no literal.
        ValueError: the value is not of the type.
    """
    if isinstance(kind, OptionalType):
        return None if value is None else typed(value, kind.element)
    if isinstance(kind, ListType):
        return [typed(item, kind.element) for item in value]
    if isinstance(kind, TupleType):
        return tuple(typed(item, element) for item, element in zip(value, kind.elements, strict=True))
    if isinstance(kind, DictType):
        return {typed(key, kind.key): typed(item, kind.value) for key, item in value.items()}
    if isinstance(kind, ClassType):
        raise GraphError(f"a constant of type {kind} has no literal; give it to parse_graph by name")
    if kind == BOOL:
        return bool(value)
    if kind == FLOAT:
        return float(value)
    return torch.device(value) if kind == DEVICE else value


_FLOAT = r"(?:\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?|inf|nan)"
_COMPLEX = re.compile(rf"\([+-]?{_FLOAT}[+-]{_FLOAT}j\)|[+-]?{_FLOAT}j")
_NUMBER = re.compile(rf"[+-]?{_FLOAT}")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_EMPTY = re.compile(r"annotate\([^()]*(?:\(\))?[^()]*,\s*\[\]\)")


class Scanner:
    """Reads literals from the front of a text.

    Attributes:
        rest: what is not read yet.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.rest = text.strip()

    def error(self) -> GraphError:
        """An error about what comes next."""
        return GraphError(
            f"the constant {self.text[:200]!r} has no literal at {self.rest[:40]!r}; "
            "give its value to parse_graph by name"
        )

    def take(self, pattern: str | re.Pattern[str]) -> str | None:
        """What a pattern matches at the front, taken off; None if it doesn't match."""
        match = re.match(pattern, self.rest)
        if match is None:
            return None
        self.rest = self.rest[match.end() :].lstrip()
        return match.group()

    def value(self) -> Any:
        """A literal.

        Raises:
            GraphError: there is none.
        """
        if (text := self.take(_STRING)) is not None:
            return json.loads(text)
        if (text := self.take(_COMPLEX)) is not None:
            return complex(text)
        if (text := self.take(_NUMBER)) is not None:
            return int(text) if text.lstrip("+-").isdigit() else float(text)
        if self.take(r"None\b"):
            return None
        if self.take(_EMPTY):
            return []
        if self.take(r"\["):
            return self.items(r"\]", self.value)
        if self.take(r"\("):
            return tuple(self.items(r"\)", self.value))
        if self.take(r"\{"):
            return dict(self.items(r"\}", self.pair))
        raise self.error()

    def pair(self) -> tuple[Any, Any]:
        """``key: value``"""
        key = self.value()
        if not self.take(":"):
            raise self.error()
        return key, self.value()

    def items(self, closing: str, read: Callable[[], Any]) -> list[Any]:
        """What ``read`` reads, between commas, up to a closing bracket."""
        items: list[Any] = []
        while not self.take(closing):
            items.append(read())
            if not self.take(",") and not re.match(closing, self.rest):
                raise self.error()
        return items

    def types(self) -> tuple[Type, ...]:
        """``[int, Tensor?]``"""
        if not self.take(r"\["):
            raise self.error()
        depth, end = 1, 0
        while depth and end < len(self.rest):
            depth += (self.rest[end] in "[(") - (self.rest[end] in "])")
            end += 1
        inner, self.rest = self.rest[: end - 1], self.rest[end:].lstrip()
        kind = parse_type(f"({inner})")
        return kind.elements if isinstance(kind, TupleType) else ()

    def attributes(self) -> dict[str, Any]:
        """``[name="a", beg=0]`` in front of a node's inputs; nothing is an empty one."""
        return dict(self.items(r"\]", self.attribute)) if self.take(r"\[") else {}

    def attribute(self) -> tuple[str, Any]:
        """``name="a"``; the attribute ``types`` is a list of types."""
        name = self.take(r"\w+")
        if name is None or not self.take("="):
            raise self.error()
        return name, self.types() if name == "types" else self.value()
