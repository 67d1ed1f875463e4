"""Which dtype an in-place operator's functional form gives, where it is known: in place, the target keeps its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mobopt.ir import Node, Value
from mobopt.ir.facts import name_of
from mobopt.ir.schemas import Schema
from mobopt.ir.types import BOOL, FLOAT, INT, SCALAR, TENSOR, TensorType, Type
from mobopt.passes.inference import made_by
from mobopt.passes.rewriting import is_constant_tensor

_SAMPLES: dict[Type, Any] = {INT: 2, FLOAT: 0.5, BOOL: True, SCALAR: 2}
"""A number of a type that is computed: which one it is decides no dtype."""
_SIZES = (1,)
"""Of tensors of which nothing is known: it goes with every other."""


def change_of_dtype(node: Node, functional: Schema, may_differ: bool) -> str:
    """Why an in-place operator's functional form might give another dtype than the tensor has that it writes to.

    Args:
        node: the operator, in place.
        functional: its functional form.
        may_differ: whether operands of which nothing is known may have another dtype than that tensor; else they are
            taken to have the same, as in PyTorch's own pass, and that tensor to be of float32.

    Returns:
        The reason; empty if the dtype stays.
    """
    target, *others = node.inputs
    own = _known(target)
    dtype = torch.float32 if own is None else own.dtype
    tensors = [value for value in others if value.type == TENSOR and value is not target]
    unknown = [value for value in tensors if own is None or not _known(value)]
    if unknown and may_differ:
        return f"%{unknown[0].name} may have another dtype, which would be the result's"
    if own is None and may_differ:
        for kind in (torch.int32, torch.bool):
            made = _made_by(functional.qualified_name, [_argument(value, kind) for value in node.inputs])
            if made not in (None, kind):
                return f"its functional form gives {name_of(made)} of {name_of(kind)}"
    arguments = [_argument(value, dtype) for value in node.inputs]
    made = _made_by(functional.qualified_name, arguments)
    if made is not None and made != dtype:
        return f"its functional form gives {name_of(made)}"
    if own is None and widens_integers(node, functional):
        return "its functional form gives wider integers"
    if made is not None:
        return ""
    wider = [item.dtype for item in arguments if isinstance(item, TensorType) and item.sizes and item.dtype != dtype]
    if wider and own is not None:
        return f"its functional form may give {name_of(wider[0])}"
    return ""


def widens_integers(node: Node, functional: Schema) -> bool:
    """Whether the functional form gives int64 where the tensor that is written to may be of smaller integers."""
    return _made_by(functional.qualified_name, [_argument(value, torch.int32) for value in node.inputs]) == torch.int64


def _made_by(operator: str, arguments: Sequence[Any]) -> torch.dtype | None:
    """The dtype of a result; None where nothing tells."""
    made = made_by(operator, arguments)
    return made.dtype if isinstance(made, TensorType) else None


def _argument(value: Value, dtype: torch.dtype) -> Any:
    """What a rule of shapes takes."""
    if value.type == TENSOR:
        return _known(value) or TensorType(dtype, _SIZES)
    return value.constant if value.is_constant else _SAMPLES.get(value.type)


def _known(value: Value) -> TensorType | None:
    if is_constant_tensor(value):
        return TensorType(value.constant.dtype, tuple(value.constant.shape))
    seen = value.facts
    if seen.known_dtype is None:
        return None
    return TensorType(getattr(torch, seen.known_dtype), _SIZES if seen.known_sizes is None else seen.known_sizes)
