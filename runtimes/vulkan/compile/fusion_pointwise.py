"""Joins pointwise calls that feed each other into one: what is between them never reaches memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, replace

from mobopt.runtimes.call import Call, TensorRef, Trace
from mobopt.runtimes.vulkan.compile.simplify import writes_in_place
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute_result
from mobopt.runtimes.vulkan.kernels.pointwise_program import ProgramBuilder, Value
from mobopt.runtimes.vulkan.lowerings.pointwise import expression_of, is_in_place, value_of
from mobopt.runtimes.vulkan.lowerings.registry import lowers, why_unsupported

FUSED = "mobopt::pointwise"

_MAX_OPERANDS = 4
"""Fewer than the shader takes: each costs strides, and those of six seldom fit in the push constants."""


@dataclass(eq=False)
class FusedPointwise(Call):
    """Pointwise calls as one; ``args`` are the tensors that they read from outside, ``outputs`` that of the last."""

    calls: tuple[Call, ...] = ()


def fuse_pointwise(trace: Trace, on_host: Container[Call] = ()) -> Trace:
    """The trace with each pointwise call joined to the makers of its operands, where nothing else reads those.

    Calls of ``on_host`` stay as they are. Traces that write in place are left alone: there it matters when an operand
    is read.
    """
    if any(writes_in_place(call) for call in trace.calls):
        return trace
    uses = Counter(tensor for call in trace.calls for tensor in call.tensors())
    uses.update(trace.results())
    calls: list[Call | None] = []
    makers: dict[TensorRef, int] = {}
    for call in trace.calls:
        joined = call
        if call not in on_host and _is_fusible(call):
            for operand in dict.fromkeys(call.tensors()):
                place = makers.get(operand)
                if place is None or uses[operand] != _reads(call, operand) or operand.sizes != call.output.sizes:
                    continue
                maker = calls[place]
                grown = None if maker is None else _joined(maker, joined)
                if grown is not None:
                    joined, calls[place] = grown, None
            makers[call.output] = len(calls)
        calls.append(joined)
    return replace(trace, calls=[call for call in calls if call is not None])


def _is_fusible(call: Call) -> bool:
    return expression_of(call.op) is not None and not is_in_place(call.op) and why_unsupported(call) is None


def _reads(call: Call, tensor: TensorRef) -> int:
    return sum(other is tensor for other in call.tensors())


def _joined(maker: Call, call: Call) -> Call | None:
    """The two calls as one, or None if the shader has no room for them."""
    parts = (*_parts(maker), *_parts(call))
    builder, value = _built(parts)
    builder.program(value)
    if not builder.fits or len(builder.operands) > _MAX_OPERANDS:
        return None
    operands = tuple(operand for operand in builder.operands if isinstance(operand, TensorRef))
    return FusedPointwise(FUSED, operands, call.outputs, maker.source | call.source, parts)


def _parts(call: Call) -> tuple[Call, ...]:
    return call.calls if isinstance(call, FusedPointwise) else (call,)


def _built(parts: tuple[Call, ...]) -> tuple[ProgramBuilder, Value]:
    """The instructions of calls in order, and the result of the last."""
    builder = ProgramBuilder()
    value = None
    for part in parts:
        value = builder.stored_as(value_of(builder, part), part.output.dtype)
        builder.define(part.output, value)
    assert value is not None
    return builder, value


@lowers(FUSED, exact=True)
def fused_pointwise(plan: Plan, call: Call) -> DeviceTensor:
    """Several pointwise operators as one dispatch."""
    assert isinstance(call, FusedPointwise)
    builder, value = _built(call.calls)
    return compute_result(plan, builder, value, call.output)
