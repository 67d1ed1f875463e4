"""Dispatching ``shaders/glsl/recurrent.comp``: steps of recurrent layers, both directions at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mobopt.runtimes.vulkan.engine.tensor import WORD_BYTES, DeviceTensor, aligned_channels
from mobopt.runtimes.vulkan.kernels.kernel_access import VECTOR, element_form, reading, spread, uses_texels, writing
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.recurrent_division import Division, RecurrentShape, divided
from mobopt.runtimes.vulkan.kernels.weight_packing import rounded_matrix
from mobopt.shaders.enumerations import Cell, LoadMode
from mobopt.shaders.push_constants import RecurrentPush

_RUN = 8
"""Units whose weights lie side by side."""
_LEAST_HALVED_BYTES = 320 * 1024
"""Of a direction's weights as floats. On an NVIDIA H200 layers took 1.3 times as long with 128 units of an LSTM in
halves, and .7 times with 160."""


@dataclass(frozen=True)
class LayerTensors:
    """What a layer reads and makes, of elements of 32 bits; rows start on vec4s."""

    gates: DeviceTensor
    """What the inputs add to the gates, with biases: (steps, rows, directions * gates * units rounded up to vec4s)."""
    start: DeviceTensor
    """States before the first step, (directions, rows, units)."""
    states: DeviceTensor
    """That are made, (steps, rows, directions, units)."""
    cells: DeviceTensor | None
    """Of an LSTM, (directions, rows, units); they are changed."""
    weights: DeviceTensor
    """From :func:`packed_weights`."""
    bias: DeviceTensor | None = None
    """What a GRU adds to the states' part of its new gate, (directions, units rounded up to vec4s)."""
    projection: DeviceTensor | None = None
    """Of the states of an LSTM, from :func:`packed_weights`."""
    unprojected: DeviceTensor | None = None
    """Of a step, with a projection: (1, rows, directions, units)."""


@replayable
def append_layer(plan: Plan, cell: Cell, tensors: LayerTensors) -> None:
    """Append all steps of all directions, in as few dispatches as is quickest."""
    steps, rows, directions, units = tensors.states.sizes
    inner = tensors.start.sizes[2]
    if tensors.projection is not None:
        _append_projected(plan, cell, tensors)
        return
    division = divided(
        plan.device, RecurrentShape(cell, steps, directions, rows, units, inner, _bytes(tensors.weights))
    )
    previous = tensors.start
    for first in range(0, steps, division.most_steps):
        at = _Steps(first, min(division.most_steps, steps - first), steps)
        _append(plan, division, tensors, at, previous, tensors.states)
        previous = _by_direction(tensors.states, at)


def _append_projected(plan: Plan, cell: Cell, tensors: LayerTensors) -> None:
    """Append all steps, each with a dispatch for the projection."""
    assert tensors.unprojected is not None and tensors.projection is not None
    steps, rows, directions, projected = tensors.states.sizes
    units = tensors.unprojected.sizes[3]
    made = divided(plan.device, RecurrentShape(cell, 1, directions, rows, units, projected, _bytes(tensors.weights)))
    projecting = divided(
        plan.device, RecurrentShape(Cell.PROJECTION, 1, directions, rows, projected, units, _bytes(tensors.projection))
    )
    previous = tensors.start
    for step in range(steps):
        at = _Steps(step, 1, steps)
        _append(plan, made, tensors, at, previous, tensors.unprojected)
        _append(plan, projecting, tensors, at, _by_direction(tensors.unprojected, _ONLY), tensors.states)
        previous = _by_direction(tensors.states, at)


@dataclass(frozen=True)
class _Steps:
    """Some of the steps of a layer; the second direction begins at the end."""

    first: int
    count: int
    all: int

    def of(self, direction: int, number: int) -> int:
        """Where in time one of them is."""
        at = self.first + number
        return at if direction == 0 else self.all - 1 - at


_ONLY = _Steps(0, 1, 1)


def _starts(tensor: DeviceTensor, direction_stride: int, at: _Steps) -> list[int]:
    """Where the two directions of what has steps as its first dimension begin."""
    return [tensor.offset + d * direction_stride + at.of(d, 0) * tensor.strides[0] for d in range(2)]


def _by_direction(states: DeviceTensor, at: _Steps) -> DeviceTensor:
    """States after the last of some steps, as (directions, rows, units)."""
    ends = [at.of(d, at.count - 1) * states.strides[0] for d in range(2)]
    _, rows, directions, units = states.sizes
    strides = (states.strides[2] + ends[1] - ends[0], states.strides[1], 1)
    return states.view((directions, rows, units), strides, states.offset + ends[0])


