"""Pointwise functions written with the few that PyTorch's Vulkan kernels compute right.

The exact gelu is ``x * sigmoid(x * P(x * x))`` with ``x`` in P kept within 6: ``x * P(x * x)`` is the logit of the
normal distribution Phi. P, of degree 6 in ``x * x``, was fitted by weighted least squares at 4000 Chebyshev nodes of
[0, 6], with weights raised 400 times where ``x * (sigmoid(x * P) - Phi(x))`` is largest (Lawson's algorithm for minimax
polynomials). That error is below 7e-8; in single precision it is 6e-7 at most. ``erf(z)`` is
``tanh(x * P(x * x) / 2)`` with ``x = sqrt(2) * z``, within 3e-7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mobopt.ir import Value
from mobopt.passes.legalizations.building import plus, times, weight_of
from mobopt.passes.legalizations.site import Refused, Site, legalizes

_NORMAL_LOGIT = (
    1.5957685368663128,
    0.07266829814975272,
    -6.605335775336594e-05,
    -0.00011054678327224304,
    7.948142497554391e-06,
    -2.675664407779807e-07,
    3.627855181206383e-09,
)
"""P, from the constant up; see above."""
_NORMAL_RANGE = 6.0
_STEEP = 1e38
"""What makes a step of a clamp: differences over 1e-38 become one."""
_MOST_FACTORS = 16
_LEAST_THRESHOLD = 15.0
"""exp of its negative is below 3.1e-7: from there on softplus is the identity in single precision, almost."""


def scaled(site: Site, x: Value, factor: float | Value) -> Value:
    """A tensor times a number."""
    result: Value = site.op("aten::mul.Scalar", x, factor)
    return result


def shifted(site: Site, x: Value, summand: float) -> Value:
    """A tensor plus a number."""
    result: Value = site.op("aten::add.Scalar", x, summand, 1)
    return result


def clamped(site: Site, x: Value, low: float | None, high: float | None) -> Value:
    """A tensor kept within bounds."""
    result: Value = site.op("aten::clamp", x, low, high)
    return result


def divided(site: Site, left: Value | torch.Tensor, right: Value) -> Value:
    """A quotient of tensors, element by element."""
    result: Value = site.op("aten::div.Tensor", left, right)
    return result


def minus(site: Site, left: Value, right: Value) -> Value:
    """A difference of tensors."""
    result: Value = site.op("aten::sub.Tensor", left, right, 1)
    return result


def called(site: Site, name: str, x: Value) -> Value:
    """A function of one tensor."""
    result: Value = site.op(f"aten::{name}", x)
    return result


def polynomial(site: Site, x: Value, coefficients: Sequence[float]) -> Value:
    """A polynomial by Horner's rule, with the constant first."""
    result = scaled(site, x, coefficients[-1])
    for coefficient in coefficients[-2:0:-1]:
        result = times(site, shifted(site, result, coefficient), x)
    return shifted(site, result, coefficients[0])


def _complement(site: Site, x: Value) -> Value:
    """1 - x."""
    return shifted(site, scaled(site, x, -1.0), 1.0)


def _step(site: Site, x: Value) -> Value:
    """One where x is positive, else zero."""
    return clamped(site, scaled(site, x, _STEEP), 0.0, 1.0)


def _normal_logit(site: Site, x: Value) -> Value:
    near = clamped(site, x, -_NORMAL_RANGE, _NORMAL_RANGE)
    return times(site, polynomial(site, times(site, near, near), _NORMAL_LOGIT), near)


def _expm1_below(site: Site, x: Value) -> Value:
    """exp(x) - 1 of elements up to zero, as 2 t / (1 - t) with t = tanh(x / 2): nothing cancels."""
    half = called(site, "tanh", scaled(site, x, 0.5))
    return divided(site, scaled(site, half, 2.0), _complement(site, half))


@legalizes("silu_by_sigmoid", level="safe")
def silu_by_sigmoid(site: Site) -> Value:
    """The input times its sigmoid."""
    x = site.arg("self")
    return times(site, x, called(site, "sigmoid", x))


@legalizes("gelu_by_sigmoid", level="safe")
def gelu_by_sigmoid(site: Site) -> Value:
    """The input times the sigmoid of a polynomial, within 6e-7 of the exact gelu."""
    x = site.arg("self")
    return times(site, x, called(site, "sigmoid", _normal_logit(site, x)))


@legalizes("gelu_tanh_by_sigmoid", level="safe")
def gelu_tanh_by_sigmoid(site: Site) -> Value:
    """The input times a sigmoid: (1 + tanh(u)) / 2 is sigmoid(2 u)."""
    x = site.arg("self")
    factor = 2.0 * math.sqrt(2.0 / math.pi)
    inner = shifted(site, scaled(site, times(site, x, x), factor * 0.044715), factor)
    return times(site, x, called(site, "sigmoid", times(site, inner, x)))


