"""How the steps of a recurrent layer are divided among dispatches, workgroups and invocations.

A workgroup that has all units of some rows goes on from step to step by itself, without other dispatches; but it reads
all weights in each step, as far as they don't stay in its registers. So layers with many units take a dispatch a step,
in which many workgroups share the units. The costs are fitted by hand to some hundred timings of layers with 24 to 1024
units on an NVIDIA H200 and on lavapipe of Mesa 22.3 and 25.0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import MAX_ITERATIONS, USUAL_ITERATIONS
from mobopt.runtimes.vulkan.engine.tensor import WORD_BYTES
from mobopt.runtimes.vulkan.kernels.costs import CORE_REGISTERS
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, cpu_costs, device_costs
from mobopt.runtimes.vulkan.kernels.kernel_access import VECTOR
from mobopt.shaders.enumerations import Cell

_SUBGROUP = 32
_MOST_INVOCATIONS = 1024
_STEP_INVOCATIONS, _STEP_THREADS = 256, 32
_MOST_ROWS = 4
_THREADS = 4
"""That share a walk where a workgroup has all units: with more of them, adding up their sums takes longer."""
_OTHER_REGISTERS = 64
"""Of an invocation, besides those in which it keeps weights."""

_MOST_ITERATIONS = 4 * USUAL_ITERATIONS
_MOST_QUICK_INVOCATIONS = 640
"""Of a workgroup that has all units: larger ones took twice as long to read weights, as they have few registers."""
_HELD_STEP_CYCLES = 800
"""Of a step that isn't a dispatch, besides reading weights."""
_DISPATCHES_OF_STEP = 2.0
"""What a step takes that is a dispatch, in dispatches that wait for another: its reads begin after that one, too."""

_CPU_INVOCATIONS = 8
_CPU_FETCH, _CPU_MULTIPLY = 5.0, 1.6
"""Nanoseconds that vec4s of 8 invocations take to be loaded, and to be multiplied and added."""
_CPU_DISPATCH = 45_000.0
"""Nanoseconds that a step takes besides if it is a dispatch."""


