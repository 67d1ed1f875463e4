"""Lists of pointwise instructions: what ``shaders/glsl/pointwise.comp`` computes at each place of its operands.

A :class:`ProgramBuilder` turns operators into instructions on registers; operators that follow each other can share one
builder, which is how chains of them become one dispatch (see :mod:`mobopt.runtimes.vulkan.compile.fusion_pointwise`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum

import torch

from mobopt.ir import Value
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.shaders.enumerations import Opcode

MAX_OPERANDS = 6
MAX_IMMEDIATES = 10
MAX_STEPS = 10
MAX_PLAIN_STEPS = 24
"""Of a program without functions and checks."""
MAX_SPECIAL_STEPS = 4
"""Of a program with special functions: a shader that has them takes long to compile."""
MAX_LONG_STEPS = 4
"""Of a program with integers of 64 bits, which has no functions, for the same reason."""
FIRST_IMMEDIATE = MAX_OPERANDS
FIRST_STEP = FIRST_IMMEDIATE + MAX_IMMEDIATES

_ROUNDINGS = {torch.float16: Opcode.TO_HALF, torch.bfloat16: Opcode.TO_BFLOAT}

_DIVISIONS = (Opcode.INT_DIV_FLOOR, Opcode.INT_DIV_TRUNC, Opcode.INT_REMAINDER, Opcode.INT_FMOD)

CHECKED = (Opcode.FLOAT_TO_SMALL, Opcode.INT_INDEX, *_DIVISIONS)
"""Instructions that refuse some operands: they raise the run's flag (see :attr:`Plan.flag`)."""


_EXPONENTIAL = frozenset(
    (
        *(Opcode.EXP, Opcode.EXP2, Opcode.EXPM1, Opcode.LOG, Opcode.LOG2, Opcode.LOG10, Opcode.LOG1P, Opcode.ERF),
        *(Opcode.LOG_SIGMOID, Opcode.ELU, Opcode.SOFTPLUS, Opcode.SIGMOID, Opcode.SILU, Opcode.MISH, Opcode.TANH),
        *(Opcode.GELU, Opcode.GELU_TANH),
    )
)
_OTHER_FUNCTIONS = frozenset(
    (
        *(Opcode.SINH, Opcode.COSH, Opcode.ASINH, Opcode.ACOSH, Opcode.ATANH, Opcode.SIN, Opcode.COS, Opcode.TAN),
        *(Opcode.ASIN, Opcode.ACOS, Opcode.ATAN, Opcode.ATAN2, Opcode.POW),
        *(Opcode.DIV_FLOOR, Opcode.REMAINDER, Opcode.FMOD),
    )
)
_SPECIAL_FUNCTIONS = frozenset(opcode for opcode in Opcode if Opcode.ERFC <= opcode <= Opcode.Y1)
_FUNCTIONS = _EXPONENTIAL | _OTHER_FUNCTIONS | _SPECIAL_FUNCTIONS


class Kind(Enum):
    """What a register holds: 32 bits, but for the integers of programs that compute with 64."""

    FLOAT = "float"
    INTEGER = "integer"
    BOOL = "bool"


def kind_of(dtype: torch.dtype) -> Kind:
    """What a register that holds an element of a dtype is."""
    if dtype.is_floating_point:
        return Kind.FLOAT
    return Kind.BOOL if dtype == torch.bool else Kind.INTEGER


@dataclass(frozen=True)
class Term:
    """A register, and what its bits are."""

    register: int
    kind: Kind
    dtype: torch.dtype | None = None
    """The dtype of which it is an element already, rounded or wrapped, if that is known."""


@dataclass(frozen=True)
class Instruction:
    """An opcode and the registers that it reads (unused ones are 0)."""

    opcode: Opcode
    sources: tuple[int, int, int]


