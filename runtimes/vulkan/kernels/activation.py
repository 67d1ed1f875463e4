"""Functions of one number that a convolution or matrix product may apply to its sums before it stores them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from mobopt.ir import Node
from mobopt.ops.fake_quantize import FAKE_QUANTIZE, ROUNDED_GATE, whole_steps
from mobopt.shaders.enumerations import Opcode

_BOUND_BITS = 12
"""Of each bound of what is rounded; see ``epilogue.glsl``."""
_GATE_FLAG = 128
"""Beyond all opcodes."""
_GATE_BOUNDS = (0, 255)
"""Of gates that are rounded to bytes, whose zero is the least."""
_MOST_STEPS = (1 << _BOUND_BITS - 1) - 1
_INVERSE_LOSS = 1e-6
"""By how much a scale times its inverse may differ from one for a multiple to be rounded to itself."""
_OPERANDS = {Opcode.MUL: 1, Opcode.CLAMP: 2, Opcode.PRELU: 1}
"""Of what has any."""


@dataclass(frozen=True)
class Activation:
    """One pointwise instruction with up to two scalar operands.

    Or one without operands, :data:`FAKE_QUANTIZE` after it, of which ``bounds`` are the integers; the scale and its
    inverse, negative where it divides, are the operands then.

    Or what it is applied to times such a function that is rounded to bytes of the scale ``second``, by a division, and
    :data:`FAKE_QUANTIZE` after it, if it has ``bounds``, by a division by ``first``.
    """

    opcode: Opcode = Opcode.MOVE
    first: float = 0.0
    second: float = 0.0
    bounds: tuple[int, int] | None = None
    is_gate: bool = False

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing."""
        return self == IDENTITY

    @property
    def only_rounds(self) -> bool:
        """Whether it does nothing, or :data:`FAKE_QUANTIZE` alone."""
        return self.opcode == Opcode.MOVE

    @property
    def code(self) -> int:
        """The opcode, with the bounds in the upper bits, as a shader's specialization constant."""
        low, high = (bound & (1 << _BOUND_BITS) - 1 for bound in self.bounds or (0, 0))
        word = self.opcode | self.is_gate * _GATE_FLAG | low << 32 - 2 * _BOUND_BITS | high << 32 - _BOUND_BITS
        return word - (word >> 31 << 32)

    def followed_by(self, other: Activation) -> Activation | None:
        """One that does what this and then another does, to the last bit; None if there is none."""
        if self.is_identity:
            return other
        if self.bounds is not None and other._limits is not None:
            return self._limited_to(*other._limits)
        if other.opcode != Opcode.MOVE or other.bounds is None:
            return None
        if self.is_gate:
            divides = other.second < 0 or _is_power_of_two(other.first)
            return replace(self, first=other.first, bounds=other.bounds) if divides and self.bounds is None else None
        if self.bounds is not None:
            return self._bounded(*other.bounds) if other._rounds_as(self) else None
        if self._limits is not None:  # rounding keeps the order of numbers
            steps = whole_steps(torch.tensor(self._limits), other.first, other.second if other.second > 0 else None)
            return other._bounded(*(int(step) for step in steps.clamp(*other.bounds)))
        return None if operands_of(self.opcode) > 0 else replace(other, opcode=self.opcode)

    @property
    def _limits(self) -> tuple[float, float] | None:
        """Between what it keeps numbers, if it does nothing else."""
        if self.bounds is not None:
            return None
        if self.opcode == Opcode.RELU:
            return 0.0, math.inf
        return (self.first, self.second) if self.opcode == Opcode.CLAMP and self.first <= self.second else None

    def _rounds_as(self, other: Activation) -> bool:
        """Whether it leaves the multiples of another as they are, but for its bounds."""
        is_inverse = abs(self.first * abs(self.second) - 1) <= _INVERSE_LOSS
        return is_inverse and (self.first, self.second) == (other.first, other.second)

    def _bounded(self, low: int, high: int) -> Activation | None:
        """This with bounds after its own; None if nothing but zero is between them, which has no code."""
        assert self.bounds is not None
        least, most = (min(max(bound, low), high) for bound in self.bounds)
        return None if least == most == 0 else replace(self, bounds=(least, most))

    def _limited_to(self, low: float, high: float) -> Activation | None:
        """This with limits after it, which must be multiples themselves or beyond all of them."""
        assert self.bounds is not None
        least, most = (torch.tensor(self.bounds) * self.first).tolist()
        first = self.bounds[0] if low <= least else self._step_of(low)
        last = self.bounds[1] if high >= most else self._step_of(high)
        return None if first is None or last is None else self._bounded(first, max(first, last))

    def _step_of(self, limit: float) -> int | None:
        """The integer whose multiple a limit is."""
        if not abs(limit / self.first) <= _MOST_STEPS:
            return None
        step = round(limit / self.first)
        return step if float(torch.tensor(step) * self.first) == limit else None


IDENTITY = Activation()


def operands_of(opcode: Opcode) -> int:
    """How many numbers an activation with such an instruction has, besides what it is applied to."""
    return _OPERANDS.get(opcode, 0)


def clamp(low: float | None, high: float | None) -> Activation:
    """The activation that keeps values between two bounds, either of which may be missing."""
    if low is None and high is None:
        return IDENTITY
    if high is None and low == 0:
        return Activation(Opcode.RELU)
    return Activation(Opcode.CLAMP, -math.inf if low is None else float(low), math.inf if high is None else float(high))


def _simple(opcode: Opcode) -> Callable[[Node], Activation]:
    return lambda call: Activation(opcode)


_ACTIVATIONS: dict[str, Callable[[Node], Activation]] = {
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


def _is_power_of_two(scale: float) -> bool:
    """Whether a product with the inverse is the quotient, to the last bit."""
    return math.frexp(scale)[0] == 0.5


def activation_of(call: Node) -> Activation | None:
    """The activation that a pointwise call (in place or not) applies to its first argument; None if it is another."""
    if call.qualified_op == FAKE_QUANTIZE:
        _, scale, low, high, inverse = call.args
        if max(-low, high) > _MOST_STEPS or low == high == 0:
            return None
        return Activation(
            Opcode.MOVE, scale, -float(torch.tensor(1 / scale)) if inverse is None else inverse, (low, high)
        )
    if call.qualified_op == ROUNDED_GATE:
        _, gate, scale, low, high, inverse = call.args
        divides = inverse is None or _is_power_of_two(scale)
        own = Activation(Opcode[gate.upper()], 0.0, scale, is_gate=True)
        return own if divides and (low, high) == _GATE_BOUNDS else None
    namespace, _, rest = call.qualified_op.partition("::")
    name, _, overload = rest.partition(".")
    make = _ACTIVATIONS.get(name.removesuffix("_"))
    if namespace != "aten" or overload not in ("", "default") or make is None:
        return None
    return make(call)


def joined_activation(steps: Iterable[Node]) -> Activation | None:
    """What calls that follow each other apply to a number; None if no activation does all of it."""
    whole: Activation | None = IDENTITY
    for step in steps:
        own = activation_of(step)
        whole = None if whole is None or own is None else whole.followed_by(own)
    return whole
