"""What is measured of each pointwise function: how torch calls it, what it is in float64, and how far off it may be.

Parameters (slopes, limits, factors) are exact in float32, so that both sides compute the same function.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import mpmath  # type: ignore[import-untyped]  # torch brings it, with sympy
import torch
import torch.nn.functional as F  # noqa: N812

Compute = Callable[..., torch.Tensor]


class Domain(Enum):
    """Which arguments a function is measured at."""

    ONE = "one float"
    TWO = "two floats of any sizes"
    NEAR = "two floats within 2^12 of each other"
    POWERS = "a base and an exponent with a finite power"
    ZETA = "an exponent above one and a positive number"


@dataclass(frozen=True)
class Function:
    """One row of the table."""

    name: str
    operators: tuple[str, ...]
    """Names in ``aten``, without overloads and trailing underscores, that compute it."""
    bar: float
    """Units in the last place that it may be off by; 0: exact."""
    compute: Compute
    """On float32 tensors."""
    reference: Compute
    """On the same numbers in float64, exact to float32."""
    domain: Domain = Domain.ONE
    scale: Compute | None = None
    """What the units are those of, if not the result: the largest term of a sum that may cancel."""
    zero_signs: bool = True
    """Whether zeros have a sign that torch promises."""
    small_terms: bool = False
    """Whether what it is a sum or product of may be subnormal where the result isn't: flushing devices lose that."""


_NEAR_ONE, _OTHERS, _ROUNDED = 4.0, 16.0, 0.502


def functions() -> list[Function]:
    """Every pointwise function of floats."""
    return [*_elementary(), *_special(), *_activations(), *_arithmetic(), *_exact()]


ON_INTEGERS = frozenset(
    [
        "logical_and",
        "logical_or",
        "logical_xor",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "bitwise_not",
        "bitwise_left_shift",
        "bitwise_right_shift",
        "__and__",
        "__or__",
        "__xor__",
        "__lshift__",
        "__rshift__",
        "logical_not",
    ]
)
"""Pointwise operators that compute with integers and booleans alone."""

MOVES = frozenset(
    [
        "alias",
        "detach",
        "clone",
        "contiguous",
        "to",
        "_to_copy",
        "type_as",
        "cpu",
        "copy",
        "fill",
        "zero",
        "where",
        "masked_fill",
        "tril",
        "triu",
    ]
)
"""Pointwise operators that only choose among numbers."""


def _plain(name: str, bar: float, *aliases: str, reference: Compute | None = None) -> Function:
    compute = getattr(torch, name)
    return Function(name, (name, *aliases), bar, compute, reference or compute)


def _elementary() -> Iterator[Function]:
    yield _plain("exp", _NEAR_ONE)
    yield _plain("exp2", _NEAR_ONE, "special_exp2")
    yield _plain("expm1", _NEAR_ONE, "special_expm1")
    for name in ("log", "log2", "log10"):
        yield _plain(name, _NEAR_ONE)
    yield _plain("log1p", _NEAR_ONE, "special_log1p")
    for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh"):
        yield _plain(name, _NEAR_ONE)
    for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh"):
        yield _plain(f"a{name}", _NEAR_ONE, f"arc{name}")
    yield Function("atan2", ("atan2", "arctan2"), _NEAR_ONE, torch.atan2, torch.atan2, Domain.TWO)
    yield _plain("erf", _OTHERS, "special_erf")
    yield Function("pow", ("pow", "float_power"), _OTHERS, torch.pow, torch.pow, Domain.POWERS)
    yield _plain("sqrt", _OTHERS)
    yield _plain("rsqrt", _OTHERS)
    yield _plain("reciprocal", _OTHERS)


