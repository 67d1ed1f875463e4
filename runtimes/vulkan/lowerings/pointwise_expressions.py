"""What each pointwise operator is, as instructions: ``EXPRESSIONS`` maps operator names to functions that append
them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from mobopt.ir import Node, Value
from mobopt.ops.fake_quantize import FAKE_QUANTIZE, ROUNDED_GATE
from mobopt.runtimes.vulkan.kernels.pointwise_program import Kind, ProgramBuilder, Term, kind_of
from mobopt.runtimes.vulkan.kernels.result_finish import rounded_to
from mobopt.shaders.enumerations import Opcode

Expression = Callable[[ProgramBuilder, Node], Term]
"""Appends a call's instructions to a builder and returns the result, in any kind."""

EXPRESSIONS: dict[str, Expression] = {}
"""By name without overload; every overload on tensors is the same expression."""


def load(builder: ProgramBuilder, argument: Any, kind: Kind) -> Term:
    """An argument, tensor or number, in the given kind."""
    if isinstance(argument, Value):
        return builder.converted(builder.tensor(argument), kind)
    return builder.scalar(argument, kind)


def common_dtype(*arguments: Any) -> torch.dtype:
    """The dtype in which torch compares or combines arguments; what is neither tensor nor number has no say."""
    arguments = tuple(argument for argument in arguments if isinstance(argument, (Value, int, float)))
    stand_ins = [
        torch.empty((1,) * argument.rank, dtype=argument.dtype, device="meta")
        if isinstance(argument, Value)
        else argument
        for argument in arguments
    ]
    return torch.result_type(stand_ins[0], stand_ins[-1])


def result_kind(call: Node) -> Kind:
    """The kind to compute arithmetic in; bools are computed as integers."""
    kind = kind_of(call.output.dtype)
    return Kind.INTEGER if kind == Kind.BOOL else kind


def define(*names: str) -> Callable[[Expression], Expression]:
    """Register an expression under operator names."""

    def register(expression: Expression) -> Expression:
        for name in names:
            EXPRESSIONS[f"aten::{name}"] = expression
        return expression

    return register


def _floating_unary(opcode: Opcode) -> Expression:
    return lambda b, call: b.step(opcode, load(b, call.args[0], Kind.FLOAT))


def _either_unary(floating: Opcode, integer: Opcode) -> Expression:
    def expression(b: ProgramBuilder, call: Node) -> Term:
        kind = result_kind(call)
        return b.step(floating if kind == Kind.FLOAT else integer, load(b, call.args[0], kind), kind=kind)

    return expression


def _either_binary(floating: Opcode, integer: Opcode) -> Expression:
    def expression(b: ProgramBuilder, call: Node) -> Term:
        kind = result_kind(call)
        sources = [load(b, argument, kind) for argument in call.args[:2]]
        return b.step(floating if kind == Kind.FLOAT else integer, *sources, kind=kind)

    return expression


def _comparison(floating: Opcode, integer: Opcode, *, swapped: bool = False) -> Expression:
    def expression(b: ProgramBuilder, call: Node) -> Term:
        kind = kind_of(common_dtype(*call.args[:2]))
        a, c = (load(b, argument, kind) for argument in call.args[:2])
        sources = (c, a) if swapped else (a, c)
        return b.step(floating if kind == Kind.FLOAT else integer, *sources, kind=Kind.BOOL)

    return expression


def _logical(opcode: Opcode) -> Expression:
    def expression(b: ProgramBuilder, call: Node) -> Term:
        return b.step(opcode, *(load(b, argument, Kind.BOOL) for argument in call.args[:2]), kind=Kind.BOOL)

    return expression


def _bitwise(opcode: Opcode) -> Expression:
    def expression(b: ProgramBuilder, call: Node) -> Term:
        kind = kind_of(call.output.dtype)
        return b.step(opcode, *(load(b, argument, kind) for argument in call.args[:2]), kind=kind)

    return expression


