"""Operators on packed contexts, seen as the plain operators that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from mobopt.ir import Attribute, Node, Value
from mobopt.ops.contexts import (
    BatchNormPackedContext,
    Conv1dPackedContext,
    Conv2dPackedContext,
    GruPackedContext,
    LayernormPackedContext,
    LinearPackedContext,
    LstmPackedContext,
    PackedContext,
    QuantizedConv2dContext,
    QuantizedLinearContext,
)

Call = tuple[str, dict[str, Any]]


def unpacked_call(node: Node, attributes: Mapping[str, Attribute]) -> Call | None:
    """The plain operator and its arguments by name; None for nodes that read no known context.

    Of a quantised weight the argument is its integers, which have its sizes.
    """
    if not node.args or "pack" not in node.op.partition("::")[0]:
        return None
    context = _context(node.args[-1], attributes)
    if context is None:
        return None
    x = node.args[0]
    if isinstance(context, LinearPackedContext):
        return "aten::linear", {"input": x, "weight": context.weight.t(), "bias": context.bias}
    if isinstance(context, Conv2dPackedContext):
        return _convolution(x, context)
    if isinstance(context, QuantizedLinearContext):
        return "aten::linear", {"input": x, "weight": context.weight.integers.t(), "bias": context.bias}
    if isinstance(context, QuantizedConv2dContext):
        operator, arguments = _convolution(x, context)
        return operator, {**arguments, "weight": context.weight.integers}
    if isinstance(context, LstmPackedContext):
        return "aten::lstm.input", {"input": x, "hx": list(node.args[1:3]), **_recurrent(context)}
    if isinstance(context, GruPackedContext):
        return "aten::gru.input", {"input": x, "hx": node.args[1], **_recurrent(context)}
    if isinstance(context, LayernormPackedContext):
        fields = {"weight": context.weight, "bias": context.bias, "eps": context.eps, "cudnn_enable": False}
        return "aten::layer_norm", {"input": x, "normalized_shape": node.args[1], **fields}
    if isinstance(context, BatchNormPackedContext):
        return "aten::batch_norm", {"input": x, "training": False, "momentum": 0.1, **vars(context)}
    if isinstance(context, Conv1dPackedContext):
        return "aten::conv1d", {"input": x, **vars(context)}
    if hasattr(context, "stride"):
        operator = "aten::conv_transpose2d.input" if hasattr(context, "output_padding") else "aten::conv2d"
        return operator, {"input": x, **vars(context)}
    return "aten::linear", {"input": x, **vars(context)}


def _convolution(x: Value, context: Conv2dPackedContext | QuantizedConv2dContext) -> Call:
    operator = "aten::conv_transpose2d.input" if context.transposed else "aten::conv2d"
    return operator, {"input": x, **vars(context)}


def _recurrent(context: GruPackedContext) -> dict[str, Any]:
    return {item.name: getattr(context, item.name) for item in fields(context)}


def _context(value: Any, attributes: Mapping[str, Attribute]) -> PackedContext | None:
    """The context that an argument is: of a graph whose arguments are Values, or of a straight line."""
    found: Any = value
    if not isinstance(value, Value):
        pass
    elif value.is_constant:
        found = value.constant
    elif value.producer is not None and value.producer.op == "prim::GetAttr":
        attribute = attributes.get(value.producer.attributes["name"])
        found = attribute.value if attribute is not None else None
    return found if isinstance(found, PackedContext) else None