def _special() -> Iterator[Function]:
    yield _plain("erfc", _OTHERS, "special_erfc")
    yield _plain("erfinv", _OTHERS, "special_erfinv")
    for name in ("erfcx", "log_ndtr", "ndtri", "i1", "i0e", "i1e"):
        compute = getattr(torch.special, name)
        aliases = ("special_modified_bessel_i1",) if name == "i1" else ()
        yield Function(name, (f"special_{name}", *aliases), _OTHERS, compute, compute)
    yield _plain("i0", _OTHERS, "special_i0", "special_modified_bessel_i0")
    for name in ("modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1"):
        compute = getattr(torch.special, name)
        yield Function(name, (f"special_{name}",), _OTHERS, compute, compute)
    for kind, order in itertools.product("jy", (0, 1)):
        compute = getattr(torch.special, f"bessel_{kind}{order}")
        reference = _keywords(_bessel, kind=kind, order=order)
        scale = _keywords(_modulus, order=order)
        yield Function(
            f"bessel_{kind}{order}", (f"special_bessel_{kind}{order}",), _OTHERS, compute, reference, scale=scale
        )
    yield Function("lgamma", ("lgamma", "special_gammaln"), _OTHERS, torch.lgamma, torch.lgamma, scale=_gamma_terms)
    digamma = ("digamma", "special_digamma", "special_psi")
    yield Function("digamma", digamma, _OTHERS, torch.digamma, torch.digamma, scale=_digamma_terms)
    yield Function("zeta", ("special_zeta",), _OTHERS, torch.special.zeta, torch.special.zeta, Domain.ZETA)
    for order in (1, 2, 3):
        compute = _keywords(_polygamma, order=order)
        reference = _keywords(_polygamma_by_zeta, order=order)
        scale = _keywords(_polygamma_terms, order=order)
        names = ("polygamma", "special_polygamma")
        yield Function(f"polygamma {order}", names, _OTHERS, compute, reference, scale=scale)


def _activations() -> Iterator[Function]:
    yield _plain("sigmoid", _OTHERS, "special_expit")
    yield Function("log_sigmoid", ("log_sigmoid",), _OTHERS, F.logsigmoid, F.logsigmoid)
    yield Function("silu", ("silu",), _OTHERS, F.silu, F.silu)
    yield Function("mish", ("mish",), _OTHERS, F.mish, F.mish)
    yield Function("gelu", ("gelu",), _OTHERS, F.gelu, _gelu)
    yield Function("gelu, tanh", ("gelu",), _OTHERS, lambda x: F.gelu(x, approximate="tanh"), _gelu_tanh)
    yield Function("glu", ("glu",), _OTHERS, _glu, _glu)
    yield Function("softplus", ("softplus",), _OTHERS, F.softplus, F.softplus)
    yield Function(
        "softplus, beta 2.5",
        ("softplus",),
        _OTHERS,
        lambda x: F.softplus(x, 2.5, 15.0),
        lambda x: F.softplus(x, 2.5, 15.0),
    )
    yield Function("elu", ("elu",), _OTHERS, lambda x: F.elu(x, 0.75), lambda x: _elu(x, 0.75))
    yield Function("celu", ("celu",), _OTHERS, lambda x: F.celu(x, 0.5), lambda x: _elu(x, 0.5, 1.0, 2.0))
    yield Function("selu", ("selu",), _OTHERS, torch.selu, lambda x: _elu(x, *_SELU))
    yield Function("hardswish", ("hardswish",), _OTHERS, F.hardswish, lambda x: x * (F.relu6(x + 3) / 6))
    yield Function("hardsigmoid", ("hardsigmoid",), _OTHERS, F.hardsigmoid, F.hardsigmoid)
    softshrink = _with_parameters("softshrink", F.softshrink, 0.5, bar=_ROUNDED)
    yield replace(softshrink, zero_signs=False)  # torch's vectorised and scalar code differ
    yield _with_parameters("leaky_relu", F.leaky_relu, 0.375, bar=_ROUNDED)
    yield Function("prelu", ("prelu", "_prelu_kernel"), _ROUNDED, _prelu, _prelu)