@legalizes("erf_by_tanh", level="safe")
def erf_by_tanh(site: Site) -> Value:
    """The hyperbolic tangent of a polynomial, within 3e-7."""
    logit = _normal_logit(site, scaled(site, site.arg("self"), math.sqrt(2.0)))
    return called(site, "tanh", scaled(site, logit, 0.5))


@legalizes("mish_by_sigmoid", level="safe")
def mish_by_sigmoid(site: Site) -> Value:
    """With s its sigmoid and q = s (2 - s), the input times q / (2 - q), which is tanh(softplus(x))."""
    x = site.arg("self")
    gate = called(site, "sigmoid", x)
    square = times(site, gate, shifted(site, scaled(site, gate, -1.0), 2.0))
    quotient = divided(site, square, shifted(site, scaled(site, square, -1.0), 2.0))
    return times(site, x, quotient)


@legalizes("elu_by_tanh", level="safe")
def elu_by_tanh(site: Site) -> Value:
    """Relu plus 2 t / (1 - t) with t the hyperbolic tangent of half of what is below zero."""
    alpha, scale, input_scale = _elu_parameters(site)
    if input_scale <= 0:
        raise Refused(f"its input scale is {input_scale}")
    x = site.arg("self")
    below = scaled(site, _expm1_below(site, scaled(site, clamped(site, x, None, 0.0), input_scale)), alpha * scale)
    above = called(site, "relu", x)
    return plus(site, above if scale == 1 else scaled(site, above, scale), below)


def _elu_parameters(site: Site) -> tuple[float, float, float]:
    """Alpha, scale and input scale of elu, celu or selu."""
    if site.node.op == "aten::selu":
        return 1.6732632423543772, 1.0507009873554805, 1.0
    alpha = float(site.const("alpha"))
    if site.node.op == "aten::celu":
        return alpha, 1.0, 1.0 / alpha
    return alpha, float(site.const("scale")), float(site.const("input_scale"))


@legalizes("prelu_by_parts", level="safe")
def prelu_by_parts(site: Site) -> Value:
    """Relu, plus what is below zero times the weight."""
    x, weight = site.arg("self"), weight_of(site).flatten()
    if len(weight) == 1:
        result: Value = site.op("aten::leaky_relu", x, float(weight))
        return result
    rank = site.rank("self")
    shape = [len(weight), *[1] * (rank - 2)]
    return plus(site, called(site, "relu", x), times(site, clamped(site, x, None, 0.0), weight.reshape(shape)))


@legalizes("softplus_by_log", level="safe")
def softplus_by_log(site: Site) -> Value:
    """Relu plus log(1 + exp(-|x|)), within 1.2e-7."""
    x = site.arg("self")
    if site.node.op == "aten::log_sigmoid":
        return minus(site, clamped(site, x, None, 0.0), _log_of_sum(site, x))
    beta, threshold = float(site.const("beta")), float(site.const("threshold"))
    if threshold < _LEAST_THRESHOLD or beta <= 0:
        raise Refused(f"its threshold is {threshold} and its beta {beta}")
    rest = _log_of_sum(site, x if beta == 1 else scaled(site, x, beta))
    return plus(site, called(site, "relu", x), rest if beta == 1 else scaled(site, rest, 1.0 / beta))


def _log_of_sum(site: Site, x: Value) -> Value:
    """log(1 + exp(-|x|))."""
    small = called(site, "exp", scaled(site, called(site, "abs", x), -1.0))
    return called(site, "log", shifted(site, small, 1.0))


@legalizes("softshrink_by_clamp", level="safe")
def softshrink_by_clamp(site: Site) -> Value:
    """The input less itself kept within the threshold."""
    x, threshold = site.arg("self"), float(site.const("lambd"))
    return minus(site, x, clamped(site, x, -threshold, threshold))


@legalizes("threshold_by_step", level="safe")
def threshold_by_step(site: Site) -> Value:
    """The input times a step, plus the value times what the step leaves; for finite elements."""
    x, value = site.arg("self"), float(site.const("value"))
    step = _step(site, shifted(site, x, -float(site.const("threshold"))))
    return plus(site, times(site, x, step), scaled(site, _complement(site, step), value))


@legalizes("clamp_one_side", level="safe")
def clamp_one_side(site: Site) -> Value:
    """A clamp without the other bound."""
    is_low = site.node.op == "aten::clamp_min"
    bounds = (site.arg("min"), None) if is_low else (None, site.arg("max"))
    result: Value = site.op("aten::clamp", site.arg("self"), *bounds)
    return result


@legalizes("clamp_by_tensors", level="safe")
def clamp_by_tensors(site: Site) -> Value:
    """A maximum and a minimum."""
    result = site.arg("self")
    for name, op in (("min", "aten::maximum"), ("max", "aten::minimum")):
        if site.node.op not in ("aten::clamp", f"aten::clamp_{name}"):
            continue
        bound = site.arg(name)
        if not (bound.is_constant and bound.constant is None):
            result = site.op(op, result, bound)
    return result