@dataclass(frozen=True)
class PointwiseProgram:
    """Instructions on up to six operands; the last instruction, or the first operand, or else the first immediate, is
    the result."""

    operands: int
    immediates: tuple[int, ...] = ()
    """Bits of constants, as signed integers."""
    instructions: tuple[Instruction, ...] = ()
    is_long: bool = False
    """Whether its integers are of 64 bits."""

    @property
    def refuses(self) -> bool:
        """Whether there are operands that it must not be given; a divisor that is a number has been looked at."""
        return any(
            instruction.opcode in CHECKED
            and not (instruction.opcode in _DIVISIONS and FIRST_IMMEDIATE <= instruction.sources[1] < FIRST_STEP)
            for instruction in self.instructions
        )

    @property
    def immediate_words(self) -> list[int]:
        """The constants as push constants."""
        if not self.is_long:
            return list(self.immediates)
        return [word for bits in self.immediates for word in (_wrapped(bits, 32), bits >> 32)]

    @property
    def functions(self) -> int:
        """Which shader it needs: 0 has arithmetic, 1 exponentials, logarithms and activations too, 2 other elementary
        functions, 3 special ones."""
        opcodes = {instruction.opcode for instruction in self.instructions}
        families = (_EXPONENTIAL, _OTHER_FUNCTIONS, _SPECIAL_FUNCTIONS)
        return max((level for level, family in enumerate(families, 1) if opcodes & family), default=0)


IDENTITY = PointwiseProgram(operands=1)

Operand = Value | DeviceTensor