def _arithmetic() -> Iterator[Function]:
    for name, aliases in {"add": (), "sub": ("subtract",), "mul": ("multiply",)}.items():
        compute = getattr(torch, name)
        yield Function(name, (name, *aliases), _ROUNDED, compute, compute, Domain.NEAR)
    yield Function("square", ("square",), _ROUNDED, torch.square, torch.square)
    division = ("div", "divide", "true_divide")
    yield Function("div", division, _OTHERS, torch.div, torch.div, Domain.TWO)
    yield Function("div, trunc", division, 0, _div_trunc, lambda a, b: _div_trunc(a.float(), b.float()), Domain.NEAR)
    yield Function("floor_divide", ("floor_divide", *division), _OTHERS, torch.floor_divide, _floor_divide, Domain.TWO)
    yield Function("remainder", ("remainder",), _ROUNDED, torch.remainder, torch.remainder, Domain.TWO)
    yield Function("fmod", ("fmod",), 0, torch.fmod, torch.fmod, Domain.TWO)
    for name, aliases in {"add": (), "sub": ("subtract",), "rsub": ()}.items():
        compute = _keywords(getattr(torch, name), alpha=0.375)
        yield replace(_sum_of_two(f"{name}, alpha", 3, compute, _larger), operators=(name, *aliases))
    yield _sum_of_two("addcmul", 3, _addcmul, lambda a, b: _larger(a, 0.75 * a * b))
    yield _sum_of_two("addcdiv", _OTHERS, _addcdiv, lambda a, b: _larger(b, a / b))
    yield _sum_of_two("lerp", 3, _lerp, _larger)


def _exact() -> Iterator[Function]:
    for name, aliases in {
        "neg": ("negative",),
        "abs": ("absolute",),
        "sign": ("sgn",),
        "floor": (),
        "ceil": (),
        "trunc": ("fix",),
        "round": (),
        "frac": (),
        "relu": (),
        "isnan": (),
        "isinf": (),
        "isfinite": (),
        "signbit": (),
    }.items():
        yield _plain(name, 0, *aliases)
    yield _plain("angle", _ROUNDED)
    yield Function(
        "frexp, mantissa", ("frexp",), 0, lambda x: torch.frexp(x).mantissa, lambda x: torch.frexp(x).mantissa
    )
    yield Function(
        "frexp, exponent", ("frexp",), 0, lambda x: torch.frexp(x).exponent, lambda x: torch.frexp(x).exponent
    )
    yield Function("copysign", ("copysign",), 0, torch.copysign, torch.copysign, Domain.NEAR)
    yield Function("nextafter", ("nextafter",), 0, torch.nextafter, _next_after, Domain.NEAR)
    yield Function("relu6", ("relu6",), 0, F.relu6, F.relu6)
    yield _with_parameters("hardtanh", F.hardtanh, -0.25, 0.75)
    yield _with_parameters("hardshrink", F.hardshrink, 0.5)
    yield _with_parameters("threshold", F.threshold, 0.5, -7.0)
    yield _with_parameters("clamp", torch.clamp, -0.25, 0.75, aliases=("clip",))
    yield _with_parameters("clamp_min", torch.clamp_min, 0.5)
    yield _with_parameters("clamp_max", torch.clamp_max, 0.5)
    yield _with_parameters("nan_to_num", torch.nan_to_num, 2.0, 4.0, -4.0)
    for name, aliases in {
        "maximum": ("max",),
        "minimum": ("min",),
        "eq": (),
        "ne": ("not_equal",),
        "lt": ("less",),
        "le": ("less_equal",),
        "gt": ("greater",),
        "ge": ("greater_equal",),
    }.items():
        compute = getattr(torch, name)
        yield Function(name, (name, *aliases), 0, compute, compute, Domain.NEAR, zero_signs="imum" not in name)


def _with_parameters(
    name: str, function: Compute, *parameters: float, bar: float = 0, aliases: tuple[str, ...] = ()
) -> Function:
    def compute(x: torch.Tensor) -> torch.Tensor:
        return function(x, *parameters)

    return Function(name, (name, *aliases), bar, compute, compute)


def _sum_of_two(name: str, bar: float, compute: Compute, scale: Compute) -> Function:
    return Function(name, (name,), bar, compute, compute, Domain.NEAR, scale, small_terms=True)


def _keywords(function: Compute, **keywords: Any) -> Compute:
    return lambda *tensors: function(*tensors, **keywords)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    """``x`` times the normal distribution's mass below it, without the cancellation of ``1 + erf``."""
    below: torch.Tensor = 0.5 * torch.special.erfc(-x * math.sqrt(0.5))
    return x * below


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def _glu(x: torch.Tensor) -> torch.Tensor:
    """With gates that are normal numbers, as torch rounds the gate."""
    return F.glu(torch.stack((x, x.clamp(min=-87.0))), 0)[0]


