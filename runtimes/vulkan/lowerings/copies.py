"""Copies between layouts and dtypes, and the operators that are nothing else."""

from __future__ import annotations

from mobopt.runtimes.vulkan.plan import Plan
from mobopt.runtimes.vulkan.pointwise_kernel import compute_into
from mobopt.runtimes.vulkan.pointwise_program import ProgramBuilder
from mobopt.runtimes.vulkan.tensor import DeviceTensor


def strided_copy(plan: Plan, source: DeviceTensor, target: DeviceTensor, *, fresh: bool = False) -> None:
    """Copy ``source``, broadcast to the target's sizes and converted to its dtype, into ``target``.

    ``fresh`` says that nothing but the target lives in its storage, so that its padding may be overwritten.
    """
    builder = ProgramBuilder()
    compute_into(plan, builder, builder.tensor(source), target, fresh=fresh)