for _name, _opcode in {
    "reciprocal": Opcode.RECIPROCAL,
    "sqrt": Opcode.SQRT,
    "rsqrt": Opcode.RSQRT,
    "exp": Opcode.EXP,
    "exp2": Opcode.EXP2,
    "special_exp2": Opcode.EXP2,
    "expm1": Opcode.EXPM1,
    "special_expm1": Opcode.EXPM1,
    "log": Opcode.LOG,
    "log2": Opcode.LOG2,
    "log10": Opcode.LOG10,
    "log1p": Opcode.LOG1P,
    "special_log1p": Opcode.LOG1P,
    "sin": Opcode.SIN,
    "cos": Opcode.COS,
    "tan": Opcode.TAN,
    "asin": Opcode.ASIN,
    "arcsin": Opcode.ASIN,
    "acos": Opcode.ACOS,
    "arccos": Opcode.ACOS,
    "atan": Opcode.ATAN,
    "arctan": Opcode.ATAN,
    "sinh": Opcode.SINH,
    "cosh": Opcode.COSH,
    "tanh": Opcode.TANH,
    "asinh": Opcode.ASINH,
    "arcsinh": Opcode.ASINH,
    "acosh": Opcode.ACOSH,
    "arccosh": Opcode.ACOSH,
    "atanh": Opcode.ATANH,
    "arctanh": Opcode.ATANH,
    "erf": Opcode.ERF,
    "special_erf": Opcode.ERF,
    "sigmoid": Opcode.SIGMOID,
    "special_expit": Opcode.SIGMOID,
    "log_sigmoid": Opcode.LOG_SIGMOID,
    "hardswish": Opcode.HARDSWISH,
    "hardsigmoid": Opcode.HARDSIGMOID,
    "silu": Opcode.SILU,
    "mish": Opcode.MISH,
    "frac": Opcode.FRAC,
    "erfc": Opcode.ERFC,
    "special_erfc": Opcode.ERFC,
    "special_erfcx": Opcode.ERFCX,
    "erfinv": Opcode.ERFINV,
    "special_erfinv": Opcode.ERFINV,
    "special_log_ndtr": Opcode.LOG_NDTR,
    "special_ndtri": Opcode.NDTRI,
    "lgamma": Opcode.LGAMMA,
    "special_gammaln": Opcode.LGAMMA,
    "digamma": Opcode.DIGAMMA,
    "special_digamma": Opcode.DIGAMMA,
    "special_psi": Opcode.DIGAMMA,
    "i0": Opcode.I0,
    "special_i0": Opcode.I0,
    "special_modified_bessel_i0": Opcode.I0,
    "special_i0e": Opcode.I0E,
    "special_i1": Opcode.I1,
    "special_modified_bessel_i1": Opcode.I1,
    "special_i1e": Opcode.I1E,
    "special_modified_bessel_k0": Opcode.K0,
    "special_scaled_modified_bessel_k0": Opcode.K0E,
    "special_modified_bessel_k1": Opcode.K1,
    "special_scaled_modified_bessel_k1": Opcode.K1E,
    "special_bessel_j0": Opcode.J0,
    "special_bessel_j1": Opcode.J1,
    "special_bessel_y0": Opcode.Y0,
    "special_bessel_y1": Opcode.Y1,
}.items():
    EXPRESSIONS[f"aten::{_name}"] = _floating_unary(_opcode)

for _name, (_floating, _integer) in {
    "neg": (Opcode.NEG, Opcode.INT_NEG),
    "negative": (Opcode.NEG, Opcode.INT_NEG),
    "abs": (Opcode.ABS, Opcode.INT_ABS),
    "absolute": (Opcode.ABS, Opcode.INT_ABS),
    "sign": (Opcode.SIGN, Opcode.INT_SIGN),
    "sgn": (Opcode.SIGN, Opcode.INT_SIGN),
    "floor": (Opcode.FLOOR, Opcode.MOVE),
    "ceil": (Opcode.CEIL, Opcode.MOVE),
    "trunc": (Opcode.TRUNC, Opcode.MOVE),
    "fix": (Opcode.TRUNC, Opcode.MOVE),
}.items():
    EXPRESSIONS[f"aten::{_name}"] = _either_unary(_floating, _integer)

