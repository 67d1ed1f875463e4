"""Dispatching ``shaders/glsl/pointwise.comp``: strides of operands become a short loop nest over vec4s."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from mobopt.ir import Value
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.geometry import Iteration, expanded, merged
from mobopt.runtimes.vulkan.kernels.kernel_access import (
    VECTOR,
    is_vector_run,
    load_mode,
    local_size,
    owns_storage,
    placed,
    read_access,
    reading,
    spread,
    uses_texels,
    write_access,
    writing,
)
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.pointwise_program import (
    IDENTITY,
    MAX_LONG_STEPS,
    MAX_OPERANDS,
    MAX_PLAIN_STEPS,
    MAX_SPECIAL_STEPS,
    MAX_STEPS,
    PointwiseProgram,
    ProgramBuilder,
    Term,
)
from mobopt.shaders.enumerations import LoadMode
from mobopt.shaders.push_blocks import PUSH_CONSTANT_WORDS
from mobopt.shaders.push_constants import PointwisePush

_SHORT_STEPS = 2
_LONG_STEPS = (MAX_STEPS, MAX_STEPS, MAX_STEPS, MAX_SPECIAL_STEPS)
"""Of each level of functions."""
_MANY_ROWS = 8
_LEAST_ITEMS = 4096
"""Vec4s from which an invocation computes many rows: some workgroups are left for each core."""


def compute(
    plan: Plan,
    builder: ProgramBuilder,
    result: Term,
    sizes: Sequence[int],
    dtype: torch.dtype,
    elements: torch.dtype | None = None,
) -> DeviceTensor:
    """A new tensor of the given sizes that holds a builder's result; operands are broadcast to the sizes. ``elements``
    is the type of what it holds, if that isn't what stands for its dtype."""
    target = plan.empty(sizes, dtype, elements=elements)
    compute_into(plan, builder, result, target, fresh=True)
    return target


def compute_result(
    plan: Plan, builder: ProgramBuilder, result: Term, output: Value, strides: Sequence[int] | None = None
) -> DeviceTensor:
    """A builder's result as the output of a call, written where the plan wants it, else with ``strides``."""
    target = plan.result(output, strides)
    compute_into(plan, builder, result, target, fresh=owns_storage(target))
    return target


def compute_into(
    plan: Plan, builder: ProgramBuilder, result: Term, target: DeviceTensor, *, fresh: bool = False
) -> None:
    """Write a builder's result into ``target``; see :func:`run_program`."""
    program = builder.program(builder.converted_to(result, target.dtype, target.is_long))
    assert builder.fits, f"{plan.label}: {len(program.instructions)} instructions are more than the shader has"
    operands = [operand if isinstance(operand, DeviceTensor) else plan.tensor(operand) for operand in builder.operands]
    run_program(plan, program, operands, target, fresh=fresh)


@replayable
def run_program(
    plan: Plan,
    program: PointwiseProgram,
    operands: Sequence[DeviceTensor],
    target: DeviceTensor,
    *,
    fresh: bool = False,
) -> None:
    """Dispatch a program.

    Args:
        plan: where the dispatch goes.
        program: the instructions.
        operands: tensors that broadcast to the target's sizes.
        target: what is written; it may be one of the operands (the same view).
        fresh: whether nothing but the target lives in its storage, so that what pads its runs to vec4s may be
        overwritten.
    """
    if target.numel == 0:
        return
    if not program.is_long and any(tensor.is_long for tensor in (target, *operands)):
        program = replace(program, is_long=True)
    assert not program.is_long or len(program.instructions) <= MAX_LONG_STEPS, f"{plan.label}: too long for 64 bits"
    views = [expanded(operand, target.sizes) for operand in operands]
    # What pads a tensor may hold anything, also what a checked instruction refuses.
    nest = _loop_nest(target, views, fresh and not program.refuses)
    needed = nest.rank + (1 + len(views)) * (nest.rank + 1) + len(program.immediate_words)
    if needed > PUSH_CONSTANT_WORDS:
        _run_in_one_layout(plan, program, views, target, fresh)
        return
    _dispatch(plan, program, views, target, nest)


def _run_in_one_layout(
    plan: Plan, program: PointwiseProgram, operands: Sequence[DeviceTensor], target: DeviceTensor, fresh: bool
) -> None:
    """Copy operands, and the result if it must be, so that all dimensions become one."""
    result = target if fresh else plan.empty(target.sizes, target.dtype, elements=target.storage.elements)
    run_program(plan, program, [_laid_out_as(plan, operand, result) for operand in operands], result, fresh=True)
    if not fresh:
        run_program(plan, IDENTITY, [result], target)


def _laid_out_as(plan: Plan, operand: DeviceTensor, model: DeviceTensor) -> DeviceTensor:
    copy = plan.empty(operand.sizes, operand.dtype, model.strides, operand.storage.elements)
    run_program(plan, IDENTITY, [operand], copy, fresh=True)
    return copy


