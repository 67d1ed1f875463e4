"""Tensors made of numbers: zeros, ones, full, arange and their kin."""

from __future__ import annotations

import torch

from mobopt.ir import Node
from mobopt.ir.schemas import argument_names
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.copies import strided_copy
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute_into
from mobopt.runtimes.vulkan.kernels.pointwise_program import Kind, ProgramBuilder, kind_of
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes
from mobopt.runtimes.vulkan.lowerings.registry import lowers


def fill(plan: Plan, target: DeviceTensor, value: float, *, fresh: bool = False) -> None:
    """Write one number everywhere."""
    builder = ProgramBuilder(is_long=target.is_long)
    kind = kind_of(target.dtype)
    number = value if kind == Kind.FLOAT else int(value)
    compute_into(plan, builder, builder.scalar(number, kind), target, fresh=fresh)


def _filled(plan: Plan, call: Node, value: float) -> DeviceTensor:
    target = plan.empty(call.output.sizes, call.output.dtype, elements=plan.elements_of(call.output))
    fill(plan, target, value, fresh=True)
    return target


@lowers(
    "aten::zeros",
    "aten::zeros_like",
    "aten::new_zeros",
    "aten::empty.memory_format",
    "aten::empty_strided",
    "aten::empty_like",
    "aten::new_empty",
    "aten::new_empty_strided",
    check=check_dtypes,
    exact=True,
    long=True,
)
def zeros(plan: Plan, call: Node) -> DeviceTensor:
    """Zeros; what torch leaves undefined is zero too, so that two runs agree."""
    return _filled(plan, call, 0)


@lowers("aten::ones", "aten::ones_like", "aten::new_ones", check=check_dtypes, exact=True, long=True)
def ones(plan: Plan, call: Node) -> DeviceTensor:
    """Ones."""
    return _filled(plan, call, 1)


@lowers(
    "aten::full", "aten::full_like", "aten::new_full", "aten::scalar_tensor", check=check_dtypes, exact=True, long=True
)
def full(plan: Plan, call: Node) -> DeviceTensor:
    """One number everywhere."""
    return _filled(plan, call, call["fill_value" if "fill_value" in argument_names(call.qualified_op) else "s"])


def _from_table(plan: Plan, call: Node, values: torch.Tensor) -> DeviceTensor:
    """A fresh copy of constant values, which a later call may write into."""
    arguments = tuple(argument for argument in call.args if isinstance(argument, (int, float)))
    constant = plan.packed([], (call.qualified_op, arguments, call.output.sizes, call.output.dtype), lambda: values)
    target = plan.empty(values.shape, values.dtype, elements=plan.elements_of(call.output))
    strided_copy(plan, constant, target, fresh=True)
    return target


@lowers("aten::arange", "aten::arange.start", "aten::arange.start_step", check=check_dtypes, exact=True, long=True)
def arange(plan: Plan, call: Node) -> DeviceTensor:
    """Numbers at equal distances."""
    names = argument_names(call.qualified_op)
    start = call["start"] if "start" in names else 0
    step = call["step"] if "step" in names else 1
    return _from_table(plan, call, torch.arange(start, call["end"], step, dtype=call.output.dtype))


@lowers("aten::linspace", check=check_dtypes, exact=True, long=True)
def linspace(plan: Plan, call: Node) -> DeviceTensor:
    """A given count of numbers at equal distances."""
    return _from_table(plan, call, torch.linspace(call["start"], call["end"], call["steps"], dtype=call.output.dtype))


@lowers("aten::eye", "aten::eye.m", check=check_dtypes, exact=True, long=True)
def eye(plan: Plan, call: Node) -> DeviceTensor:
    """Ones on the diagonal."""
    return _from_table(plan, call, torch.eye(*call.output.sizes, dtype=call.output.dtype))
