"""Two layers of a few rows in one dispatch: a squeeze-and-excitation's, or those of a small head.

Each workgroup computes all of the first layer, and from it its own columns of the second one. So the first layer's
weights are read by every workgroup, which a dispatch that isn't needed pays for where they are few. The compiler's
``fusion_row_layers.py`` finds such layers; the shader is ``shaders/glsl/product_row_layers.comp``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS, Binding, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.activation import IDENTITY, Activation
from mobopt.runtimes.vulkan.kernels.costs import DeviceCosts
from mobopt.runtimes.vulkan.kernels.device_costs import ahead_workgroups, core_count, device_costs
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.gpu_kernels import KEPT_CHOICES, predicted_nanoseconds
from mobopt.runtimes.vulkan.kernels.kernel_access import element_form
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.product import epilogue_constants
from mobopt.runtimes.vulkan.kernels.product_kernels import use_shared_memory
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.row_kernels import MOST_ROWS
from mobopt.runtimes.vulkan.kernels.weight_packing import Factors
from mobopt.shaders.push_constants import ProductPush

NO_ROW_LAYERS = "no-row-layers"
"""The switch by which each layer has a dispatch of its own."""
MOST_ADDENDS = 2048
"""Lines that are added up to a row."""
_BUFFERS = 7
_COLUMNS = (16, 8, 32)
_INVOCATIONS = (128, 256, 512)
"""Of a workgroup; every Vulkan device must have the first."""
_MOST_STEPS = 4
"""vec4s of the first layer's inner dimension whose weights an invocation holds at a time: 64 registers."""
_MOST_STEPS_OF_ROWS = 2
"""The same of several rows, whose values and sums take registers as well."""
_STEPS_OF_SECOND = 1
"""The same of the second layer, whose first weights it holds beside those."""
_WARP_BYTES = 512
"""Of 32 vec4s, for which costs are."""


