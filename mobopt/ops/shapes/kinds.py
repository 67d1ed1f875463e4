"""Whether arguments are of the kinds that an operator's schema asks for, in the form that rules get them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mobopt.ir.dimensions import Expression
from mobopt.ir.schemas import schema_of
from mobopt.ir.types import TENSOR, ListType, OptionalType, TensorType, Type

_SETTINGS = (torch.dtype, torch.layout, torch.memory_format)
"""What TorchScript has integers for."""
_OF_NAMES: dict[str, tuple[type, ...]] = {
    "int": (int, Expression, *_SETTINGS),
    "float": (float, int, Expression),
    "Scalar": (int, float, complex, Expression),
    "number": (int, float, complex, Expression),
    "bool": (bool,),
    "str": (str,),
}


def are_of_schema(operator: str, args: Sequence[Any]) -> bool:
    """Whether there are as many arguments as an operator has, and each is of its kind.

    Args:
        operator: qualified name.
        args: tensors as their types, sizes as dimensions.
    """
    arguments = schema_of(operator).arguments
    return len(args) == len(arguments) and all(
        _is_of(value, argument.type) or (argument.fixed_length is not None and _is_of([value], argument.type))
        for value, argument in zip(args, arguments, strict=True)
    )


def _is_of(value: Any, kind: Type) -> bool:
    if isinstance(kind, OptionalType):
        return value is None or _is_of(value, kind.element)
    if isinstance(kind, ListType):
        return isinstance(value, (list, tuple)) and all(_is_of(item, kind.element) for item in value)
    if kind == TENSOR:
        return isinstance(value, TensorType)
    expected = _OF_NAMES.get(str(kind))
    return expected is None or isinstance(value, expected)