@dataclass
class ProgramBuilder:
    """Collects instructions; ``operands`` are the tensors to be read, in the order of their registers.

    ``is_long`` says that integers are computed with 64 bits. Those of other dtypes than int64 must be stored as such
    (:meth:`stored_as`) to wrap around.
    """

    operands: list[Operand] = field(default_factory=list)
    is_long: bool = False
    _immediates: list[int] = field(default_factory=list)
    _instructions: list[Instruction] = field(default_factory=list)
    _known: dict[Operand, Term] = field(default_factory=dict)

    def tensor(self, tensor: Operand) -> Term:
        """The register that holds a tensor's element: an operand, or what an earlier operator of this program made."""
        if tensor not in self._known:
            self._known[tensor] = Term(len(self.operands), kind_of(tensor.dtype), tensor.dtype)
            self.operands.append(tensor)
            self.is_long |= isinstance(tensor, DeviceTensor) and tensor.is_long
        return self._known[tensor]

    def define(self, tensor: Operand, value: Term) -> None:
        """Say that ``tensor`` is ``value``, so that later operators of this program read it from there."""
        self._known[tensor] = value

    def scalar(self, number: float | int | bool, kind: Kind) -> Term:
        """A constant of the given kind."""
        bits = _bits(number, kind, 64 if self.is_long else 32)
        if bits not in self._immediates:
            self._immediates.append(bits)
        return Term(FIRST_IMMEDIATE + self._immediates.index(bits), kind)

    def step(self, opcode: Opcode, *sources: Term, kind: Kind = Kind.FLOAT) -> Term:
        """Append an instruction, unless there is the same already; its result is of ``kind``."""
        a, b, c = (*(source.register for source in sources), 0, 0, 0)[:3]
        instruction = Instruction(opcode, (a, b, c))
        if instruction not in self._instructions:
            self._instructions.append(instruction)
        return Term(FIRST_STEP + self._instructions.index(instruction), kind)

    def converted(self, value: Term, kind: Kind) -> Term:
        """The value as another kind, by torch's rules for ``Tensor.to``."""
        if value.kind == kind:
            return value
        if kind == Kind.FLOAT:
            return self.step(Opcode.INT_TO_FLOAT, value)
        if kind == Kind.BOOL:
            opcode = Opcode.NE if value.kind == Kind.FLOAT else Opcode.INT_NE
            return self.step(opcode, value, self.scalar(0, value.kind), kind=Kind.BOOL)
        if value.kind == Kind.FLOAT:
            return self.step(Opcode.FLOAT_TO_LONG if self.is_long else Opcode.FLOAT_TO_INT, value, kind=Kind.INTEGER)
        return Term(value.register, Kind.INTEGER)

    def converted_to(self, value: Term, dtype: torch.dtype, is_long: bool = False) -> Term:
        """The value as what is stored for an element of ``dtype``, which the store rounds or lets wrap around. A float
        that becomes an int64 which is not ``is_long`` must be below 2^24 (else the run is refused, see ``CHECKED``)."""
        if value.kind != Kind.FLOAT or kind_of(dtype) != Kind.INTEGER:
            return self.converted(value, kind_of(dtype))
        opcode = Opcode.FLOAT_TO_INT
        if dtype == torch.int64:
            opcode = Opcode.FLOAT_TO_LONG if is_long else Opcode.FLOAT_TO_SMALL
        return self.step(opcode, value, kind=Kind.INTEGER)

    def stored_as(self, value: Term, dtype: torch.dtype, is_long: bool = False) -> Term:
        """The value as if it had been stored as ``dtype`` and read again: halves are rounded to nearest even, and
        integers narrower than what is computed with wrap around."""
        return value if value.dtype == dtype else replace(self._stored(value, dtype, is_long), dtype=dtype)

    def _stored(self, value: Term, dtype: torch.dtype, is_long: bool) -> Term:
        value = self.converted_to(value, dtype, is_long)
        if dtype in _ROUNDINGS:
            return self.step(_ROUNDINGS[dtype], value)
        if dtype == torch.uint8:
            return self.step(Opcode.INT_AND, value, self.scalar(0xFF, Kind.INTEGER), kind=Kind.INTEGER)
        if self.is_long and dtype in (torch.int8, torch.int16, torch.int32):
            return self.step(Opcode.INT_WRAP, value, self.scalar(8 * dtype.itemsize, Kind.INTEGER), kind=Kind.INTEGER)
        if dtype in (torch.int8, torch.int16):
            spare = self.scalar(24 if dtype == torch.int8 else 16, Kind.INTEGER)
            shifted = self.step(Opcode.INT_SHIFT_LEFT, value, spare, kind=Kind.INTEGER)
            return self.step(Opcode.INT_SHIFT_RIGHT, shifted, spare, kind=Kind.INTEGER)
        return value

    @property
    def fits(self) -> bool:
        """Whether the shader has room for the program."""
        if self.is_long and not self._fits_among_longs:
            return False
        return (
            len(self.operands) <= MAX_OPERANDS
            and len(self._immediates) <= MAX_IMMEDIATES
            and len(self._instructions) <= (MAX_PLAIN_STEPS if self._is_plain else MAX_STEPS)
            and (not self._has_special_functions or self._fits_among_special_functions)
        )

    @property
    def _fits_among_longs(self) -> bool:
        return not self._has(_FUNCTIONS) and len(self._instructions) <= MAX_LONG_STEPS

    @property
    def _is_plain(self) -> bool:
        return not self._has(_FUNCTIONS.union(CHECKED))

    def _has(self, opcodes: Collection[Opcode]) -> bool:
        return any(instruction.opcode in opcodes for instruction in self._instructions)

    @property
    def _has_special_functions(self) -> bool:
        return self._has(_SPECIAL_FUNCTIONS)

    @property
    def _fits_among_special_functions(self) -> bool:
        return not self._has(CHECKED) and len(self._instructions) <= MAX_SPECIAL_STEPS

    def program(self, result: Term) -> PointwiseProgram:
        """The finished program with the given result."""
        if self._instructions:
            implied = FIRST_STEP + len(self._instructions) - 1
        else:
            implied = 0 if self.operands else FIRST_IMMEDIATE
        if result.register != implied:
            self._instructions.append(Instruction(Opcode.MOVE, (result.register, 0, 0)))
        return PointwiseProgram(len(self.operands), tuple(self._immediates), tuple(self._instructions), self.is_long)


def _bits(number: float | int | bool, kind: Kind, width: int) -> int:
    if kind == Kind.FLOAT:
        return int.from_bytes(_as_float32(float(number)), "little", signed=True)
    if kind == Kind.BOOL:
        return int(bool(number))
    return _wrapped(int(number), width)


def _wrapped(number: int, width: int) -> int:
    """An integer in so many bits, with a sign."""
    half = 1 << (width - 1)
    return (number + half) % (2 * half) - half


def _as_float32(number: float) -> bytes:
    """The nearest float32; what is too large becomes infinite, as in torch."""
    try:
        return struct.pack("<f", number)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, number))
