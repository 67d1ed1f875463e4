"""Numbers that shaders and the host that dispatches them both name: each is written down here, and nowhere else.

A shader gets an enumeration by ``#include`` of its name in :data:`GENERATED`. That text is made when the shader is
built (:mod:`mobopt.shaders.expand`); no such file exists.
"""

from __future__ import annotations

from enum import IntEnum


class Opcode(IntEnum):
    """What a pointwise instruction does."""

    MOVE = 0
    NEG = 1
    ABS = 2
    SIGN = 3
    FLOOR = 4
    CEIL = 5
    ROUND = 6
    TRUNC = 7
    FRAC = 8
    RECIPROCAL = 9
    SQRT = 10
    RSQRT = 11
    EXP = 12
    EXP2 = 13
    EXPM1 = 14
    LOG = 15
    LOG2 = 16
    LOG10 = 17
    LOG1P = 18
    SIN = 19
    COS = 20
    TAN = 21
    ASIN = 22
    ACOS = 23
    ATAN = 24
    SINH = 25
    COSH = 26
    TANH = 27
    ASINH = 28
    ACOSH = 29
    ATANH = 30
    ERF = 31
    SIGMOID = 32
    LOG_SIGMOID = 33
    RELU = 34
    HARDSWISH = 35
    HARDSIGMOID = 36
    SILU = 37
    MISH = 38
    GELU = 39
    GELU_TANH = 40
    IS_NAN = 41
    IS_INF = 42
    ADD = 43
    SUB = 44
    MUL = 45
    DIV = 46
    DIV_FLOOR = 47
    REMAINDER = 48
    FMOD = 49
    POW = 50
    MAX = 51
    MIN = 52
    ATAN2 = 53
    EQ = 54
    NE = 55
    LT = 56
    LE = 57
    PRELU = 58
    HARDSHRINK = 59
    SOFTSHRINK = 60
    MULADD = 61
    LERP = 62
    CLAMP = 63
    THRESHOLD = 64
    ELU = 65
    SOFTPLUS = 66
    INT_TO_FLOAT = 67
    FLOAT_TO_INT = 68
    INT_NEG = 69
    INT_ABS = 70
    INT_SIGN = 71
    INT_NOT = 72
    INT_ADD = 73
    INT_SUB = 74
    INT_MUL = 75
    INT_DIV_FLOOR = 76
    INT_DIV_TRUNC = 77
    INT_REMAINDER = 78
    INT_FMOD = 79
    INT_POW = 80
    INT_MAX = 81
    INT_MIN = 82
    INT_EQ = 83
    INT_NE = 84
    INT_LT = 85
    INT_LE = 86
    INT_AND = 87
    INT_OR = 88
    INT_XOR = 89
    INT_SHIFT_LEFT = 90
    INT_SHIFT_RIGHT = 91
    SELECT = 92
    TO_HALF = 93
    TO_BFLOAT = 94
    FLOAT_TO_SMALL = 95
    INT_INDEX = 96
    COPY_SIGN = 97
    SIGN_BIT = 98
    NEXT_AFTER = 99
    MANTISSA = 100
    EXPONENT = 101
    ERFC = 102
    ERFCX = 103
    ERFINV = 104
    LOG_NDTR = 105
    NDTRI = 106
    LGAMMA = 107
    DIGAMMA = 108
    ZETA = 109
    I0 = 110
    I0E = 111
    I1 = 112
    I1E = 113
    K0 = 114
    K0E = 115
    K1 = 116
    K1E = 117
    J0 = 118
    J1 = 119
    Y0 = 120
    Y1 = 121
    FLOAT_TO_LONG = 122
    INT_WRAP = 123


class LoadMode(IntEnum):
    """How four neighbouring lanes of an operand are read."""

    VECTOR = 0
    """Four elements that lie side by side, from a multiple of four on."""
    SPLAT = 1
    """One element for all lanes."""
    SINGLES = 2
    """One element for each lane, at equal distances."""


class ElementForm(IntEnum):
    """How the elements of a storage lie in its words."""

    WORDS = 0
    """float32, int32."""
    HALVES = 1
    """float16."""
    BFLOATS = 2
    ROUNDED = 3
    """float32 that lies as float16: subnormal halves may become zero."""
    SHORTS = 4
    """int16."""
    BYTES = 5
    """int8."""
    OCTETS = 6
    """uint8, bool."""
    LONGS = 7
    """int64: two words, the low one first. Only shaders with LONG_INTEGERS know it."""


class Combination(IntEnum):
    """How the elements of a reduction are combined."""

    ADD = 0
    MULTIPLY = 1
    LARGEST = 2
    SMALLEST = 3


class Before(IntEnum):
    """What is done to an element before it is combined with others."""

    UNCHANGED = 0
    ABSOLUTE = 1
    SQUARED = 2
    RAISED = 3


class After(IntEnum):
    """What is done to what a reduction gives."""

    FINISHED = 0
    SCALED = 1
    ROOT = 2
    POWER = 3


class Spread(IntEnum):
    """What is made of a variance."""

    VARIANCE = 0
    DEVIATION = 1
    RECIPROCAL_DEVIATION = 2


class Norm(IntEnum):
    """What a normalisation divides by."""

    ROOT_MEAN_SQUARE = 0
    CENTERED = 1
    """The deviation, after the mean was subtracted."""
    EUCLIDEAN = 2
    """The root of the sum of squares, or of the number that it is at least."""


class Quotient(IntEnum):
    """What a softmax makes of powers and their sum."""

    PLAIN = 0
    LOGARITHM = 1
    SAFE = 2
    """As plain; where all elements are negative infinity, zeros."""


class Negative(IntEnum):
    """What an index below zero means."""

    REFUSED = 0
    FROM_END = 1


class Put(IntEnum):
    """How what is put is combined with what is there."""

    REPLACE = 0
    ADD = 1
    MULTIPLY = 2
    LARGEST = 3
    SMALLEST = 4


class Method(IntEnum):
    """How matrices are factored."""

    PIVOTED = 0
    PLAIN = 1
    CHOLESKY = 2


class Exchanges(IntEnum):
    """What is done with the rows of right sides."""

    NONE = 0
    FIRST = 1
    UNDONE = 2


class Cell(IntEnum):
    """What a step of a recurrent layer computes."""

    PROJECTION = 0
    RNN_TANH = 1
    RNN_RELU = 2
    GRU = 3
    LSTM = 4

    @property
    def gates(self) -> int:
        """Matrices of units x states before."""
        return {Cell.GRU: 3, Cell.LSTM: 4}.get(self, 1)


GENERATED: dict[str, type[IntEnum]] = {
    "opcode.glsl": Opcode,
    "load_mode.glsl": LoadMode,
    "element_form.glsl": ElementForm,
    "combination.glsl": Combination,
    "before.glsl": Before,
    "after.glsl": After,
    "spread.glsl": Spread,
    "norm.glsl": Norm,
    "quotient_kind.glsl": Quotient,
    "negative.glsl": Negative,
    "put.glsl": Put,
    "method.glsl": Method,
    "exchanges.glsl": Exchanges,
    "cell.glsl": Cell,
}
"""The enumerations that shaders include, by the names that they include."""


def glsl_of(enumeration: type[IntEnum]) -> list[str]:
    """Lines of GLSL: a constant for each member."""
    return [f"const int {member.name} = {member.value};" for member in enumeration]
