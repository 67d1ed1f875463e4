"""What norms and softmax do to each number that they compute before they store it: an activation after a norm, and the
roundings of quantised models; the shaders' half is ``shaders/glsl/finished_result.glsl``."""

from __future__ import annotations

from mobopt.ir import Node
from mobopt.runtimes.vulkan.kernels.activation import IDENTITY, Activation, operands_of
from mobopt.runtimes.vulkan.kernels.pointwise_program import Kind, ProgramBuilder, Term
from mobopt.shaders.enumerations import Opcode

FINISHED = "mobopt::finished"
"""A norm or a softmax, and the nodes that finish what it computes, each of which alone reads what is before it."""
FINISH = "finish"
"""The attribute that tells the first of them, while it is lowered, what the others do."""


def finish_of(call: Node) -> Activation:
    """What becomes of what a call computes."""
    found = call.attributes.get(FINISH)
    return found if isinstance(found, Activation) else IDENTITY


def finish_constants(finish: Activation) -> tuple[int, float, float]:
    """Specialization constants of a shader that finishes what it computes."""
    return finish.code, float(finish.first), float(finish.second)


def finished(builder: ProgramBuilder, value: Term, finish: Activation) -> Term:
    """The steps of a pointwise program that do the same, if anything is to be done."""
    if not finish.only_rounds:
        given = 0 if finish.bounds is not None else operands_of(finish.opcode)
        operands = (builder.scalar(number, Kind.FLOAT) for number in (finish.first, finish.second)[:given])
        value = builder.step(finish.opcode, value, *operands)
    if finish.bounds is None:
        return value
    scale, inverse = finish.first, finish.second
    return rounded_to(builder, value, scale, finish.bounds, None if inverse < 0 else inverse)


def rounded_to(
    builder: ProgramBuilder, value: Term, scale: float, bounds: tuple[float, float], inverse: float | None
) -> Term:
    """The nearest multiple of a scale, between those of two integers; without an inverse it divides by the scale."""
    opcode, operand = (Opcode.DIV, scale) if inverse is None else (Opcode.MUL, inverse)
    steps = builder.step(Opcode.ROUND, builder.step(opcode, value, builder.scalar(operand, Kind.FLOAT)))
    least, most = (builder.scalar(bound, Kind.FLOAT) for bound in bounds)
    bounded = builder.step(Opcode.CLAMP, steps, least, most)
    return builder.step(Opcode.MUL, bounded, builder.scalar(scale, Kind.FLOAT))
