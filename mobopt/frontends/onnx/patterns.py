"""Operators of PyTorch that exporters write as several of ONNX's, known again by the graph that was made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mobopt.frontends.onnx.emitter import Emitter
from mobopt.ir import Node, Value


def selected(emit: Emitter, x: Any, axis: int) -> Any:
    """A slice of one element without its dimension: ``aten::select``; None if it is none.

    ``unbind`` and indexing by a number are exported as ``Split`` or ``Slice``, and ``Squeeze``.
    """
    node = made_by(x, "aten::slice.Tensor")
    if node is None or any(not item.is_constant for item in node.inputs[1:]):
        return None
    dim, start, end, step = (item.constant for item in node.inputs[1:])
    if dim != axis or step != 1 or start is None or end != start + 1 or end == 0:
        return None
    return emit("select.int", node.inputs[0], axis, start)


def permuted(emit: Emitter, x: Any, order: Sequence[int]) -> Any:
    """``aten::permute``; one with that which made ``x``, and nothing at all if the two undo each other."""
    node = made_by(x, "aten::permute")
    if node is not None and node.inputs[1].is_constant:
        first = node.inputs[1].constant
        x, order = node.inputs[0], [first[dim] % len(first) for dim in order]
    return x if list(order) == list(range(len(order))) else emit("permute", x, list(order))


def stacked(emit: Emitter, parts: Sequence[Any], axis: int) -> Any:
    """``aten::stack``, which is exported as ``Unsqueeze`` of each part and ``Concat``; None if it is none."""
    nodes = [made_by(part, "aten::unsqueeze") for part in parts]
    inner = [node.inputs[0] for node in nodes if node is not None and is_number(node.inputs[1], axis)]
    return emit("stack", inner, axis) if len(inner) == len(parts) > 1 else None


def logarithm(emit: Emitter, x: Any) -> Any:
    """``aten::log``; of a sigmoid ``aten::log_sigmoid``, which is exported as both and is right where that vanishes."""
    node = made_by(x, "aten::sigmoid")
    return emit("log", x) if node is None else emit("log_sigmoid", node.inputs[0])


def interpolated(emit: Emitter, condition: Any, near: Any, far: Any) -> Any:
    """``aten::lerp`` from ``a`` to ``b`` by ``weight``; None if it is none.

    Exporters write torch's own formula: ``where(weight < 0.5, a + weight * d, b - d * (1 - weight))``, where ``d`` is
    ``b - a``.
    """
    less, total, rest = made_by(condition, "aten::lt.Tensor"), made_by(near, "aten::add.Tensor"), _difference(far)
    if less is None or total is None or rest is None or not is_number(less.inputs[1], 0.5):
        return None
    weight, (start, _), (end, _) = less.inputs[0], total.inputs[:2], rest
    step, back = made_by(total.inputs[1], "aten::mul.Tensor"), made_by(rest[1], "aten::mul.Tensor")
    if step is None or back is None:
        return None
    across = next((item for item in step.inputs[:2] if item is not weight), None)
    remaining = _difference(next((item for item in back.inputs[:2] if item is not across), None))
    if across is None or remaining is None or weight not in step.inputs[:2] or across not in back.inputs[:2]:
        return None
    if not is_number(remaining[0], 1.0) or remaining[1] is not weight or _difference(across) != (end, start):
        return None
    return emit("lerp.Tensor", start, end, weight)


def is_all(value: Any, number: float) -> bool:
    """Whether it is a known tensor of which every element is this number."""
    return isinstance(value, torch.Tensor) and bool((value == number).all())


def made_by(value: Any, qualified_op: str) -> Node | None:
    """The node that makes a value, if it is of this operator."""
    node = value.producer if isinstance(value, Value) else None
    return node if node is not None and node.qualified_op == qualified_op else None


def _difference(value: Any) -> tuple[Value, Value] | None:
    """What is subtracted from what, with the default factor of one."""
    node = made_by(value, "aten::sub.Tensor")
    if node is None or (len(node.inputs) > 2 and not is_number(node.inputs[2], 1)):
        return None
    return node.inputs[0], node.inputs[1]


def is_number(value: Value, number: float) -> bool:
    """Whether it is a constant of one element, which is this number."""
    constant = value.constant if value.is_constant else None
    if isinstance(constant, torch.Tensor):
        return constant.numel() == 1 and bool(constant == number)
    return bool(constant == number)


def is_none(value: Value) -> bool:
    """Whether it is the constant None."""
    return value.is_constant and value.constant is None