@legalizes("abs_by_relu", level="safe")
def abs_by_relu(site: Site) -> Value:
    """What is above zero, plus the negative of what is below: exact."""
    x = site.arg("self")
    return plus(site, called(site, "relu", x), called(site, "relu", scaled(site, x, -1.0)))


@legalizes("exp_by_sigmoids", level="safe")
def exp_by_sigmoids(site: Site) -> Value:
    """sigmoid(x) / sigmoid(-x), without cancellation."""
    x = site.arg("self")
    return divided(site, called(site, "sigmoid", x), called(site, "sigmoid", scaled(site, x, -1.0)))


@legalizes("expm1_by_exp", level="safe")
def expm1_by_exp(site: Site) -> Value:
    """Below zero by a hyperbolic tangent, above by exp(x) (1 - exp(-x)): nothing cancels."""
    x = site.arg("self")
    above = called(site, "relu", x)
    grown = times(site, called(site, "exp", above), _expm1_below(site, scaled(site, above, -1.0)))
    return minus(site, _expm1_below(site, clamped(site, x, None, 0.0)), grown)


@legalizes("log_of_other_base", level="safe")
def log_of_other_base(site: Site) -> Value:
    """The natural logarithm times a number."""
    base = {"aten::log2": 2.0, "aten::log10": 10.0}[site.node.op]
    return scaled(site, called(site, "log", site.arg("self")), 1.0 / math.log(base))


@legalizes("log_of_one_more", level="full")
def log_of_one_more(site: Site) -> Value:
    """The logarithm of the sum, whose error is 6e-8 also where the result is smaller."""
    return called(site, "log", shifted(site, site.arg("self"), 1.0))


@legalizes("times_minus_one", level="safe")
def times_minus_one(site: Site) -> Value:
    """The input times -1."""
    return scaled(site, site.arg("self"), -1.0)


@legalizes("times_itself", level="safe")
def times_itself(site: Site) -> Value:
    """The input times itself."""
    return times(site, site.arg("self"), site.arg("self"))


@legalizes("sign_by_clamp", level="safe")
def sign_by_clamp(site: Site) -> Value:
    """A steep clamp between -1 and 1."""
    return clamped(site, scaled(site, site.arg("self"), _STEEP), -1.0, 1.0)


@legalizes("power_by_products", level="safe")
def power_by_products(site: Site) -> Value:
    """Products of the input, and a quotient if the exponent is negative."""
    exponent = int(site.const("exponent"))
    if exponent == 0 or abs(exponent) > _MOST_FACTORS:
        raise Refused(f"its exponent is {exponent}")
    power, square, rest = None, site.arg("self"), abs(exponent)
    while rest:
        if rest & 1:
            power = square if power is None else times(site, power, square)
        rest >>= 1
        square = times(site, square, square) if rest else square
    assert power is not None
    return power if exponent > 0 else divided(site, torch.ones(1), power)


@legalizes("one_divided", level="safe")
def one_divided(site: Site) -> Value:
    """One divided by the input, its root or its power: the kernel of division leaves no infinite lanes."""
    x, op = site.arg("self"), site.node.op
    if op == "aten::pow":
        return divided(site, torch.ones(1), site.op("aten::pow.Tensor_Scalar", x, -float(site.const("exponent"))))
    return divided(site, torch.ones(1), called(site, "sqrt", x) if op == "aten::rsqrt" else x)


@legalizes("subtract_reversed", level="safe")
def subtract_reversed(site: Site) -> Value:
    """The other operand less this one, or this one times -1 plus the number."""
    x, alpha = site.arg("self"), site.const("alpha")
    is_tensor = site.node.overload == "Tensor"
    name, operands = (
        ("sub.Tensor", (site.arg("other"), x, alpha)) if is_tensor else ("add.Scalar", _number_less(site, x))
    )
    result: Value = site.op(f"aten::{name}", *operands)
    return result


def _number_less(site: Site, x: Value) -> tuple[Value, Value, int]:
    return scaled(site, x, -float(site.const("alpha"))), site.arg("other"), 1


@legalizes("lerp_in_steps", level="safe")
def lerp_in_steps(site: Site) -> Value:
    """The start plus the weighted difference."""
    start, weight = site.arg("self"), site.arg("weight")
    difference = minus(site, site.arg("end"), start)
    is_number = site.node.overload == "Scalar"
    return plus(site, start, scaled(site, difference, weight) if is_number else times(site, difference, weight))


@legalizes("add_scaled", level="safe")
def add_scaled(site: Site) -> Value:
    """A product or quotient, scaled and added."""
    left, right, value = site.arg("tensor1"), site.arg("tensor2"), site.const("value")
    part = times(site, left, right) if site.node.op == "aten::addcmul" else divided(site, left, right)
    result: Value = site.op("aten::add.Tensor", site.arg("self"), part, value)
    return result