for _name, (_floating, _integer) in {
    "mul": (Opcode.MUL, Opcode.INT_MUL),
    "multiply": (Opcode.MUL, Opcode.INT_MUL),
    "floor_divide": (Opcode.DIV_FLOOR, Opcode.INT_DIV_FLOOR),
    "remainder": (Opcode.REMAINDER, Opcode.INT_REMAINDER),
    "fmod": (Opcode.FMOD, Opcode.INT_FMOD),
    "maximum": (Opcode.MAX, Opcode.INT_MAX),
    "minimum": (Opcode.MIN, Opcode.INT_MIN),
    "clamp_min": (Opcode.MAX, Opcode.INT_MAX),
    "clamp_max": (Opcode.MIN, Opcode.INT_MIN),
    "atan2": (Opcode.ATAN2, Opcode.ATAN2),
    "arctan2": (Opcode.ATAN2, Opcode.ATAN2),
    "copysign": (Opcode.COPY_SIGN, Opcode.COPY_SIGN),
    "nextafter": (Opcode.NEXT_AFTER, Opcode.NEXT_AFTER),
}.items():
    EXPRESSIONS[f"aten::{_name}"] = _either_binary(_floating, _integer)
EXPRESSIONS["aten::max"] = EXPRESSIONS["aten::maximum"]
EXPRESSIONS["aten::min"] = EXPRESSIONS["aten::minimum"]

for _names, (_floating, _integer, _swapped) in {
    ("eq",): (Opcode.EQ, Opcode.INT_EQ, False),
    ("ne", "not_equal"): (Opcode.NE, Opcode.INT_NE, False),
    ("lt", "less"): (Opcode.LT, Opcode.INT_LT, False),
    ("le", "less_equal"): (Opcode.LE, Opcode.INT_LE, False),
    ("gt", "greater"): (Opcode.LT, Opcode.INT_LT, True),
    ("ge", "greater_equal"): (Opcode.LE, Opcode.INT_LE, True),
}.items():
    for _name in _names:
        EXPRESSIONS[f"aten::{_name}"] = _comparison(_floating, _integer, swapped=_swapped)

for _name, _opcode in {
    "logical_and": Opcode.INT_AND,
    "logical_or": Opcode.INT_OR,
    "logical_xor": Opcode.INT_XOR,
}.items():
    EXPRESSIONS[f"aten::{_name}"] = _logical(_opcode)

for _name, _opcode in {
    "bitwise_and": Opcode.INT_AND,
    "bitwise_or": Opcode.INT_OR,
    "bitwise_xor": Opcode.INT_XOR,
    "__and__": Opcode.INT_AND,
    "__or__": Opcode.INT_OR,
    "__xor__": Opcode.INT_XOR,
    "bitwise_left_shift": Opcode.INT_SHIFT_LEFT,
    "bitwise_right_shift": Opcode.INT_SHIFT_RIGHT,
    "__lshift__": Opcode.INT_SHIFT_LEFT,
    "__rshift__": Opcode.INT_SHIFT_RIGHT,
}.items():
    EXPRESSIONS[f"aten::{_name}"] = _bitwise(_opcode)


@define("alias", "detach", "clone", "contiguous", "to", "_to_copy", "type_as", "cpu")
def _same(b: ProgramBuilder, call: Node) -> Term:
    return b.tensor(call.args[0])


@define("add", "sub", "subtract", "rsub")
def _sum(b: ProgramBuilder, call: Node) -> Term:
    kind = result_kind(call)
    a, other = (load(b, argument, kind) for argument in call.args[:2])
    # Of truth values the factor is one too: -1 takes nothing away.
    alpha = bool(call["alpha"]) if call.output.dtype == torch.bool else call["alpha"]
    if call.qualified_op.startswith("aten::rsub"):
        a, other = other, a
    negated = not call.qualified_op.startswith("aten::add")
    if alpha == 1:
        floating, integer = (Opcode.SUB, Opcode.INT_SUB) if negated else (Opcode.ADD, Opcode.INT_ADD)
        return b.step(floating if kind == Kind.FLOAT else integer, a, other, kind=kind)
    factor = b.scalar(-alpha if negated else alpha, kind)
    if kind == Kind.FLOAT:
        return b.step(Opcode.MULADD, other, factor, a)
    return b.step(Opcode.INT_ADD, a, b.step(Opcode.INT_MUL, other, factor, kind=kind), kind=kind)


@define("div", "divide", "true_divide")
def _quotient(b: ProgramBuilder, call: Node) -> Term:
    rounding = call.args[2] if len(call.args) > 2 else None
    kind = result_kind(call)
    a, other = (load(b, argument, kind) for argument in call.args[:2])
    if rounding == "floor":
        return b.step(Opcode.DIV_FLOOR if kind == Kind.FLOAT else Opcode.INT_DIV_FLOOR, a, other, kind=kind)
    if kind == Kind.INTEGER:
        return b.step(Opcode.INT_DIV_TRUNC, a, other, kind=kind)
    quotient = b.step(Opcode.DIV, a, other)
    return b.step(Opcode.TRUNC, b.stored_as(quotient, call.output.dtype)) if rounding == "trunc" else quotient


