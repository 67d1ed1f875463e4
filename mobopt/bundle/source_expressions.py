"""Expressions of TorchScript source: literals, and calls of operators with their trailing defaults left out."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import torch

from mobopt.errors import BundleError, UnsupportedError
from mobopt.ir import Node
from mobopt.ir.schemas import Schema, schema_of
from mobopt.ir.types import ListType

_CASTS = {
    "aten::Int": "int({})",
    "aten::Float": "float({})",
    "aten::Bool": "bool({})",
    "aten::str": "str({})",
    "aten::IntImplicit": "annotate(int, {})",
    "aten::FloatImplicit": "annotate(float, {})",
    "aten::ScalarImplicit": "annotate(number, {})",
}


def literal(value: Any) -> str:
    """A plain value as TorchScript source writes it.

    Raises:
        BundleError: TorchScript has no literal for it.
    """
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, torch.device):
        return f"torch.device({json.dumps(str(value))})"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(key)}: {literal(item)}' for key, item in value.items())}}}"
    raise BundleError(f"a {type(value).__name__} has no literal in TorchScript source")


def _float(value: float) -> str:
    if math.isfinite(value):
        text = format(value, ".17g")
        return text if any(mark in text for mark in ".e") else f"{text}."
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def operator_call(node: Node, values: Sequence[str]) -> str:
    """The call of a node's operator on expressions, one for each input."""
    if node.op in _CASTS and len(values) == 1:
        return _CASTS[node.op].format(values[0])
    if node.op == "aten::__getitem__":
        return f"{values[0]}[{values[1]}]"
    namespace, _, name = node.op.partition("::")
    function = f"torch.{name}" if namespace == "aten" else f"ops.{namespace}.{name}"
    return f"{function}({', '.join(_arguments(node, values))})"


def _arguments(node: Node, values: Sequence[str]) -> list[str]:
    """Positional arguments without trailing defaults, then keyword-only ones that differ from their default."""
    try:
        schema = schema_of(node.qualified_op)
    except UnsupportedError:
        return list(values)
    if schema.is_variadic or len(schema.arguments) != len(values):
        return list(values)
    positional = [value for value, argument in zip(values, schema.arguments, strict=True) if not argument.keyword_only]
    while positional and is_default(node, schema, len(positional) - 1):
        positional.pop()
    keywords = [
        f"{argument.name}={value}"
        for index, (value, argument) in enumerate(zip(values, schema.arguments, strict=True))
        if argument.keyword_only and not is_default(node, schema, index)
    ]
    return positional + keywords


def is_default(node: Node, schema: Schema, index: int) -> bool:
    """Whether an input of a node is the constant that its schema has as default."""
    argument, value = schema.arguments[index], node.inputs[index]
    if not argument.has_default or not value.is_constant:
        return False
    default, given = argument.default, value.constant
    if isinstance(argument.type, ListType) and isinstance(given, list) and isinstance(default, int):
        return all(item == default and type(item) is type(default) for item in given) and bool(given)
    return type(given) is type(default) and bool(given == default)
