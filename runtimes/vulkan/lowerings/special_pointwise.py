"""Pointwise operators whose operands are views of their arguments (prelu, glu and masks of triangles), and those that
have two results."""

from __future__ import annotations

import torch

from mobopt.ir import Node
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.geometry import normalized_dim
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute, compute_result
from mobopt.runtimes.vulkan.kernels.pointwise_program import ProgramBuilder, kind_of
from mobopt.runtimes.vulkan.kernels.views import sliced
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes, check_floating
from mobopt.runtimes.vulkan.lowerings.normalization import along
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.shaders.enumerations import Opcode


@lowers("aten::prelu", "aten::_prelu_kernel", check=check_floating, exact=True)
def prelu(plan: Plan, call: Node) -> DeviceTensor:
    """A slope for what is negative, one per channel or one for all."""
    tensor, slope = plan.tensor(call.args[0]), plan.tensor(call.args[1])
    if slope.rank < 2 and slope.numel > 1:
        slope = along(slope, tensor.rank, 1)
    builder = ProgramBuilder()
    value = builder.step(Opcode.PRELU, builder.tensor(tensor), builder.tensor(slope))
    return compute(plan, builder, value, tensor.sizes, tensor.dtype)


@lowers("aten::glu", check=check_floating, exact=True)
def glu(plan: Plan, call: Node) -> DeviceTensor:
    """One half of a dimension, gated by the sigmoid of the other."""
    tensor = plan.tensor(call.args[0])
    dim = normalized_dim(call["dim"], tensor.rank)
    half = tensor.sizes[dim] // 2
    builder = ProgramBuilder()
    gate = builder.step(Opcode.SIGMOID, builder.tensor(sliced(tensor, dim, half, half)))
    value = builder.step(Opcode.MUL, builder.tensor(sliced(tensor, dim, 0, half)), gate)
    return compute(plan, builder, value, call.output.sizes, tensor.dtype)


@lowers("aten::tril", "aten::triu", check=check_dtypes, exact=True, long=True)
def triangle(plan: Plan, call: Node) -> DeviceTensor:
    """The elements below or above a diagonal, zeros elsewhere."""
    tensor, shift = plan.tensor(call.args[0]), call["diagonal"]
    make = torch.tril if call.qualified_op == "aten::tril" else torch.triu
    sizes = tensor.sizes[-2:]
    mask = plan.packed([], (call.qualified_op, sizes, shift), lambda: make(torch.ones(sizes, dtype=torch.bool), shift))
    builder = ProgramBuilder()
    kind = kind_of(tensor.dtype)
    kept = builder.step(Opcode.SELECT, builder.tensor(mask), builder.tensor(tensor), builder.scalar(0, kind), kind=kind)
    return compute_result(plan, builder, kept, call.output)


@lowers("aten::frexp.Tensor", check=check_floating, exact=True)
def mantissa_and_exponent(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """A number from a half to one, and the power of two that it is multiplied by."""
    tensor = plan.tensor(call.args[0])
    parts = []
    for opcode, output in zip((Opcode.MANTISSA, Opcode.EXPONENT), call.outputs, strict=True):
        builder = ProgramBuilder()
        value = builder.step(opcode, builder.tensor(tensor), kind=kind_of(output.dtype))
        parts.append(compute(plan, builder, value, output.sizes, output.dtype))
    return tuple(parts)