@define("pow", "float_power")
def _power(b: ProgramBuilder, call: Node) -> Term:
    kind = result_kind(call)
    base, exponent = call.args[:2]
    if kind == Kind.INTEGER:
        return b.step(Opcode.INT_POW, load(b, base, kind), load(b, exponent, kind), kind=kind)
    a = load(b, base, kind)
    simple: dict[float, Opcode] = {-1: Opcode.RECIPROCAL, 1: Opcode.MOVE}
    if call.output.dtype != torch.float16:  # whose kernel takes no roots: they differ at -inf and -0
        simple |= {0.5: Opcode.SQRT, -0.5: Opcode.RSQRT}
    if not isinstance(exponent, Value):
        if exponent in simple:
            return b.step(simple[exponent], a)
        if exponent in (2, 3):
            square = b.step(Opcode.MUL, a, a)
            return square if exponent == 2 else b.step(Opcode.MUL, square, a)
    return b.step(Opcode.POW, a, load(b, exponent, kind))


@define("square")
def _square(b: ProgramBuilder, call: Node) -> Term:
    kind = result_kind(call)
    a = load(b, call.args[0], kind)
    return b.step(Opcode.MUL if kind == Kind.FLOAT else Opcode.INT_MUL, a, a, kind=kind)


@define("round")
def _round(b: ProgramBuilder, call: Node) -> Term:
    a = b.tensor(call.args[0])
    if a.kind != Kind.FLOAT:
        return a
    decimals = call.args[1] if len(call.args) > 1 else 0
    if decimals == 0:
        return b.step(Opcode.ROUND, a)
    scale = b.scalar(10.0 ** abs(decimals), Kind.FLOAT)
    grow, shrink = (Opcode.MUL, Opcode.DIV) if decimals > 0 else (Opcode.DIV, Opcode.MUL)
    return b.step(shrink, b.step(Opcode.ROUND, b.step(grow, a, scale)), scale)


@define("relu", "relu6")
def _relu(b: ProgramBuilder, call: Node) -> Term:
    kind = result_kind(call)
    a = load(b, call.args[0], kind)
    if call.qualified_op.startswith("aten::relu6"):
        return _clamped(b, a, 0, 6)
    if kind == Kind.FLOAT:
        return b.step(Opcode.RELU, a)
    return b.step(Opcode.INT_MAX, a, b.scalar(0, kind), kind=kind)


@define("clamp", "clip", "hardtanh")
def _clamp(b: ProgramBuilder, call: Node) -> Term:
    a, low, high = call.args[:3]
    return _clamped(b, load(b, a, result_kind(call)), low, high)


def _clamped(b: ProgramBuilder, a: Term, low: Any, high: Any) -> Term:
    if a.kind == Kind.FLOAT and low is not None and high is not None:
        return b.step(Opcode.CLAMP, a, load(b, low, a.kind), load(b, high, a.kind))
    largest, smallest = (Opcode.MAX, Opcode.MIN) if a.kind == Kind.FLOAT else (Opcode.INT_MAX, Opcode.INT_MIN)
    if low is not None:
        a = b.step(largest, a, load(b, low, a.kind), kind=a.kind)
    if high is not None:
        a = b.step(smallest, a, load(b, high, a.kind), kind=a.kind)
    return a


def _fake_quantize(b: ProgramBuilder, call: Node) -> Term:
    x, scale, low, high, inverse = call.args
    return rounded_to(b, b.tensor(x), scale, (low, high), inverse)


EXPRESSIONS[FAKE_QUANTIZE] = _fake_quantize


def _rounded_gate(b: ProgramBuilder, call: Node) -> Term:
    x, gate, scale, low, high, inverse = call.args
    value = b.step(Opcode[gate.upper()], b.tensor(x))
    return b.step(Opcode.MUL, b.tensor(x), rounded_to(b, value, scale, (low, high), inverse))


EXPRESSIONS[ROUNDED_GATE] = _rounded_gate


@define("gelu")
def _gelu(b: ProgramBuilder, call: Node) -> Term:
    opcode = Opcode.GELU_TANH if call["approximate"] == "tanh" else Opcode.GELU
    return b.step(opcode, b.tensor(call.args[0]))


