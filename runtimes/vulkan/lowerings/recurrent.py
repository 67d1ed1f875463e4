"""LSTM, GRU and plain recurrent layers: a product for the inputs of all steps, then these in as few dispatches as is
quickest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mobopt.ir import Node, Value
from mobopt.ir.rewriting import passing_call
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.copies import copied, strided_copy
from mobopt.runtimes.vulkan.kernels.operand_rows import row_strides
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.recurrent_kernel import LayerTensors, append_layer, layer_weights, padded_gates
from mobopt.runtimes.vulkan.kernels.views import reshaped, sliced, swapped, unsqueezed, without_dims
from mobopt.runtimes.vulkan.lowerings.checks import check_floating
from mobopt.runtimes.vulkan.lowerings.registry import lower, lowers
from mobopt.shaders.enumerations import Cell

_CELL_PARAMETERS = ("w_ih", "w_hh", "b_ih", "b_hh")


@dataclass(frozen=True)
class _Parameters:
    """Constants of one direction of a layer."""

    inputs: torch.Tensor
    states: torch.Tensor
    input_bias: torch.Tensor | None = None
    state_bias: torch.Tensor | None = None
    projection: torch.Tensor | None = None


def _added_biases(cell: Cell, of_inputs: torch.Tensor, of_states: torch.Tensor) -> torch.Tensor:
    """What is added to the inputs' part of the gates: not that of a GRU's new gate for the states."""
    added = of_states.float().clone()
    if cell == Cell.GRU:
        added[2 * len(added) // 3 :] = 0
    return of_inputs.float() + added


def _check(call: Node, parameters: Sequence[Value | None]) -> str | None:
    reason = check_floating(call)
    if reason is None and any(value is not None and value.elements is None for value in parameters):
        return "weights are computed; only constants are packed"
    return reason


def check_layers(call: Node) -> str | None:
    """Weights must be constants, and nothing dropped."""
    if call["train"] and call["dropout"] > 0 and call["num_layers"] > 1:
        return "dropout draws random numbers; trace or script the model after eval()"
    return _check(call, call["params"])


def check_cell(call: Node) -> str | None:
    """Weights must be constants, with both biases or none."""
    if (call["b_ih"] is None) != (call["b_hh"] is None):
        return "one of two biases is missing"
    return _check(call, [call[name] for name in _CELL_PARAMETERS])


@lowers("aten::lstm.input", check=check_layers)
def lstm(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """Outputs (batch, time, units), and the states and cells at the end (layers, batch, units)."""
    states, cells = (plan.tensor(value) for value in call["hx"])
    return _layers(plan, call, Cell.LSTM, states, cells)


@lowers("aten::gru.input", check=check_layers)
def gru(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """As an LSTM, without cells."""
    return _layers(plan, call, Cell.GRU, plan.tensor(call["hx"]), None)


@lowers("aten::rnn_tanh.input", check=check_layers)
def rnn_tanh(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """``tanh`` of a sum."""
    return _layers(plan, call, Cell.RNN_TANH, plan.tensor(call["hx"]), None)


@lowers("aten::rnn_relu.input", check=check_layers)
def rnn_relu(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """``relu`` of a sum."""
    return _layers(plan, call, Cell.RNN_RELU, plan.tensor(call["hx"]), None)


@lowers("aten::lstm_cell", check=check_cell)
def lstm_cell(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """One step: states and cells."""
    states, cells = (plan.tensor(value) for value in call["hx"])
    return _cell(plan, call, Cell.LSTM, states, cells)


@lowers("aten::gru_cell", check=check_cell)
def gru_cell(plan: Plan, call: Node) -> DeviceTensor:
    """One step."""
    return _cell(plan, call, Cell.GRU, plan.tensor(call["hx"]), None)[0]


@lowers("aten::rnn_tanh_cell", check=check_cell)
def rnn_tanh_cell(plan: Plan, call: Node) -> DeviceTensor:
    """One step."""
    return _cell(plan, call, Cell.RNN_TANH, plan.tensor(call["hx"]), None)[0]


@lowers("aten::rnn_relu_cell", check=check_cell)
def rnn_relu_cell(plan: Plan, call: Node) -> DeviceTensor:
    """One step."""
    return _cell(plan, call, Cell.RNN_RELU, plan.tensor(call["hx"]), None)[0]


def _cell(
    plan: Plan, call: Node, cell: Cell, states: DeviceTensor, cells: DeviceTensor | None
) -> tuple[DeviceTensor, ...]:
    """A step (batch, units), as a layer of one step: its states and cells."""
    biases = (None if call[name] is None else call[name].constant for name in ("b_ih", "b_hh"))
    parameters = _Parameters(call["w_ih"].constant, call["w_hh"].constant, *biases)
    x = unsqueezed(plan.tensor(call["input"]), 0)
    old = None if cells is None else unsqueezed(cells, 0)
    _, *ends = _layer(plan, cell, x, 0, [parameters], unsqueezed(states, 0), old)
    return tuple(without_dims(end, (0,)) for end in ends)


def _parameters(call: Node, directions: int) -> list[list[_Parameters]]:
    """Of each layer, of each direction."""
    values = [value.constant for value in call["params"]]
    each = len(values) // (call["num_layers"] * directions)
    found = []
    for first in range(0, len(values), each):
        inputs, states, *rest = values[first : first + each]
        biases = (rest.pop(0), rest.pop(0)) if call["has_biases"] else (None, None)
        found.append(_Parameters(inputs, states, *biases, *rest))
    return [found[first : first + directions] for first in range(0, len(found), directions)]


def _layers(
    plan: Plan, call: Node, cell: Cell, states: DeviceTensor, cells: DeviceTensor | None
) -> tuple[DeviceTensor, ...]:
    """All layers: the outputs of the last, and the states (and cells) of each at the end."""
    directions = 2 if call["bidirectional"] else 1
    time = 1 if call["batch_first"] else 0
    x = plan.tensor(call["input"])
    ends = [plan.empty(value.sizes) for value in call.outputs[1:]]
    for number, parameters in enumerate(_parameters(call, directions)):
        layer = slice(number * directions, (number + 1) * directions)
        old = None if cells is None else _part(cells, layer)
        x, *new = _layer(plan, cell, x, time, parameters, _part(states, layer), old)
        for end, made in zip(ends, new, strict=True):
            strided_copy(plan, made, _part(end, layer))
    return (x, *ends)


def _part(tensor: DeviceTensor, layer: slice) -> DeviceTensor:
    return sliced(tensor, 0, layer.start, layer.stop - layer.start)


def _layer(
    plan: Plan,
    cell: Cell,
    x: DeviceTensor,
    time: int,
    parameters: Sequence[_Parameters],
    states: DeviceTensor,
    cells: DeviceTensor | None,
) -> tuple[DeviceTensor, ...]:
    """One layer, of which dimension ``time`` of ``x``, the first or second, are the steps; states and cells are
    (directions, batch, units). Returns outputs, and states (and cells) at the end."""
    directions, batch, size = states.sizes
    steps = x.sizes[time]
    gates = _in_time(_input_gates(plan, cell, x, parameters), time)
    made = plan.empty((*x.sizes[:2], directions, size), strides=row_strides((*x.sizes[:2], directions, size)))
    outputs = _in_time(made, time)
    start = _rows_copied(plan, states)
    kept = None if cells is None else _rows_copied(plan, cells)
    weights = layer_weights(plan, [each.states for each in parameters], cell.gates)
    bias = _candidate_bias(plan, parameters) if cell == Cell.GRU else None
    projection, unprojected = _projection(plan, parameters, batch)
    append_layer(plan, cell, LayerTensors(gates, start, outputs, kept, weights, bias, projection, unprojected))
    ends = outputs.view(
        (directions, batch, size),
        (_end_stride(outputs, steps, directions), outputs.strides[1], 1),
        outputs.offset + (steps - 1) * outputs.strides[0],
    )
    result = reshaped(plan, made, (*x.sizes[:2], directions * size))
    return (result, ends) if kept is None else (result, ends, kept)


def _end_stride(outputs: DeviceTensor, steps: int, directions: int) -> int:
    """From the end of the first direction, which is the last step, to that of the second, the first step."""
    return outputs.strides[2] - (steps - 1) * outputs.strides[0] if directions == 2 else 0


def _in_time(tensor: DeviceTensor, time: int) -> DeviceTensor:
    """A view whose first dimension are the steps, and whose second is the batch."""
    return swapped(tensor, 0, time)


def _rows_copied(plan: Plan, states: DeviceTensor) -> DeviceTensor:
    """A copy as float32 in rows of whole vec4s."""
    return copied(plan, states, row_strides(states.sizes), torch.float32)


def _input_gates(plan: Plan, cell: Cell, x: DeviceTensor, parameters: Sequence[_Parameters]) -> DeviceTensor:
    """What the inputs of all steps add to the gates of all directions: one linear layer, each gate in whole vec4s."""
    sources = [each.inputs for each in parameters]
    matrix = plan.constants.derived(sources, ("gates", cell), lambda: padded_gates(sources, cell.gates))
    biases = [bias for each in parameters for bias in (each.input_bias, each.state_bias) if bias is not None]
    bias = None
    if biases:
        added = (_added_biases(cell, *pair) for pair in zip(biases[::2], biases[1::2], strict=True))
        bias = plan.constants.derived(biases, ("gates", cell), lambda: padded_gates(list(added), cell.gates))
    source, output = (Value.of_tensor(torch.float32, sizes) for sizes in (x.sizes, (*x.sizes[:2], matrix.shape[0])))
    plan.place(source, x)
    given = (source, Value.of_elements(matrix), None if bias is None else Value.of_elements(bias))
    with passing_call("aten::linear", given, (output,)) as call:
        made = lower(plan, call)
    assert isinstance(made, DeviceTensor)
    return made


def _candidate_bias(plan: Plan, parameters: Sequence[_Parameters]) -> DeviceTensor:
    """What a GRU adds to the states' part of its new gate, for each direction."""
    units = parameters[0].states.shape[0] // 3

    def pack() -> torch.Tensor:
        zeros = torch.zeros(units)
        return padded_gates(
            [zeros if each.state_bias is None else each.state_bias[2 * units :] for each in parameters], 1
        )

    sources = [each.states if each.state_bias is None else each.state_bias for each in parameters]
    return plan.packed(sources, ("new gate",), pack)


def _projection(
    plan: Plan, parameters: Sequence[_Parameters], batch: int
) -> tuple[DeviceTensor | None, DeviceTensor | None]:
    """The matrices that make states of an LSTM smaller, if it has any, and room for a step's states before them."""
    matrices = [each.projection for each in parameters if each.projection is not None]
    if not matrices:
        return None, None
    weights = layer_weights(plan, matrices, 1)
    sizes = (1, batch, len(matrices), matrices[0].shape[1])
    return weights, plan.empty(sizes, torch.float32, row_strides(sizes))