_SELU = (1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def _elu(x: torch.Tensor, alpha: float, scale: float = 1.0, input_scale: float = 1.0) -> torch.Tensor:
    return scale * torch.where(x > 0, x, alpha * torch.expm1(x * input_scale))


def _prelu(x: torch.Tensor) -> torch.Tensor:
    return F.prelu(x, x.new_full((1,), 0.375))


def _div_trunc(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What is rounded is the quotient in float32, so the reference is torch's own."""
    return torch.div(a, b, rounding_mode="trunc")


def _floor_divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.floor_divide(a, b)


def _addcmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(a, a, b, value=0.75)


def _addcdiv(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.addcdiv(b, a, b)


def _lerp(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The difference may overflow, in torch as well."""
    return torch.where((b - a).abs() > torch.finfo(torch.float32).max, b - a, torch.lerp(a, b, 0.375))


def _larger(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.maximum(a.abs(), b.abs())


def _next_after(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nextafter(a.float(), b.float())


_PHASES = {0: math.pi / 4, 1: 3 * math.pi / 4}


def _modulus(x: torch.Tensor, order: int) -> torch.Tensor:
    """The amplitude of the oscillation, or what the second kind has more near zero."""
    first, second = (getattr(torch.special, f"bessel_{kind}{order}")(x.abs()) for kind in "jy")
    return torch.where(x.abs() < 1e6, torch.hypot(first, second), (2 / math.pi / x.abs()).sqrt())


def _bessel(x: torch.Tensor, kind: str, order: int) -> torch.Tensor:
    """Where torch subtracts the phase from arguments that are too large for it, by the first term of the expansion."""
    a = x.abs()
    shift = (4 * order**2 - 1) / 8 / a - _PHASES[order]
    cosine, sine = torch.cos(a), torch.sin(a)
    if kind == "j":
        wave = cosine * shift.cos() - sine * shift.sin()
    else:
        wave = sine * shift.cos() + cosine * shift.sin()
    far = (2 / math.pi / a).sqrt() * wave
    near = getattr(torch.special, f"bessel_{kind}{order}")(x)
    sign = x.sign() if kind == "j" and order else torch.where((x > 0) | (kind == "j"), 1.0, math.nan)
    result = torch.where((a < 1e6) | a.isinf(), near, far * sign)
    # From 5 on torch's own series is right to 7e-7 only; it is exact enough later.
    rough = (x.abs() >= 5) & (x.abs() < 40) & ((x > 0) | (kind == "j"))
    function = getattr(mpmath, f"bessel{kind}")
    result[rough] = torch.tensor([float(function(order, each)) for each in x[rough].tolist()], dtype=x.dtype)
    return result


def _gamma_terms(x: torch.Tensor) -> torch.Tensor:
    """Below zero, logarithms of both sides of the reflection."""
    found = torch.lgamma(x).abs()
    return torch.where(x < 0, torch.maximum(found, torch.lgamma(1 - x).abs()).clamp(min=1.0), found)


def _digamma_terms(x: torch.Tensor) -> torch.Tensor:
    """Below zero, both sides of the reflection."""
    found = torch.digamma(x).abs()
    return torch.where(x < 0, torch.maximum(found, torch.digamma(1 - x).abs()).clamp(min=1.0), found)


_LOWEST = -200.5
"""Torch sums up as many powers as a negative argument has whole numbers above it."""


def _polygamma(x: torch.Tensor, order: int) -> torch.Tensor:
    return torch.polygamma(order, x.clamp(min=_LOWEST))


def _polygamma_by_zeta(x: torch.Tensor, order: int) -> torch.Tensor:
    factor = math.factorial(order) * (1 if order % 2 else -1)
    zeta: torch.Tensor = torch.special.zeta(torch.full_like(x, order + 1.0), x.clamp(min=_LOWEST))
    return factor * zeta


def _polygamma_terms(x: torch.Tensor, order: int) -> torch.Tensor:
    """Below zero, the terms on both sides of it."""
    found = _polygamma_by_zeta(x, order).abs()
    place = x.clamp(min=_LOWEST)
    distance = (place - place.round()).abs()
    terms = _polygamma_by_zeta(distance, order).abs() + _polygamma_by_zeta(1 - distance, order).abs()
    return torch.where(x < 0, torch.maximum(found, terms), found)