@define("leaky_relu", "hardshrink", "softshrink")
def _one_parameter(b: ProgramBuilder, call: Node) -> Term:
    opcodes = {"leaky_relu": Opcode.PRELU, "hardshrink": Opcode.HARDSHRINK, "softshrink": Opcode.SOFTSHRINK}
    opcode = opcodes[_base_name(call.qualified_op)]
    return b.step(opcode, b.tensor(call.args[0]), b.scalar(call.args[1], Kind.FLOAT))


@define("threshold")
def _threshold(b: ProgramBuilder, call: Node) -> Term:
    kind = result_kind(call)
    a, limit, value = (load(b, argument, kind) for argument in call.args[:3])
    if kind == Kind.FLOAT:
        return b.step(Opcode.THRESHOLD, a, limit, value)
    return b.step(Opcode.SELECT, b.step(Opcode.INT_LE, a, limit, kind=Kind.BOOL), value, a, kind=kind)


@define("elu", "celu", "selu")
def _elu(b: ProgramBuilder, call: Node) -> Term:
    a = b.tensor(call.args[0])
    name = _base_name(call.qualified_op)
    if name == "elu":
        alpha, scale, input_scale = call.args[1:4]
    elif name == "celu":
        alpha, scale, input_scale = call.args[1], 1, 1 / call.args[1]
    else:
        alpha, scale, input_scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1
    bent = b.step(Opcode.ELU, a, b.scalar(alpha, Kind.FLOAT), b.scalar(input_scale, Kind.FLOAT))
    return bent if scale == 1 else b.step(Opcode.MUL, bent, b.scalar(scale, Kind.FLOAT))


@define("softplus")
def _softplus(b: ProgramBuilder, call: Node) -> Term:
    beta, threshold = (b.scalar(argument, Kind.FLOAT) for argument in call.args[1:3])
    return b.step(Opcode.SOFTPLUS, b.tensor(call.args[0]), beta, threshold)


@define("where")
def _where(b: ProgramBuilder, call: Node) -> Term:
    kind = kind_of(call.output.dtype)
    condition = load(b, call.args[0], Kind.BOOL)
    return b.step(Opcode.SELECT, condition, *(load(b, argument, kind) for argument in call.args[1:3]), kind=kind)


@define("masked_fill")
def _masked_fill(b: ProgramBuilder, call: Node) -> Term:
    kind = kind_of(call.output.dtype)
    data, mask, value = call.args[:3]
    return b.step(Opcode.SELECT, load(b, mask, Kind.BOOL), load(b, value, kind), load(b, data, kind), kind=kind)


@define("lerp")
def _lerp(b: ProgramBuilder, call: Node) -> Term:
    return b.step(Opcode.LERP, *(load(b, argument, Kind.FLOAT) for argument in call.args[:3]))


@define("addcmul", "addcdiv")
def _add_combination(b: ProgramBuilder, call: Node) -> Term:
    kind = result_kind(call)
    a, first, second = (load(b, argument, kind) for argument in call.args[:3])
    value = call["value"]
    if kind == Kind.INTEGER:
        product = b.step(Opcode.INT_MUL, b.step(Opcode.INT_MUL, first, b.scalar(value, kind)), second, kind=kind)
        return b.step(Opcode.INT_ADD, a, product, kind=kind)
    if value != 1:
        first = b.step(Opcode.MUL, first, b.scalar(value, kind))
    if call.qualified_op.startswith("aten::addcmul"):
        return b.step(Opcode.MULADD, first, second, a)
    return b.step(Opcode.ADD, a, b.step(Opcode.DIV, first, second))


@define("logical_not")
def _logical_not(b: ProgramBuilder, call: Node) -> Term:
    a = load(b, call.args[0], Kind.BOOL)
    return b.step(Opcode.INT_EQ, a, b.scalar(0, Kind.INTEGER), kind=Kind.BOOL)


@define("bitwise_not")
def _bitwise_not(b: ProgramBuilder, call: Node) -> Term:
    if call.output.dtype == torch.bool:
        return _logical_not(b, call)
    return b.step(Opcode.INT_NOT, b.tensor(call.args[0]), kind=Kind.INTEGER)