def _loop_nest(target: DeviceTensor, operands: Sequence[DeviceTensor], fresh: bool) -> Iteration:
    """The merged dimensions of target and operands; the last one is rounded up to whole vec4s where that is
    harmless."""
    nest = merged(target.sizes, [target.strides, *(operand.strides for operand in operands)])
    inner = nest.sizes[-1]
    rounded = -(-inner // VECTOR) * VECTOR
    if not fresh or rounded == inner or nest.strides[0][-1] != 1:
        return nest
    if any(stride < rounded for stride in nest.strides[0][:-1]):
        return nest
    extra = rounded - inner
    tensors = [target, *operands]
    if any(
        _end(tensor) + extra * strides[-1] > _capacity(tensor)
        for tensor, strides in zip(tensors, nest.strides, strict=True)
    ):
        return nest
    return merged((*nest.sizes[:-1], rounded), nest.strides)


def _end(tensor: DeviceTensor) -> int:
    return tensor.span[1]


def _capacity(tensor: DeviceTensor) -> int:
    return tensor.storage.capacity


def _dispatch(
    plan: Plan, program: PointwiseProgram, operands: Sequence[DeviceTensor], target: DeviceTensor, nest: Iteration
) -> None:
    whole_runs = nest.sizes[-1] % VECTOR == 0
    modes = [load_mode(operand.offset, strides) for operand, strides in zip(operands, nest.strides[1:], strict=True)]
    modes = [_within(mode, operand) for mode, operand in zip(modes, operands, strict=True)]
    stores_vectors = whole_runs and is_vector_run(target.offset, nest.strides[0])
    texels = not program.is_long and uses_texels(plan.device, list(zip(operands, modes, strict=True)))
    bindings = [reading(operand, mode, texels) for operand, mode in zip(operands, modes, strict=True)]
    # Slots without an operand need something bound that the shader never reads.
    spare = replace(bindings[0] if bindings else bind(target), reads=False)
    bindings += [spare] * (MAX_OPERANDS - len(bindings))
    if program.refuses:
        bindings.append(plan.stream.raised_by())
    rows = _rows(plan.device, nest)
    strips = [-(-nest.sizes[-2] // rows)] if nest.rank > 1 else []
    items = math.prod((*nest.sizes[:-2], *strips)) * -(-nest.sizes[-1] // VECTOR)
    size = local_size(plan.device, items)
    specialization = [
        size,
        nest.rank,
        program.operands,
        len(program.immediates),
        len(program.instructions),
        write_access(target, stores_vectors),
    ]
    specialization += [read_access(operand, mode) for operand, mode in zip(operands, modes, strict=True)]
    specialization += [LoadMode.SPLAT] * (MAX_OPERANDS - len(modes))
    steady = sum(1 << n for n, strides in enumerate(nest.strides[1:]) if rows > 1 and strides[-2] == 0)
    specialization += [rows, steady]
    for instruction in program.instructions:
        specialization += [instruction.opcode, *instruction.sources]
    plan.dispatch(
        f"pointwise_{_variant(program)}{'_texels' if texels else ''}",
        [writing(target, by_element=not stores_vectors), *bindings],
        spread(-(-items // size)),
        [int(value) for value in specialization],
        PointwisePush(nest.sizes, placed((target, *operands), nest.strides), program.immediate_words),
        iterations=_iterations(program, nest.rank, rows),
    )


_MOST_ITERATIONS = 33
"""Of one instruction: those of Hurwitz's zeta function; an integer power has 31, a remainder of floats 14."""
_MOST_LONG_ITERATIONS = 63
"""The same of integers of 64 bits: those of a power."""


def _iterations(program: PointwiseProgram, rank: int, rows: int) -> int:
    tensors = 1 + program.operands
    place = (rank + 1) * (tensors + 1) + len(program.immediates)
    most = _MOST_LONG_ITERATIONS if program.is_long else _MOST_ITERATIONS
    return place + rows * (1 + tensors + most * len(program.instructions))


def _variant(program: PointwiseProgram) -> str:
    """The shader that has what a program needs and least else: steps, functions, and checks."""
    if program.is_long:
        return f"{MAX_LONG_STEPS}_0{'_checked' if program.refuses else ''}_long"
    if len(program.instructions) > MAX_STEPS:
        return f"{MAX_PLAIN_STEPS}_0"
    is_short = len(program.instructions) <= _SHORT_STEPS
    steps = _SHORT_STEPS if is_short else _LONG_STEPS[program.functions]
    if program.refuses:
        return f"{steps}_{min(2, 2 * program.functions)}_checked"
    return f"{steps}_{program.functions}"


def _rows(device: DeviceInfo, nest: Iteration) -> int:
    """Places of the second dimension that one invocation computes: on a CPU many, as finding the first costs as much as
    computing it; GPUs want many invocations. Numbers in between gained nothing, and each is another pipeline, which
    a new size may ask for."""
    if not device.is_cpu or nest.rank == 1:
        return 1
    items = math.prod(nest.sizes[:-1]) * -(-nest.sizes[-1] // VECTOR)
    return _MANY_ROWS if nest.sizes[-2] >= _MANY_ROWS and items >= _LEAST_ITEMS else 1


def _within(mode: LoadMode, operand: DeviceTensor) -> LoadMode:
    """Vector loads only where the last one lies within the storage."""
    if mode == LoadMode.VECTOR and -(-_end(operand) // VECTOR) * VECTOR > _capacity(operand):
        return LoadMode.SINGLES
    return mode