def _append(
    plan: Plan, division: Division, tensors: LayerTensors, at: _Steps, previous: DeviceTensor, states: DeviceTensor
) -> None:
    """Append one dispatch, of the steps ``at``."""
    shape = division.shape
    is_projection = shape.cell == Cell.PROJECTION
    gates = previous if is_projection else tensors.gates
    weights = tensors.projection if is_projection else tensors.weights
    assert weights is not None
    cells = states if tensors.cells is None or is_projection else tensors.cells
    reads = [
        (gates, LoadMode.SINGLES),
        (previous, LoadMode.VECTOR),
        (weights, LoadMode.VECTOR),
        (tensors.bias or gates, LoadMode.SINGLES),
    ]
    texels = uses_texels(plan.device, reads)
    bindings = [writing(states), writing(cells, reads=True)]
    bindings += [reading(tensor, mode, texels) for tensor, mode in reads]
    if texels:
        held = plan.empty((division.workgroups * division.states,), torch.float32)
        bindings += [writing(held, reads=True), reading(held, LoadMode.VECTOR, texels)]
    gate = aligned_channels(shape.units)
    plan.dispatch(
        f"recurrent{'_texels' if texels else ''}",
        bindings,
        spread(division.workgroups),
        [
            division.size,
            division.threads,
            shape.cell,
            shape.units,
            shape.inner,
            division.rows,
            division.passes,
            division.kept,
            division.holds,
            element_form(weights),
        ],
        RecurrentPush(
            rows=shape.rows,
            directions=shape.directions,
            steps=at.count,
            gates_of_units=gate,
            gates_start=_starts(gates, shape.cell.gates * gate, at),
            gates_row=gates.strides[1],
            gates_step=gates.strides[0],
            previous_start=[previous.offset + direction * previous.strides[0] for direction in range(2)],
            previous_row=previous.strides[1],
            states_start=_starts(states, states.strides[2], _ONLY if states is tensors.unprojected else at),
            states_row=states.strides[1],
            states_step=states.strides[0],
            cells_row=cells.strides[-2],
            cells_direction=cells.strides[0],
        ),
        iterations=division.iterations(at.count),
    )


def _bytes(weights: DeviceTensor) -> int:
    return weights.storage.elements.itemsize


def layer_weights(plan: Plan, matrices: Sequence[torch.Tensor], gates: int) -> DeviceTensor:
    """Weights of the states of each direction, as the shader reads them: in halves where the call's may be, a GPU reads
    them, and they are so many that reading them takes longer than taking halves apart."""
    elements = {plan.weight_elements(matrix) for matrix in matrices}
    is_long = matrices[0].numel() * WORD_BYTES >= _LEAST_HALVED_BYTES and not plan.device.is_cpu
    found = elements.pop() if is_long and len(elements) == 1 else torch.float32

    def pack() -> torch.Tensor:
        rounded = [rounded_matrix(matrix.detach().t(), found).t() for matrix in matrices]
        return packed_weights(rounded, gates).to(found)

    return plan.packed(matrices, ("states", gates, found), pack).of(torch.float32)


def packed_weights(matrices: Sequence[torch.Tensor], gates: int) -> torch.Tensor:
    """Weights of the states, (gates * units, inner) for each direction, as the shader reads them: (directions, runs of
    8 units, quads of inner, gates, 8, 4), with zeros for units and states that there aren't."""
    units, inner = matrices[0].shape[0] // gates, matrices[0].shape[1]
    room = torch.zeros(len(matrices), gates, -(-units // _RUN) * _RUN, aligned_channels(inner))
    for direction, matrix in enumerate(matrices):
        room[direction, :, :units, :inner] = matrix.float().reshape(gates, units, inner)
    runs = room.reshape(len(matrices), gates, -1, _RUN, room.shape[-1] // VECTOR, VECTOR)
    return runs.permute(0, 2, 4, 1, 3, 5).contiguous()


def padded_gates(matrices: Sequence[torch.Tensor], gates: int) -> torch.Tensor:
    """Rows of weights or biases, (gates * units, ...) for each direction, each gate's in whole vec4s, with zeros."""
    units = matrices[0].shape[0] // gates
    rest = matrices[0].shape[1:]
    room = torch.zeros(len(matrices), gates, aligned_channels(units), *rest)
    for direction, matrix in enumerate(matrices):
        room[direction, :, :units] = matrix.float().reshape(gates, units, *rest)
    return room.reshape(math.prod(room.shape[:3]), *rest)