@define("isnan", "isinf", "isfinite")
def _classify(b: ProgramBuilder, call: Node) -> Term:
    a = load(b, call.args[0], Kind.FLOAT)
    name = _base_name(call.qualified_op)
    if name != "isfinite":
        return b.step(Opcode.IS_NAN if name == "isnan" else Opcode.IS_INF, a, kind=Kind.BOOL)
    not_finite = b.step(
        Opcode.INT_OR,
        b.step(Opcode.IS_NAN, a, kind=Kind.BOOL),
        b.step(Opcode.IS_INF, a, kind=Kind.BOOL),
        kind=Kind.BOOL,
    )
    return b.step(Opcode.INT_EQ, not_finite, b.scalar(0, Kind.BOOL), kind=Kind.BOOL)


@define("special_zeta")
def _zeta(b: ProgramBuilder, call: Node) -> Term:
    return b.step(Opcode.ZETA, *(load(b, argument, Kind.FLOAT) for argument in call.args[:2]), b.scalar(1, Kind.FLOAT))


_LARGEST_FACTORIAL = 34
"""What float32 has a factorial of; beyond, torch's is infinite."""


@define("polygamma", "special_polygamma")
def _polygamma(b: ProgramBuilder, call: Node) -> Term:
    """Derivatives of digamma are multiples of Hurwitz's zeta function (NIST Digital Library, 25.11.12)."""
    order, a = call["n"], load(b, call["self"], Kind.FLOAT)
    if order == 0:
        return b.step(Opcode.DIGAMMA, a)
    sign = 1 if order % 2 else -1
    power, has_factor = b.scalar(order + 1.0, Kind.FLOAT), order <= _LARGEST_FACTORIAL
    zeta = b.step(Opcode.ZETA, power, a, b.scalar(sign * math.factorial(order) if has_factor else 1, Kind.FLOAT))
    return zeta if has_factor else b.step(Opcode.MUL, zeta, b.scalar(sign * math.inf, Kind.FLOAT))


@define("signbit")
def _signbit(b: ProgramBuilder, call: Node) -> Term:
    a = b.tensor(call.args[0])
    if a.kind == Kind.FLOAT:
        return b.step(Opcode.SIGN_BIT, a, kind=Kind.BOOL)
    return b.step(Opcode.INT_LT, a, b.scalar(0, Kind.INTEGER), kind=Kind.BOOL)


@define("angle")
def _angle(b: ProgramBuilder, call: Node) -> Term:
    """Of real numbers: pi for negative ones."""
    a = load(b, call.args[0], Kind.FLOAT)
    negative = b.step(Opcode.LT, a, b.scalar(0, Kind.FLOAT), kind=Kind.BOOL)
    known = b.step(Opcode.SELECT, negative, b.scalar(math.pi, Kind.FLOAT), b.scalar(0, Kind.FLOAT))
    return b.step(Opcode.SELECT, b.step(Opcode.IS_NAN, a, kind=Kind.BOOL), a, known)


@define("nan_to_num")
def _nan_to_num(b: ProgramBuilder, call: Node) -> Term:
    a = b.tensor(call.args[0])
    if a.kind != Kind.FLOAT:
        return a
    largest = torch.finfo(call.output.dtype).max
    nan, above, below = (
        default if given is None else given
        for given, default in zip(call.args[1:4], (0.0, largest, -largest), strict=True)
    )
    result = b.step(Opcode.SELECT, b.step(Opcode.IS_NAN, a, kind=Kind.BOOL), b.scalar(nan, Kind.FLOAT), a)
    for value, infinite in ((above, math.inf), (below, -math.inf)):
        same = b.step(Opcode.EQ, a, b.scalar(infinite, Kind.FLOAT), kind=Kind.BOOL)
        result = b.step(Opcode.SELECT, same, b.scalar(value, Kind.FLOAT), result)
    return result


@define("fill")
def _fill(b: ProgramBuilder, call: Node) -> Term:
    value = call.args[1]
    return b.tensor(value) if isinstance(value, Value) else b.scalar(value, kind_of(call.output.dtype))


@define("zero")
def _zero(b: ProgramBuilder, call: Node) -> Term:
    return b.scalar(0, kind_of(call.output.dtype))


@define("copy")
def _copy(b: ProgramBuilder, call: Node) -> Term:
    return b.tensor(call.args[1])


def _base_name(operator: str) -> str:
    """``clamp`` of ``aten::clamp.Tensor``."""
    return operator.removeprefix("aten::").split(".")[0]
