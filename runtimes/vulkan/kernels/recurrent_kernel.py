"""Dispatching ``shaders/glsl/recurrent.comp``: steps of recurrent layers, both directions at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, aligned_channels
from mobopt.runtimes.vulkan.kernels.device_costs import core_count
from mobopt.runtimes.vulkan.kernels.kernel_access import VECTOR, reading, spread, uses_texels, writing
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.shaders.enumerations import Cell, LoadMode
from mobopt.shaders.push_constants import RecurrentPush

_GROUP, _CPU_GROUP = 128, 8
_MOST_THREADS = 16


@dataclass(frozen=True)
class StepTensors:
    """What a step reads and makes, of elements of 32 bits; rows start on vec4s.

    States, old and new, are (rows, units) for each direction; those of one kind lie in one storage, and so do gates.
    """

    gates: Sequence[DeviceTensor]
    """What the inputs add to the gates, with biases: (rows, directions * gates * units rounded up to vec4s); none for a
    projection."""
    previous: Sequence[DeviceTensor]
    states: Sequence[DeviceTensor]
    cells: DeviceTensor | None
    """Of an LSTM, (directions, rows, units); they are changed."""
    weights: DeviceTensor
    """From :func:`packed_weights`."""
    bias: DeviceTensor | None = None
    """What a GRU adds to the states' part of its new gate, (directions, units rounded up to vec4s)."""


@replayable
def append_step(plan: Plan, cell: Cell, tensors: StepTensors) -> None:
    """Append one step of all directions."""
    rows, units = tensors.states[0].sizes
    directions, inner = len(tensors.states), tensors.previous[0].sizes[1]
    gates = tensors.gates or tensors.previous
    reads = [gates[0], tensors.previous[0], tensors.weights, tensors.bias or tensors.weights]
    texels = uses_texels(plan.device, [(tensor, LoadMode.VECTOR) for tensor in reads])
    items = directions * rows * -(-units // VECTOR)
    group, threads = _threads(plan.device, items, -(-inner // VECTOR))
    cells = tensors.states[0] if tensors.cells is None else tensors.cells
    cell_strides = (0, 0) if tensors.cells is None else cells.strides
    plan.dispatch(
        f"recurrent{'_texels' if texels else ''}",
        [
            writing(tensors.states[0]),
            writing(cells, reads=True),
            *(reading(tensor, LoadMode.VECTOR, texels) for tensor in reads),
        ],
        spread(-(-items * threads // group)),
        [group, threads, cell, units, inner],
        RecurrentPush(
            rows=rows,
            directions=directions,
            gates_start=_starts(gates),
            previous_start=_starts(tensors.previous),
            states_start=_starts(tensors.states),
            gates_row=gates[0].strides[0] // VECTOR,
            previous_row=tensors.previous[0].strides[0] // VECTOR,
            states_row=tensors.states[0].strides[0] // VECTOR,
            cells_row=cell_strides[1] // VECTOR,
            cells_direction=cell_strides[0] // VECTOR,
        ),
        iterations=-(-inner // (VECTOR * threads)) + 8 * cell.gates,
    )


def _starts(tensors: Sequence[DeviceTensor]) -> list[int]:
    """Where the tensors of up to two directions begin, in vec4s."""
    return [tensor.offset // VECTOR for tensor in tensors][:2] + [0] * (2 - len(tensors))


def _threads(device: DeviceInfo, items: int, quads: int) -> tuple[int, int]:
    """Invocations of a workgroup, and those of them that share an item: on GPUs as many as it takes to be busy."""
    if device.is_cpu:
        return _CPU_GROUP, 1
    threads = 1
    while threads < min(_MOST_THREADS, quads) and items * threads < core_count(device) * _GROUP:
        threads *= 2
    return _GROUP, threads


def packed_weights(matrices: Sequence[torch.Tensor], gates: int) -> torch.Tensor:
    """Weights of the states, (gates * units, inner) for each direction, as the shader reads them: (directions, inner,
    gates, units), both rounded up to vec4s with zeros."""
    units, inner = matrices[0].shape[0] // gates, matrices[0].shape[1]
    room = torch.zeros(len(matrices), aligned_channels(inner), gates, aligned_channels(units))
    for direction, matrix in enumerate(matrices):
        room[direction, :inner, :, :units] = matrix.float().reshape(gates, units, inner).permute(2, 0, 1)
    return room


def padded_gates(matrices: Sequence[torch.Tensor], gates: int) -> torch.Tensor:
    """Rows of weights or biases, (gates * units, ...) for each direction, each gate's in whole vec4s, with zeros."""
    units = matrices[0].shape[0] // gates
    rest = matrices[0].shape[1:]
    room = torch.zeros(len(matrices), gates, aligned_channels(units), *rest)
    for direction, matrix in enumerate(matrices):
        room[direction, :, :units] = matrix.float().reshape(gates, units, *rest)
    return room.reshape(math.prod(room.shape[:3]), *rest)
