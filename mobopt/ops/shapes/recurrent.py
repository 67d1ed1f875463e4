"""Recurrent layers and cells."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from mobopt.ir.types import TensorType
from mobopt.ops.shapes.rules import FLOATS, equal, require, shape_rule
from mobopt.ops.shapes.views import with_sizes


def _layers(
    gates: int,
    x: TensorType,
    states: Sequence[TensorType],
    parameters: Sequence[TensorType],
    has_biases: bool,
    count: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[TensorType, TensorType]:
    """The sequence of outputs, and the hidden state at the end; torch checks no parameter, and crashes."""
    require(x.dtype in FLOATS and x.rank == 3 and all(size > 0 for size in x.sizes))
    directions = 2 if bidirectional else 1
    hidden = states[0]
    size = hidden.sizes[2]
    for item in states:
        require(
            item.dtype == x.dtype and equal(item.sizes, (count * directions, x.sizes[0 if batch_first else 1], size))
        )
    each = 4 if has_biases else 2
    require(size > 0 and len(parameters) == count * directions * each)
    for index, item in enumerate(parameters):
        width = x.sizes[2] if index < directions * each else size * directions
        wanted = [(gates * size, width), (gates * size, size), (gates * size,), (gates * size,)][index % each]
        require(item.dtype == x.dtype and equal(item.sizes, wanted))
    return with_sizes(x, (*x.sizes[:2], size * directions)), hidden


def _time_first(args: Sequence[Any]) -> Sequence[int] | None:
    """Layers walk along time, which comes first in memory also where the batch does in sizes."""
    return (2, 0, 1) if args[-1] else None


@shape_rule("aten::lstm.input", order=_time_first)
def lstm(
    x: TensorType,
    states: Sequence[TensorType],
    parameters: Sequence[TensorType],
    has_biases: bool,
    count: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[TensorType, TensorType, TensorType]:
    """``[T, N, I]`` (or ``[N, T, I]``) and two states ``[layers, N, H]`` to outputs and states."""
    require(len(states) == 2)
    outputs, hidden = _layers(4, x, states, parameters, has_biases, count, bidirectional, batch_first)
    return outputs, hidden, states[1]


def recurrent(
    gates: int,
    x: TensorType,
    state: TensorType,
    parameters: Sequence[TensorType],
    has_biases: bool,
    count: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[TensorType, TensorType]:
    """As :func:`lstm`, of one state."""
    return _layers(gates, x, [state], parameters, has_biases, count, bidirectional, batch_first)


shape_rule("aten::gru.input", order=_time_first)(partial(recurrent, 3))
shape_rule("aten::rnn_tanh.input", "aten::rnn_relu.input", order=_time_first)(partial(recurrent, 1))


@shape_rule("aten::lstm_cell")
def lstm_cell(x: TensorType, states: Sequence[TensorType], *weights: Any) -> tuple[TensorType, TensorType]:
    """One step: the two states."""
    require(len(states) == 2)
    _require_step(4, x, states, weights)
    return states[0], states[1]


def cell(gates: int, x: TensorType, state: TensorType, *weights: Any) -> TensorType:
    """One step: the state."""
    _require_step(gates, x, [state], weights)
    return state


shape_rule("aten::gru_cell")(partial(cell, 3))
shape_rule("aten::rnn_tanh_cell", "aten::rnn_relu_cell")(partial(cell, 1))


def _require_step(
    gates: int, x: TensorType, states: Sequence[TensorType], weights: Sequence[TensorType | None]
) -> None:
    require(x.dtype in FLOATS and x.rank == 2 and states[0].rank == 2 and all(size > 0 for size in x.sizes))
    size = states[0].sizes[1]
    for item in states:
        require(item.dtype == x.dtype and equal(item.sizes, (x.sizes[0], size)))
    shapes = [(gates * size, x.sizes[1]), (gates * size, size), (gates * size,), (gates * size,)]
    for weight, shape in zip(weights, shapes, strict=True):
        require(weight is None or (weight.dtype == x.dtype and equal(weight.sizes, shape)))
