"""Recurrent layers, unrolled: PyTorch's Vulkan kernels compute single steps only.

They read a sequence as a batch whose elements all start from the same state
(``aten/src/ATen/native/vulkan/ops/Lstm.cpp``, ``Gru.cpp``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mobopt.ir import Value
from mobopt.passes.legalizations.building import joined, plus, reshaped, slice_of, times
from mobopt.passes.legalizations.site import Refused, Site, legalizes

_MOST_STEPS = 16
"""Steps of all layers together; each is some thirty small operators, and with more of them the CPU is faster."""

_State = list[Value]
_Cell = Callable[[Site, "_Weights", Value, _State], _State]


@dataclass(frozen=True)
class _Weights:
    """Weights of one layer in one direction, a list with one for each gate."""

    inputs: list[torch.Tensor]
    hidden: list[torch.Tensor]
    input_biases: list[torch.Tensor | None]
    hidden_biases: list[torch.Tensor | None]

    def gate(self, site: Site, index: int, x: Value, h: Value) -> Value:
        """What goes into a gate's nonlinearity; its biases are added as one."""
        biases = [self.input_biases[index], self.hidden_biases[index]]
        bias = None if biases[0] is None else sum(item for item in biases if item is not None)
        product = site.op("aten::linear", x, self.inputs[index], bias)
        return plus(site, product, site.op("aten::linear", h, self.hidden[index], None))

    def of_input(self, site: Site, index: int, x: Value) -> Value:
        """A gate's product with the input."""
        result: Value = site.op("aten::linear", x, self.inputs[index], self.input_biases[index])
        return result

    def of_hidden(self, site: Site, index: int, h: Value) -> Value:
        """A gate's product with the hidden state."""
        result: Value = site.op("aten::linear", h, self.hidden[index], self.hidden_biases[index])
        return result


@legalizes("unroll_lstm", level="full")
def unroll_lstm(site: Site) -> tuple[Value, ...]:
    """The steps of the example's length one after the other, with a linear layer for each gate."""
    return _unrolled(site, site.items("hx"), 4, _lstm_cell)


@legalizes("unroll_gru", level="full")
def unroll_gru(site: Site) -> tuple[Value, ...]:
    """The steps of the example's length one after the other, with a linear layer for each gate."""
    return _unrolled(site, [site.arg("hx")], 3, _gru_cell)


def _lstm_cell(site: Site, weights: _Weights, x: Value, state: _State) -> _State:
    h, c = state
    gates = [weights.gate(site, index, x, h) for index in range(4)]
    enter, forget, leave = (site.op("aten::sigmoid", gates[index]) for index in (0, 1, 3))
    candidate = site.op("aten::tanh", gates[2])
    c = plus(site, times(site, forget, c), times(site, enter, candidate))
    return [times(site, leave, site.op("aten::tanh", c)), c]


def _gru_cell(site: Site, weights: _Weights, x: Value, state: _State) -> _State:
    (h,) = state
    reset, update = (site.op("aten::sigmoid", weights.gate(site, index, x, h)) for index in (0, 1))
    remembered = times(site, reset, weights.of_hidden(site, 2, h))
    candidate = site.op("aten::tanh", plus(site, weights.of_input(site, 2, x), remembered))
    return [plus(site, candidate, times(site, update, site.op("aten::sub.Tensor", h, candidate, 1)))]


def _unrolled(site: Site, states: Sequence[Value], gates: int, cell: _Cell) -> tuple[Value, ...]:
    sizes = site.sizes("input")
    layers, directions = site.const("num_layers"), 2 if site.const("bidirectional") else 1
    if len(sizes) != 3:
        raise Refused("its input has no batch dimension")
    if site.const("train") and site.const("dropout"):
        raise Refused("it drops elements at random")
    time = 1 if site.const("batch_first") else 0
    steps, batch = sizes[time], sizes[1 - time]
    if steps * layers * directions > _MOST_STEPS:
        raise Refused(f"it has {steps * layers * directions} steps, and at most {_MOST_STEPS} are unrolled")
    weights = _weights(site, layers * directions, gates)
    x = site.arg("input")
    sequence = [reshaped(site, slice_of(site, x, time, step, step + 1), [batch, sizes[2]]) for step in range(steps)]
    last: list[_State] = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            start = [_initial(site, state, index, batch) for state in states]
            outputs.append(_run(site, cell, weights[index], sequence, start, direction == 1, last))
        sequence = [joined(site, list(parts), 1) for parts in zip(*outputs, strict=True)]
    features = weights[0].hidden[0].shape[1]
    return (
        _stacked(site, sequence, time, batch, features * directions),
        *(_stacked(site, [state[index] for state in last], 0, batch, features) for index in range(len(states))),
    )


def _run(
    site: Site,
    cell: _Cell,
    weights: _Weights,
    sequence: Sequence[Value],
    state: _State,
    is_reversed: bool,
    last: list[_State],
) -> list[Value]:
    """One layer in one direction: its output at each step, in the order of time; its last state goes to ``last``."""
    outputs = []
    for x in reversed(sequence) if is_reversed else sequence:
        state = cell(site, weights, x, state)
        outputs.append(state[0])
    last.append(state)
    return outputs[::-1] if is_reversed else outputs


def _initial(site: Site, state: Value, index: int, batch: int) -> Value:
    features = site.sizes(state)[2]
    return reshaped(site, slice_of(site, state, 0, index, index + 1), [batch, features])


def _stacked(site: Site, parts: Sequence[Value], dim: int, batch: int, features: int) -> Value:
    shape = [1, batch, features] if dim == 0 else [batch, 1, features]
    return joined(site, [reshaped(site, part, shape) for part in parts], dim)


def _weights(site: Site, count: int, gates: int) -> list[_Weights]:
    parameters = site.known(site.arg("params"), "params")
    each = 4 if site.const("has_biases") else 2
    if len(parameters) != count * each:
        raise Refused("it projects its hidden state")
    result = []
    for start in range(0, len(parameters), each):
        own = [list(item.chunk(gates)) for item in parameters[start : start + each]]
        nothing: list[torch.Tensor | None] = [None] * gates
        biases = [list[torch.Tensor | None](item) for item in own[2:]] or [nothing, nothing]
        result.append(_Weights(own[0], own[1], biases[0], biases[1]))
    return result