@dataclass(frozen=True)
class RowLayersShape:
    """Sizes of two layers; all but the rows count vec4s."""

    rows: int
    inner: int
    middle: int
    """Columns of the first layer, which the second one adds up."""
    columns: int
    addends: int = 1
    """Lines of the input that are added up to a row."""

    @staticmethod
    def of(rows: int, inner: int, middle: int, columns: int, addends: int = 1) -> RowLayersShape:
        """The shape of layers with so many elements."""
        return RowLayersShape(rows, -(-inner // 4), -(-middle // 4), -(-columns // 4), addends)


@dataclass(frozen=True)
class Sharing:
    """How invocations share a layer."""

    columns: int
    """vec4s of columns, an invocation of a team each."""
    teams: int
    """Invocations that share an element: a power of two."""
    steps: int
    """vec4s of the inner dimension that an invocation reads at a time: a power of two."""

    @staticmethod
    def of(inner: int, columns: int, invocations: int, most_steps: int) -> Sharing:
        """As few teams as can read all of the inner dimension at once, or as many as there are invocations for."""
        most = 1 << ((invocations // columns).bit_length() - 1)
        teams = min(_power_of_two(-(-inner // most_steps)), most)
        return Sharing(columns, teams, min(_power_of_two(-(-inner // teams)), most_steps))

    def turns(self, inner: int) -> int:
        """How often an invocation reads."""
        return -(-inner // (self.teams * self.steps))


def _power_of_two(least: int) -> int:
    return 1 << (max(least, 1) - 1).bit_length()


@dataclass(frozen=True)
class RowLayersKernel:
    """``product_row_layers.comp``."""

    rows: int
    invocations: int
    first: Sharing
    second: Sharing

    def shared_bytes(self, shape: RowLayersShape) -> int:
        """Shared memory of a workgroup: the teams' sums, what the first layer makes, and rows that are added up."""
        added = shape.inner if shape.addends > 1 else 0
        return 16 * self.rows * (self.invocations + self.first.columns + added)

    def summing(self, shape: RowLayersShape) -> int:
        """Invocations that share a vec4 of the lines that are added up."""
        return 1 << ((self.invocations // shape.inner).bit_length() - 1)

    def addend_constants(self, shape: RowLayersShape) -> tuple[int, int, int]:
        """Specialization constants from 27 on."""
        return (1, 1, 1) if shape.addends == 1 else (shape.addends, shape.inner, self.summing(shape))

    @property
    def constants(self) -> tuple[int, ...]:
        """Specialization constants from 12 on."""
        shares = (number for each in (self.first, self.second) for number in (each.columns, each.teams, each.steps))
        return self.rows, self.invocations, *shares

    def groups(self, shape: RowLayersShape) -> int:
        """Workgroups of a dispatch."""
        return -(-shape.columns // self.second.columns)

    def iterations(self, shape: RowLayersShape) -> int:
        """How often an invocation goes round its loops: it reads, and adds up, twice, after adding up lines."""
        teams = self.first.teams.bit_length() + self.second.teams.bit_length()
        lines = 0
        if shape.addends > 1:
            lines = -(-shape.addends // self.summing(shape)) + self.summing(shape).bit_length()
        return self.first.turns(shape.inner) + self.second.turns(shape.middle) + teams + lines

    def fits(self, device: DeviceInfo, shape: RowLayersShape) -> bool:
        """Whether the device's limits, and those of loops, allow it."""
        limits = device.limits
        invocations = min(limits.max_compute_work_group_invocations, limits.max_compute_work_group_size[0])
        return (
            self.invocations <= invocations
            and (shape.addends == 1 or shape.inner <= self.invocations)
            and self.shared_bytes(shape) <= device.shared_memory_bytes
            and self.groups(shape) <= limits.max_compute_work_group_count[0]
            and self.iterations(shape) <= USUAL_ITERATIONS
        )


def row_layers_kernels(device: DeviceInfo, shape: RowLayersShape) -> Iterator[RowLayersKernel]:
    """Every such kernel that can compute two layers on a device; none where the first one is too wide."""
    if not 0 < shape.rows <= MOST_ROWS or 0 in (shape.inner, shape.middle, shape.columns):
        return
    if device.limits.max_storage_buffers < _BUFFERS:
        return
    rows = _power_of_two(shape.rows)
    steps = _MOST_STEPS if rows == 1 else _MOST_STEPS_OF_ROWS
    for columns in _COLUMNS:
        for invocations in _INVOCATIONS:
            if shape.middle <= invocations:
                first = Sharing.of(shape.inner, shape.middle, invocations, steps)
                second = Sharing.of(shape.middle, columns, invocations, _STEPS_OF_SECOND)
                kernel = RowLayersKernel(rows, invocations, first, second)
                if kernel.fits(device, shape):
                    yield kernel


def row_layers_nanoseconds(
    kernel: RowLayersKernel, shape: RowLayersShape, costs: DeviceCosts, cores: int, itemsize: int
) -> float:
    """What two layers take, apart from what every dispatch does. That weights may be read while others still compute
    isn't counted. The second layer's are read as those of other products of few rows; see ``row_nanoseconds``.

    Args:
        kernel: of the layers.
        shape: their sizes.
        costs: of the device.
        cores: of the device.
        itemsize: bytes of a weight.
    """
    groups = kernel.groups(shape)
    queue, busy = -(-groups // cores), min(groups, cores)
    rate = min(costs.lone_read_bytes_per_cycle, _WARP_BYTES / costs.fetch_cycles * cores / busy)
    own_columns = kernel.second.columns + costs.row_gap
    reads = 16 * itemsize * shape.inner * shape.middle / rate + shape.middle * own_columns / 8 * costs.fetch_cycles
    turns = kernel.first.turns(shape.inner) + kernel.second.turns(shape.middle)
    stages = (kernel.first.teams.bit_length() + kernel.second.teams.bit_length()) * kernel.rows
    waits = turns * costs.row_turn_cycles + stages * costs.row_stage_cycles
    return queue * (reads + waits) / costs.cycles_per_nanosecond


@lru_cache(maxsize=KEPT_CHOICES)
def _choose(
    device: DeviceInfo, costs: DeviceCosts, shape: RowLayersShape, itemsize: int
) -> tuple[RowLayersKernel, float] | None:
    """The kernel that should take the least time, and its time."""
    cores = core_count(device)
    kernels = row_layers_kernels(device, shape)
    timed = ((kernel, row_layers_nanoseconds(kernel, shape, costs, cores, itemsize)) for kernel in kernels)
    return min(timed, key=lambda each: each[1], default=None)


def adds_lines(device: DeviceInfo, inner: int, middle: int, columns: int) -> bool:
    """Whether some kernel of two layers can add up as many lines as there may be to each row."""
    shape = RowLayersShape.of(MOST_ROWS, inner, middle, columns, MOST_ADDENDS)
    return any(True for _ in row_layers_kernels(device, shape))


def most_joined_rows(device: DeviceInfo, inner: int, middle: int, columns: int, are_halves: bool) -> int:
    """Up to how many rows two layers are worth one dispatch; 0 if they never are.

    Args:
        device: where they run.
        inner: elements of a row.
        middle: columns of the first layer.
        columns: of the second one.
        are_halves: whether weights may lie as halves.
    """
    if NO_ROW_LAYERS in device.switches or not use_shared_memory(device):
        return 0
    counts = range(1, MOST_ROWS + 1)
    return len([*takewhile(lambda rows: _pays(device, (rows, inner, middle, columns), are_halves), counts)])


def _pays(device: DeviceInfo, sizes: tuple[int, int, int, int], are_halves: bool) -> bool:
    """Whether one dispatch takes less time than the second layer by itself and a dispatch. What the first one's kernel
    takes, where each weight is read once, is left out: it is the margin for what the costs don't know."""
    costs = device_costs(device)
    found = _choose(device, costs, RowLayersShape.of(*sizes), 2 if are_halves else 4)
    if found is None:
        return False
    rows, _, middle, columns = sizes
    wide, run = -(-columns // 4), 4 if middle % 8 or columns % 8 else 8
    second = ProductShape(rows, -(-middle // 4), wide, wide, is_plain=True)
    second = replace(second, half_run=run) if are_halves else replace(second, float_run=run)
    return found[1] < predicted_nanoseconds(device, second) + costs.second_dispatch_nanoseconds


@dataclass(frozen=True, eq=False)
class RowLayersOperands:
    """The tensors of two layers; those of rows are (1, rows, columns) with dense rows that start on vec4s, biases
    dense vectors of float32 at offset 0, of whole vec4s."""

    first: Factors
    first_bias: DeviceTensor | None
    second: Factors
    second_bias: DeviceTensor | None
    residual: DeviceTensor | None
    result: DeviceTensor

    def bindings(self, source: DeviceTensor) -> tuple[Binding, ...]:
        """Bindings 0 to 6 of the kernel; a missing operand is bound to the first weights, and not read."""
        weights = self.first.tensor
        others = (bind(weights if tensor is None else tensor) for tensor in (self.second_bias, self.residual))
        more = bind(self.second.tensor), bind(weights if self.first_bias is None else self.first_bias)
        return bind(source), bind(weights), *others, bind(self.result, writes=True), *more

    def forms(self, source: DeviceTensor) -> int:
        """The last specialization constant of the kernel: the forms of tensors but the second weights."""
        tensors = (source, self.first.tensor, self.residual or self.result, self.result)
        return sum(element_form(tensor) << 3 * place for place, tensor in enumerate(tensors))


@replayable
def append_row_layers(
    plan: Plan,
    source: DeviceTensor,
    operands: RowLayersOperands,
    between: Epilogue,
    epilogue: Epilogue,
    *,
    middle: int,
    addends: int = 1,
    given: Activation = IDENTITY,
) -> None:
    """Append the dispatch of two layers.

    Args:
        plan: where it goes.
        source: what they read, (1, rows, columns) with dense rows that start on vec4s; of lines that are to be added
            up, the first of each row.
        operands: the tensors.
        between: what becomes of the first layer's sums; it has no residual.
        epilogue: what becomes of the second layer's.
        middle: elements of a row between them.
        addends: lines that are added up to a row, one after the other in whole vec4s.
        given: what becomes of the rows before.
    """
    result = operands.result
    _, rows, inner = source.sizes
    shape = RowLayersShape.of(rows, inner, middle, result.sizes[-1], addends)
    itemsize = operands.first.tensor.storage.elements.itemsize
    found = _choose(plan.device, device_costs(plan.device), shape, itemsize)
    assert found is not None and operands.first.pitch == shape.middle, "most_joined_rows() has said that there is one"
    kernel = found[0]
    groups = kernel.groups(shape)
    other = operands.residual or result
    push = ProductPush(
        rows=rows,
        inner=shape.inner,
        columns=shape.columns,
        input_offset=source.offset // 4,
        input_pitch=source.strides[1] // 4,
        weight_pitch=operands.second.pitch,
        out_offset=result.offset // 4,
        out_pitch=result.strides[1] // 4,
        residual_offset=other.offset // 4,
        residual_pitch=other.strides[1] // 4,
    )
    ends = epilogue_constants(epilogue, operands.second_bias is not None)
    reads_ahead = groups <= ahead_workgroups(plan.device)
    steps = between.before, between.after, given
    firsts, then, before = ((each.code, float(each.first), float(each.second)) for each in steps)
    plan.dispatch(
        "product_row_layers",
        operands.bindings(source),
        (groups, 1, 1),
        (
            *(*ends, 0, 0, inner % 4, 0, *kernel.constants, int(reads_ahead), middle % 4),
            *(int(operands.first_bias is not None), *firsts, int(element_form(operands.second.tensor))),
            *(*kernel.addend_constants(shape), *then, *before, operands.forms(source)),
        ),
        push,
        iterations=kernel.iterations(shape),
    )
