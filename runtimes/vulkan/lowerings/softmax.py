"""Softmax and its logarithm."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mobopt.ir import Node
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.activation import IDENTITY, Activation
from mobopt.runtimes.vulkan.kernels.combine import prepare, reduce
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, device_costs
from mobopt.runtimes.vulkan.kernels.geometry import normalized_dims
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute, compute_into
from mobopt.runtimes.vulkan.kernels.pointwise_program import Kind, ProgramBuilder
from mobopt.runtimes.vulkan.kernels.reduction_kernel import Reduction, run_reduction
from mobopt.runtimes.vulkan.kernels.result_finish import finish_constants, finish_of, finished
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes
from mobopt.runtimes.vulkan.lowerings.reductions import converted
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.runtimes.vulkan.lowerings.wanted_layout import wanted_of
from mobopt.shaders.enumerations import Combination, Opcode, Quotient

_PASSES = 3
"""Walks of ``softmax.comp``: the largest element, the sum of powers, the quotients."""


@lowers(
    "aten::softmax.int", "aten::_softmax", "aten::log_softmax.int", "aten::_log_softmax", check=check_dtypes, long=True
)
def softmax(plan: Plan, call: Node) -> DeviceTensor:
    """Softmax along one dimension: one dispatch, unless the dimension is too long for one."""
    tensor = converted(plan, plan.tensor(call.args[0]), call.output.dtype)
    target = plan.own_result(call.output, strides=wanted_of(call.output))
    quotient = Quotient.LOGARITHM if "log_softmax" in call.qualified_op else Quotient.PLAIN
    softmax_into(plan, tensor, target, normalized_dims(call["dim"], tensor.rank), quotient, finish_of(call))
    return target


@replayable
def softmax_into(
    plan: Plan,
    tensor: DeviceTensor,
    target: DeviceTensor,
    dims: Sequence[int],
    quotient: Quotient,
    finish: Activation = IDENTITY,
) -> None:
    """Softmax over ``dims`` into ``target``, finished."""
    source, reduction = prepare(plan, tensor, target, dims, writes_all=True)
    if _PASSES * reduction.steps > USUAL_ITERATIONS or _leaves_idle(plan.device, reduction):
        _in_steps(plan, source, target, dims, quotient, finish)
    else:
        constants = [quotient, *finish_constants(finish)]
        run_reduction(plan, "softmax", reduction, [source], [target], constants, passes=_PASSES)


def _leaves_idle(device: DeviceInfo, reduction: Reduction) -> bool:
    """Whether a GPU would be idle but for a few rows, each so long that more dispatches cost less."""
    if device.is_cpu:
        return False
    costs = device_costs(device)
    busy = reduction.items * reduction.threads >= core_count(device) * costs.softmax_invocations_per_core
    return not busy and reduction.steps >= costs.softmax_long_steps


def _in_steps(
    plan: Plan,
    source: DeviceTensor,
    target: DeviceTensor,
    dims: Sequence[int],
    quotient: Quotient,
    finish: Activation,
) -> None:
    """The walks as dispatches of their own, the reductions among them in parts."""
    top = reduce(plan, source, dims, source.dtype, Combination.LARGEST)
    if quotient == Quotient.SAFE:
        top = _at_least(plan, top, torch.finfo(torch.float32).min)
    builder = ProgramBuilder()
    shifted = builder.step(Opcode.SUB, builder.tensor(source), builder.tensor(top))
    # The powers are read back, so they aren't rounded.
    powers = target if target.has_words else plan.empty(target.sizes, target.dtype, target.strides)
    compute_into(plan, builder, builder.step(Opcode.EXP, shifted), powers, fresh=True)
    total = reduce(plan, powers, dims, powers.dtype, Combination.ADD)
    if quotient == Quotient.SAFE:
        total = _at_least(plan, total, 1.0)
    builder = ProgramBuilder()
    if quotient == Quotient.LOGARITHM:
        shifted = builder.step(Opcode.SUB, builder.tensor(source), builder.tensor(top))
        value = builder.step(Opcode.SUB, shifted, builder.step(Opcode.LOG, builder.tensor(total)))
    else:
        value = builder.step(Opcode.DIV, builder.tensor(powers), builder.tensor(total))
    compute_into(plan, builder, finished(builder, value, finish), target, fresh=True)


def _at_least(plan: Plan, tensor: DeviceTensor, number: float) -> DeviceTensor:
    builder = ProgramBuilder()
    value = builder.step(Opcode.MAX, builder.tensor(tensor), builder.scalar(number, Kind.FLOAT))
    return compute(plan, builder, value, tensor.sizes, tensor.dtype)