@dataclass(frozen=True)
class RecurrentShape:
    """What a layer computes, with all of its directions."""

    cell: Cell
    steps: int
    directions: int
    rows: int
    units: int
    inner: int
    """States before."""
    weight_bytes: int
    """Of a weight."""

    @property
    def quads(self) -> int:
        """vec4s of the states before."""
        return -(-self.inner // VECTOR)


@dataclass(frozen=True)
class Division:
    """Dispatches of ``recurrent.comp``, and what each of their workgroups has."""

    shape: RecurrentShape
    size: int
    """Invocations of a workgroup."""
    threads: int
    """Invocations that share the walk of a unit over the states before."""
    rows: int
    passes: int
    """Over its units."""
    kept: int = 0
    """vec4s of states whose weights an invocation keeps in registers; so many every thread must have."""
    holds: bool = True
    """Whether a workgroup reads the states before into a place of its own; it must if it goes on."""
    most_iterations: int = _MOST_ITERATIONS
    """Of a dispatch with several steps."""

    @property
    def units(self) -> int:
        """Of a workgroup."""
        return min(self.size // self.threads * self.passes, self.shape.units)

    @property
    def goes_on(self) -> bool:
        """Whether a dispatch may have several steps: its workgroups make all that the next one begins with."""
        return self.units == self.shape.units == self.shape.inner

    @property
    def workgroups(self) -> int:
        """Of a dispatch."""
        shape = self.shape
        return shape.directions * -(-shape.rows // self.rows) * -(-shape.units // self.units)

    @property
    def states(self) -> int:
        """Floats of a workgroup in which it holds states, and those of the step before."""
        planes = 2 if self.goes_on else 1
        return self.rows * VECTOR * self.shape.quads * planes if self.holds else VECTOR

    @property
    def shared_bytes(self) -> int:
        """Of a workgroup's shared memory."""
        sums = self.size * self.rows * VECTOR if self.threads > 1 else 1
        return (self.states + sums) * WORD_BYTES

    def iterations(self, steps: int) -> int:
        """An upper bound of how often an invocation goes round loops in ``steps`` steps."""
        gates, finished = self.shape.cell.gates, -(-self.rows // self.threads)
        turn = 1 if self.rows == 1 else 1 + self.rows
        walk = -(-self.shape.quads // self.threads) * turn + self.rows * (gates + 1)
        finish = finished * (3 + self.threads + 3 * gates)
        start = 6 * -(-self.rows * self.shape.quads // self.size) if self.holds else 0
        return start + self.kept * (1 + gates) + finish + steps * (1 + self.passes * (1 + walk + finish))

    @property
    def most_steps(self) -> int:
        """Of a dispatch, by the bound of its loops."""
        if not self.goes_on:
            return 1
        start = self.iterations(0)
        return max((self.most_iterations - start) // (self.iterations(1) - start), 1)


@lru_cache(maxsize=1024)
def divided(device: DeviceInfo, shape: RecurrentShape) -> Division:
    """The quickest division, as far as the costs tell."""
    by_steps = _cpu_steps(device, shape) if device.is_cpu else _gpu_steps(device, shape)
    if shape.steps == 1 or shape.cell == Cell.PROJECTION:
        return by_steps
    whole = _cpu_whole(device, shape) if device.is_cpu else _gpu_whole(device, shape)
    if whole.iterations(1) > whole.most_iterations or not _fits(device, whole):
        return by_steps
    cost = _cpu_cost if device.is_cpu else _gpu_cost
    return whole if cost(device, whole) <= cost(device, by_steps) else by_steps


def _fits(device: DeviceInfo, division: Division) -> bool:
    """Whether there is as much shared memory; on CPU drivers states lie elsewhere."""
    return device.is_cpu or division.shared_bytes <= device.shared_memory_bytes


def _gpu_steps(device: DeviceInfo, shape: RecurrentShape) -> Division:
    """Units divided among many workgroups, as a step is a dispatch."""
    size = device.workgroup(_STEP_INVOCATIONS)
    division = Division(shape, size, 1, min(shape.rows, _MOST_ROWS), 1)
    while 2 * division.threads <= min(_STEP_THREADS, shape.quads, size):
        more = replace(division, threads=2 * division.threads)
        if more.workgroups > 2 * core_count(device) and division.iterations(1) <= USUAL_ITERATIONS:
            break
        division = more
    if not _fits(device, replace(division, rows=1)):
        division = replace(division, holds=False)
    return _fitting(device, division)


def _gpu_whole(device: DeviceInfo, shape: RecurrentShape) -> Division:
    """Workgroups that have all units."""
    most = device.workgroup(_MOST_INVOCATIONS)
    lanes = min(-(-shape.units // _SUBGROUP) * _SUBGROUP, most)
    threads = 1
    while 2 * threads <= min(_THREADS, shape.quads, most // lanes):
        threads *= 2
    passes = -(-shape.units // lanes)
    registers = min(device_costs(device).kept_registers, CORE_REGISTERS // (lanes * threads) - _OTHER_REGISTERS)
    kept = min(shape.quads // threads, max(registers, 0) // (VECTOR * shape.cell.gates)) if passes == 1 else 0
    rows = 1
    while not kept and rows < _MOST_ROWS and shape.directions * -(-shape.rows // rows) > 2 * core_count(device):
        rows *= 2
    return _fitting(device, Division(shape, lanes * threads, threads, rows, passes, kept))


def _fitting(device: DeviceInfo, division: Division) -> Division:
    """With fewer rows, if there isn't as much shared memory."""
    while division.rows > 1 and not _fits(device, division):
        division = replace(division, rows=division.rows // 2)
    return division


def _cpu_steps(device: DeviceInfo, shape: RecurrentShape) -> Division:
    """As :func:`_gpu_steps`, of twice as many workgroups as there are cores."""
    rows = _cpu_rows(device, shape)
    groups = shape.directions * -(-shape.rows // rows)
    blocks = max(-(-2 * cpu_costs(device).threads // groups), 1)
    passes = -(-shape.units // (_CPU_INVOCATIONS * blocks))
    division = Division(shape, _CPU_INVOCATIONS, 1, rows, passes)
    while division.passes > 1 and division.iterations(1) > USUAL_ITERATIONS:
        division = replace(division, passes=-(-division.passes // 2))
    return division if division.iterations(1) <= _MOST_ITERATIONS else replace(division, holds=False)


def _cpu_whole(device: DeviceInfo, shape: RecurrentShape) -> Division:
    """Workgroups that have all units, of one vector of invocations."""
    passes = -(-shape.units // _CPU_INVOCATIONS)
    rows = _cpu_rows(device, shape)
    return Division(shape, _CPU_INVOCATIONS, 1, rows, passes, most_iterations=MAX_ITERATIONS)


def _cpu_rows(device: DeviceInfo, shape: RecurrentShape) -> int:
    """Of a workgroup: as many as share a weight that is loaded, but every core wants some."""
    rows = min(_MOST_ROWS, -(-shape.rows * shape.directions // cpu_costs(device).threads), shape.rows)
    return rows if shape.quads * (1 + rows) <= USUAL_ITERATIONS else 1


def _gpu_cost(device: DeviceInfo, division: Division) -> float:
    """Nanoseconds of a step."""
    shape, costs = division.shape, device_costs(device)
    kept = division.kept * division.size
    vectors = max(shape.cell.gates * shape.quads * division.units - kept * shape.cell.gates, 0)
    turns = -(-division.workgroups // core_count(device))
    cycles = turns * vectors * VECTOR * shape.weight_bytes / costs.lone_read_bytes_per_cycle
    if division.goes_on:
        cycles *= 2 if division.size > _MOST_QUICK_INVOCATIONS else 1
        return (cycles + _HELD_STEP_CYCLES) / costs.cycles_per_nanosecond
    return cycles / costs.cycles_per_nanosecond + _DISPATCHES_OF_STEP * costs.second_dispatch_nanoseconds


def _cpu_cost(device: DeviceInfo, division: Division) -> float:
    """Nanoseconds of a step."""
    shape = division.shape
    a_quad = shape.cell.gates * _CPU_FETCH + division.rows * (_CPU_FETCH + shape.cell.gates * _CPU_MULTIPLY)
    of_group = division.passes * shape.quads * a_quad
    turns = -(-division.workgroups // cpu_costs(device).threads)
    return turns * of_group + (0.0 if division.goes_on else _CPU_DISPATCH)
