"""Dtypes narrower than the 32 bits of a register: computed as float32 or int32, then rounded or wrapped, in one place.

A lowering of which :attr:`Lowering.exact` is false never meets a half, a bfloat16 or a narrow integer: it gets the call
with float32 or int32 in their place, on the same elements, and what it gives is rounded (or wraps) as the graph says:
by the store that writes it, if it writes where :meth:`Plan.result` says, else by a copy. So no lowering can forget to.
torch's CPU kernels of halves do the same: they compute in float32 and round the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from mobopt.ir import Node, Value
from mobopt.ir.nests import map_leaves
from mobopt.ir.rewriting import passing_call
from mobopt.ir.types import TensorType
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute_result
from mobopt.runtimes.vulkan.kernels.pointwise_program import ProgramBuilder

if TYPE_CHECKING:
    from mobopt.runtimes.vulkan.kernels.plan import Plan

WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.uint8: torch.int32,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
}
"""The dtype in which each of the narrow ones is computed."""


def has_narrow(call: Node) -> bool:
    """Whether a call reads or makes a tensor of a narrow dtype."""
    return any(ref.dtype in WIDER for ref in (*call.inputs, *call.outputs))


def lower_widened(
    plan: Plan, call: Node, function: Callable[[Plan, Node], DeviceTensor | tuple[DeviceTensor, ...]]
) -> DeviceTensor | tuple[DeviceTensor, ...]:
    """Lower a call with float32 and int32 in place of narrow dtypes, and make its results what their dtypes say."""
    twins: dict[Value, Value] = {}

    def widened(ref: Value) -> Value:
        if ref.dtype not in WIDER:
            return ref
        if ref not in twins:
            kind = TensorType(WIDER[ref.dtype], ref.sizes)
            if ref.is_constant:
                twins[ref] = Value(ref.name, kind, ref.constant)
            else:
                twins[ref] = Value(ref.name, kind)
                plan.place(twins[ref], replace(plan.tensor(ref), dtype=kind.dtype))
        return twins[ref]

    outputs = [Value(ref.name, TensorType(WIDER.get(ref.dtype, ref.dtype), ref.sizes)) for ref in call.outputs]
    for output, ref in zip(outputs, call.outputs, strict=True):
        if output.dtype == ref.dtype:
            plan.stand_in(output, ref)
        else:
            plan.widen(ref, output)
    with passing_call(call.qualified_op, map_leaves(call.args, Value, widened), outputs, call.origin) as wide:
        wide.attributes.update(call.attributes)
        result = function(plan, wide)
    if isinstance(result, DeviceTensor):
        return _stored(plan, result, call.outputs[0])
    return tuple(_stored(plan, tensor, ref) for tensor, ref in zip(result, call.outputs, strict=True))


def _stored(plan: Plan, tensor: DeviceTensor, output: Value) -> DeviceTensor:
    """A wide result as elements of the output's dtype."""
    if output.dtype not in WIDER:
        return tensor
    if tensor.storage.elements == output.dtype:
        return replace(tensor, dtype=output.dtype)
    builder = ProgramBuilder()
    return compute_result(plan, builder, builder.tensor(tensor), output)
