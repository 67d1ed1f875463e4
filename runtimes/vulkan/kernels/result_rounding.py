"""How norms and softmax round what they compute before they store it, as quantised models do; the shaders' half is
``shaders/glsl/rounded_result.glsl``."""

from __future__ import annotations

from mobopt.ir import Node
from mobopt.runtimes.vulkan.kernels.activation import IDENTITY, Activation
from mobopt.runtimes.vulkan.kernels.pointwise_program import Kind, ProgramBuilder, Term
from mobopt.shaders.enumerations import Opcode

ROUNDED = "mobopt::rounded"
"""A norm or a softmax, and the ``mobopt::fake_quantize`` that alone reads its result."""
ROUNDING = "rounding"
"""The attribute that tells the first of them, while it is lowered, what the other does."""


def rounding_of(call: Node) -> Activation:
    """What becomes of what a call computes."""
    found = call.attributes.get(ROUNDING)
    return found if isinstance(found, Activation) else IDENTITY


def rounding_constants(rounding: Activation) -> tuple[int, float, float]:
    """Specialization constants of a shader that rounds."""
    return rounding.code, float(rounding.first), float(rounding.second)


def rounded(builder: ProgramBuilder, value: Term, rounding: Activation) -> Term:
    """The steps of a pointwise program that round, if anything is to be done."""
    if rounding.bounds is None:
        return value
    scale, inverse = rounding.first, rounding.second
    return rounded_to(builder, value, scale, rounding.bounds, None if inverse < 0 else inverse)


def rounded_to(
    builder: ProgramBuilder, value: Term, scale: float, bounds: tuple[float, float], inverse: float | None
) -> Term:
    """The nearest multiple of a scale, between those of two integers; without an inverse it divides by the scale."""
    opcode, operand = (Opcode.DIV, scale) if inverse is None else (Opcode.MUL, inverse)
    steps = builder.step(Opcode.ROUND, builder.step(opcode, value, builder.scalar(operand, Kind.FLOAT)))
    least, most = (builder.scalar(bound, Kind.FLOAT) for bound in bounds)
    bounded = builder.step(Opcode.CLAMP, steps, least, most)
    return builder.step(Opcode.MUL, bounded, builder.scalar(scale, Kind.FLOAT))
