"""What a convolution or matrix product does to its sums before it stores them: activation, residual, activation.

The compiler's ``fusion.py`` folds pointwise calls into the product that feeds them; the shaders' half is
``shaders/glsl/epilogue.glsl``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from mobopt.ops.contexts import Conv2dPackedContext, VulkanConv2dOpContext
from mobopt.runtimes.call import Call, TensorRef
from mobopt.runtimes.vulkan.kernels.pointwise_program import Opcode


@dataclass(frozen=True)
class Activation:
    """One pointwise instruction with up to two scalar operands."""

    opcode: Opcode = Opcode.MOVE
    first: float = 0.0
    second: float = 0.0

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing."""
        return self.opcode == Opcode.MOVE


IDENTITY = Activation()


@dataclass(frozen=True, eq=False)
class Epilogue:
    """``after(before(sum + bias) + residual)``; the residual has the sizes of the result.

    Where the steps stand for operators on halves, ``rounding`` is the dtype to which each of them rounds what it gives
    to the next one; None where they are one operator, or on float32.
    """

    before: Activation = IDENTITY
    residual: TensorRef | None = None
    after: Activation = IDENTITY
    rounding: torch.dtype | None = None

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing."""
        return self.before.is_identity and self.residual is None and self.after.is_identity

    def with_activation(self, activation: Activation) -> Epilogue | None:
        """This epilogue followed by an activation, or None if there is no room for it."""
        if self.residual is None:
            return replace(self, before=activation) if self.before.is_identity else None
        return replace(self, after=activation) if self.after.is_identity else None

    def with_residual(self, residual: TensorRef) -> Epilogue | None:
        """This epilogue followed by the addition of a tensor, or None if there is no room for it."""
        return replace(self, residual=residual) if self.residual is None else None


@dataclass(eq=False)
class CallWithEpilogue(Call):
    """A call of a convolution or matrix product whose outputs are what an epilogue makes of the sums."""

    epilogue: Epilogue = Epilogue()

    def tensors(self) -> Iterator[TensorRef]:
        """Every tensor argument, then the residual."""
        yield from super().tensors()
        if self.epilogue.residual is not None:
            yield self.epilogue.residual


def epilogue_of(call: Call) -> Epilogue:
    """The epilogue that was attached to a call, or the clamp of its packed context, or one that does nothing."""
    if isinstance(call, CallWithEpilogue):
        return call.epilogue
    for argument in call.args:
        if isinstance(argument, (Conv2dPackedContext, VulkanConv2dOpContext)):
            return Epilogue(clamp(argument.output_min, argument.output_max))
    return Epilogue()


def clamp(low: float | None, high: float | None) -> Activation:
    """The activation that keeps values between two bounds, either of which may be missing."""
    if low is None and high is None:
        return IDENTITY
    if high is None and low == 0:
        return Activation(Opcode.RELU)
    return Activation(Opcode.CLAMP, -math.inf if low is None else float(low), math.inf if high is None else float(high))


def _simple(opcode: Opcode) -> Callable[[Call], Activation]:
    return lambda call: Activation(opcode)


_ACTIVATIONS: dict[str, Callable[[Call], Activation]] = {
    "relu": _simple(Opcode.RELU),
    "relu6": lambda call: clamp(0.0, 6.0),
    "hardtanh": lambda call: clamp(call["min_val"], call["max_val"]),
    "clamp": lambda call: clamp(call["min"], call["max"]),
    "clamp_min": lambda call: clamp(call["min"], None),
    "clamp_max": lambda call: clamp(None, call["max"]),
    "hardswish": _simple(Opcode.HARDSWISH),
    "hardsigmoid": _simple(Opcode.HARDSIGMOID),
    "sigmoid": _simple(Opcode.SIGMOID),
    "silu": _simple(Opcode.SILU),
    "mish": _simple(Opcode.MISH),
    "tanh": _simple(Opcode.TANH),
    "leaky_relu": lambda call: Activation(Opcode.PRELU, float(call["negative_slope"])),
    "gelu": lambda call: Activation(Opcode.GELU_TANH if call["approximate"] == "tanh" else Opcode.GELU),
}


def activation_of(call: Call) -> Activation | None:
    """The activation that a pointwise call (in place or not) applies to its first argument; None if it is another."""
    namespace, _, rest = call.op.partition("::")
    name, _, overload = rest.partition(".")
    make = _ACTIVATIONS.get(name.removesuffix("_"))
    if namespace != "aten" or overload not in ("", "default") or make is None:
        return None
    return make(call)
