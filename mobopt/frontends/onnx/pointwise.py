"""Operators of one element, or of pairs: arithmetic, comparisons, activations, casts."""

from __future__ import annotations

import math
from typing import Any

import torch

from mobopt.frontends.onnx.dynamic_layers import biased_layer, scaled_layer
from mobopt.frontends.onnx.elements import PACKED_BITS, dtype_of, type_name
from mobopt.frontends.onnx.layer_patterns import gelu, normalized, scaled_norm, shifted_norm
from mobopt.frontends.onnx.operands import Operand, carrier
from mobopt.frontends.onnx.patterns import interpolated, is_all, logarithm, made_by
from mobopt.frontends.onnx.pool_patterns import plane_indices, quotient_of_windows
from mobopt.frontends.onnx.registry import MICROSOFT, Call, translates

_UNARY = {
    "Abs": "abs",
    "Neg": "neg",
    "Ceil": "ceil",
    "Floor": "floor",
    "Round": "round",
    "Sqrt": "sqrt",
    "Reciprocal": "reciprocal",
    "Exp": "exp",
    "Sin": "sin",
    "Cos": "cos",
    "Tan": "tan",
    "Asin": "asin",
    "Acos": "acos",
    "Atan": "atan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Tanh": "tanh",
    "Asinh": "asinh",
    "Acosh": "acosh",
    "Atanh": "atanh",
    "Erf": "erf",
    "Sign": "sign",
    "Sigmoid": "sigmoid",
    "Relu": "relu",
    "IsNaN": "isnan",
    "Not": "logical_not",
    "BitwiseNot": "bitwise_not",
    "HardSwish": "hardswish",
    "Mish": "mish",
}
_OF_UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
_LARGEST = {
    torch.float8_e4m3fn: 448.0,
    torch.float8_e4m3fnuz: 240.0,
    torch.float8_e5m2: 57344.0,
    torch.float8_e5m2fnuz: 57344.0,
}
_OVER = {
    torch.float8_e4m3fn: math.nextafter(464.0, math.inf),
    torch.float8_e4m3fnuz: 248.0,
    torch.float8_e5m2: 61440.0,
    torch.float8_e5m2fnuz: 61440.0,
}
"""What is rounded to more than the largest."""


@translates(*_UNARY)
def _unary(call: Call) -> Any:
    x, op = call.tensor(), call.node.op_type
    if op in ("Abs", "Ceil", "Floor", "Round") and call.dtype() in (*_OF_UNSIGNED, torch.bool):
        return x
    return call.emit(_UNARY[op], x)


@translates("Log")
def _log(call: Call) -> Any:
    return logarithm(call.emit, call.tensor())


@translates("Identity")
def _identity(call: Call) -> Any:
    return call.inputs[0]


def check_order(call: Call) -> None:
    """Refuse operators that need the size of uint64, for the graph has them as int64.

    Raises:
        UnsupportedError: it is such a call.
    """
    if call.dtype(0) == torch.uint64:
        raise call.unsupported("it divides or shifts uint64")


def ordered(call: Call, x: Any) -> Any:
    """Elements in an order that int64 has too: those of uint64 with their highest bit turned; twice is once less."""
    return call.emit("bitwise_xor.Scalar", x, -(1 << 63)) if call.dtype(0) == torch.uint64 else x


@translates("Add")
def _add(call: Call) -> Any:
    terms = call.tensors()
    for known in (shifted_norm, biased_layer):
        found = known(call, terms)
        if found is not None:
            return found
    return call.emit("add.Tensor", *terms)


@translates("Sub")
def _sub(call: Call) -> Any:
    x, y = call.tensor(0), call.tensor(1)
    indices = plane_indices(x, y) if call.dtype() == torch.int64 else None
    return call.emit("sub.Tensor", x, y) if indices is None else indices


@translates("Mul")
def _mul(call: Call) -> Any:
    factors = call.tensors()
    for known in (scaled_norm, gelu, scaled_layer):
        found = known(call, factors)
        if found is not None:
            return found
    return call.emit("mul.Tensor", *factors)


@translates("Div")
def _div(call: Call) -> Any:
    x, y = call.tensor(0), call.tensor(1)
    if call.dtype().is_floating_point or call.dtype().is_complex:
        root = made_by(y, "aten::sqrt")
        if root is not None and is_all(x, 1) and x.numel() == 1 and x.dim() <= (call.operand(1).rank or 0):
            return call.emit("rsqrt", root.inputs[0])
        mean = quotient_of_windows(call, x, y)
        found = normalized(call, x, y) if mean is None else mean
        return call.emit("div.Tensor", x, y) if found is None else found
    check_order(call)
    return call.emit("div.Tensor_mode", x, y, "trunc")


@translates("Mod")
def _mod(call: Call) -> Any:
    check_order(call)
    return call.emit("fmod.Tensor" if call.get("fmod", 0) else "remainder.Tensor", call.tensor(0), call.tensor(1))


@translates("Pow")
def _pow(call: Call) -> Any:
    """The result is of the base's type, whatever the exponent's."""
    x, y = call.tensor(0), call.tensor(1)
    exponent = call.known(1)
    is_one = exponent is not None and len(exponent) == 1 and (call.operand(1).rank or 0) <= call.rank(0)
    dtype = carrier(call.dtype(0))
    if is_one and exponent is not None and (call.dtype(0).is_floating_point or exponent[0] == int(exponent[0]) >= 0):
        number = int(exponent[0]) if exponent[0] == int(exponent[0]) else exponent[0]
        return call.emit("pow.Tensor_Scalar", x, number)
    result = call.emit("pow.Tensor_Tensor", x, y)
    return result if call.dtype(0) == call.dtype(1) else call.emit("to.dtype", result, dtype)


@translates("BitShift")
def _shift(call: Call) -> Any:
    if call.get("direction") == "RIGHT":
        check_order(call)
    op = "bitwise_left_shift" if call.get("direction") == "LEFT" else "bitwise_right_shift"
    return call.emit(f"{op}.Tensor", call.tensor(0), call.tensor(1))


_BINARY = {
    "Equal": "eq",
    "Less": "lt",
    "Greater": "gt",
    "LessOrEqual": "le",
    "GreaterOrEqual": "ge",
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
}


@translates(*_BINARY)
def _binary(call: Call) -> Any:
    op = _BINARY[call.node.op_type]
    x, y = call.tensor(0), call.tensor(1)
    if call.node.op_type.startswith(("Less", "Greater")):
        x, y = ordered(call, x), ordered(call, y)
    overload = "" if op.startswith("logical") else ".Tensor"
    return call.emit(f"{op}{overload}", x, y)


@translates("Sum", "Mean")
def _sum(call: Call) -> Any:
    first, *rest = call.tensors()
    for other in rest:
        first = call.emit("add.Tensor", first, other)
    return call.emit("div.Scalar", first, len(call.inputs)) if call.node.op_type == "Mean" else first


@translates("Max", "Min")
def _extreme(call: Call) -> Any:
    first, *rest = call.tensors()
    if not rest:
        return first
    first = ordered(call, first)
    for other in rest:
        first = call.emit("maximum" if call.node.op_type == "Max" else "minimum", first, ordered(call, other))
    return ordered(call, first)


@translates("Where")
def _where(call: Call) -> Any:
    condition, left, right = (call.tensor(index) for index in range(3))
    found = interpolated(call.emit, condition, left, right) if call.out_dtype().is_floating_point else None
    return call.emit("where.self", condition, left, right) if found is None else found


@translates("Clip")
def _clip(call: Call) -> Any:
    """If the least is over the greatest, all elements are the greatest, as torch has it too."""
    low, high, x = call.get("min"), call.get("max"), call.tensor()
    if low is None and high is None and len(call.inputs) > 1:
        known = [call.known(index) if call.has(index) else [None] for index in (1, 2)]
        if any(bound is None for bound in known):
            for index, op in ((1, "maximum"), (2, "minimum")):
                if call.has(index):
                    x = call.emit(op, x, call.tensor(index))
            return x
        low, high = ((bound or [None])[0] for bound in known)
    if low is None and high is None:
        return call.inputs[0]
    return call.emit("clamp", x, low, high)


@translates("Cast")
def _cast(call: Call) -> Any:
    target = call.get("to")
    if type_name(target).upper() in PACKED_BITS:
        raise call.unsupported(f"it makes {type_name(target)}")
    return cast(call, dtype_of(target, call.place), call.get("saturate", 1))


@translates("CastLike")
def _cast_like(call: Call) -> Any:
    if call.operand(1).is_packed:
        raise call.unsupported("it makes integers of less than 8 bits")
    return cast(call, call.dtype(1), call.get("saturate", 1))


def cast(call: Call, target: torch.dtype, saturate: int = 1) -> Any:
    """The first input as another dtype."""
    x, given = call.tensor(), call.operand()
    if target == given.dtype:
        return given
    if target == torch.float32 and given.unrounded is not None:
        return Operand(target, given.sizes, given.unrounded)
    if target in _LARGEST:
        return Operand(target, given.sizes, rounded_to_float8(call, x, target, bool(saturate)))
    if target in (torch.uint16, torch.uint32, torch.uint64):
        return call.emit("to.dtype", x, torch.int64)
    return Operand(target, given.sizes, call.emit("to.dtype", x, target))


def rounded_to_float8(call: Call, x: Any, target: torch.dtype, saturate: bool) -> Any:
    """Numbers of float8, as float32."""
    x = call.emit("to.dtype", x, torch.float32)
    if saturate:
        x = call.emit("clamp", x, -_LARGEST[target], _LARGEST[target])
    else:
        beyond = call.emit("ge.Scalar", call.emit("abs", x), _OVER[target])
        # Dividing by zero keeps the sign of an infinity.
        over = call.emit("div.Scalar", x, 0.0) if target == torch.float8_e5m2 else torch.tensor(math.nan)
        rounded = call.emit("to.dtype", call.emit("to.dtype", x, target), torch.float32)
        return call.emit("where.self", beyond, over, rounded)
    return call.emit("to.dtype", call.emit("to.dtype", x, target), torch.float32)


@translates("BitCast")
def _bit_cast(call: Call) -> Any:
    target = dtype_of(call.get("to"), call.place)
    given = call.dtype()
    if not (target.is_floating_point or given.is_floating_point) and target.itemsize == given.itemsize:
        return call.emit("to.dtype", call.tensor(), carrier(target))
    if carrier(target) != target or carrier(given) != given:
        raise call.unsupported(f"it takes {call.dtype()} for {target}")
    return call.emit("view.dtype", call.tensor(), target)


@translates("IsInf")
def _isinf(call: Call) -> Any:
    x = call.tensor()
    positive, negative = call.get("detect_positive", 1), call.get("detect_negative", 1)
    if positive and negative:
        return call.emit("isinf", x)
    if not positive and not negative:
        return call.emit("zeros_like", x, dtype=torch.bool)
    return call.emit("eq.Scalar", x, math.inf if positive else -math.inf)


# Activations.


@translates("LeakyRelu")
def _leaky_relu(call: Call) -> Any:
    return call.emit("leaky_relu", call.tensor(), call.get("alpha", 0.01))


@translates("Elu")
def _elu(call: Call) -> Any:
    return call.emit("elu", call.tensor(), call.get("alpha", 1.0))


@translates("Celu")
def _celu(call: Call) -> Any:
    return call.emit("celu", call.tensor(), call.get("alpha", 1.0))


@translates("Selu")
def _selu(call: Call) -> Any:
    alpha, gamma = call.get("alpha", 1.6732632423543772), call.get("gamma", 1.0507009873554805)
    return call.emit("elu", call.tensor(), alpha, gamma, 1.0)


@translates("Softplus")
def _softplus(call: Call) -> Any:
    return call.emit("softplus", call.tensor())


@translates("Softsign")
def _softsign(call: Call) -> Any:
    x = call.tensor()
    return call.emit("div.Tensor", x, call.emit("add.Scalar", call.emit("abs", x), 1))


@translates("HardSigmoid")
def _hard_sigmoid(call: Call) -> Any:
    alpha, beta, x = call.get("alpha", 0.2), call.get("beta", 0.5), call.tensor()
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return call.emit("hardsigmoid", x)
    return call.emit("clamp", call.emit("add.Scalar", call.emit("mul.Scalar", x, alpha), beta), 0, 1)


@translates("ThresholdedRelu")
def _thresholded_relu(call: Call) -> Any:
    return call.emit("threshold", call.tensor(), call.get("alpha", 1.0), 0)


@translates("Shrink")
def _shrink(call: Call) -> Any:
    x, lambd, bias = call.tensor(), call.get("lambd", 0.5), call.get("bias", 0.0)
    low = call.emit("mul.Tensor", call.emit("add.Scalar", x, bias), call.emit("lt.Scalar", x, -lambd))
    high = call.emit("mul.Tensor", call.emit("sub.Scalar", x, bias), call.emit("gt.Scalar", x, lambd))
    return call.emit("to.dtype", call.emit("add.Tensor", low, high), call.dtype())


@translates("PRelu")
def _prelu(call: Call) -> Any:
    x, slope = call.tensor(0), call.tensor(1)
    sizes = call.operand(1).known_sizes
    rank = call.operand(0).rank
    if call.dtype().is_floating_point and sizes is not None and rank is not None and rank > 1:
        padded = [1] * (rank - len(sizes)) + list(sizes)
        if math.prod(padded) == padded[1]:  # one number for each channel
            return call.emit("prelu", x, call.emit("reshape", slope, [-1]))
    negative = call.emit("mul.Tensor", slope, x)
    return call.emit("where.self", call.emit("lt.Scalar", x, 0), negative, x)


@translates("Gelu")
def _gelu(call: Call) -> Any:
    return call.emit("gelu", call.tensor(), approximate=call.get("approximate", "none"))


@translates("Swish")
def _swish(call: Call) -> Any:
    alpha, x = call.get("alpha", 1.0), call.tensor()
    if alpha == 1.0:
        return call.emit("silu", x)
    return call.emit("mul.Tensor", x, call.emit("sigmoid", call.emit("mul.Scalar", x, alpha)))


@translates("Gelu", domain=MICROSOFT)
def _gelu_of_microsoft(call: Call) -> Any:
    return call.like(call.emit("gelu", call.tensor()))


@translates("FastGelu", domain=MICROSOFT)
def _fast_gelu(call: Call) -> Any:
    x = call.emit("add.Tensor", call.tensor(0), call.tensor(1)) if call.has(1) else call.tensor(0)
    return call.like(call.emit("gelu", x, approximate="tanh"))


@translates("BiasGelu", domain=MICROSOFT)
def _bias_gelu(call: Call) -> Any:
    return call.like(call.emit("gelu", call.emit("add.Tensor", call.tensor(0), call.tensor(1))))


@translates("QuickGelu", domain=MICROSOFT)
def _quick_gelu(call: Call) -> Any:
    x = call.tensor()
    return call.like(
        call.emit("mul.Tensor", x, call.emit("sigmoid", call.emit("mul.Scalar", x, call.get("alpha", 1.702))))
    )


@translates("Dropout")
def _dropout(call: Call) -> Any:
    """Of inference: nothing is dropped, and the mask says so."""
    training = call.known(2) if call.has(2) else [False]
    if training is None or training[0]:
        ratio = call.known(1) if call.has(1) else [0.5]
        if training is None or ratio is None or ratio[0] != 0:
            raise call.unsupported("it is in training mode")
    mask = None
    if call.wants(1):
        mask = call.emit("ones_like", call.tensor(), dtype=torch.bool if call.version >= 10 else call.dtype())
        mask = Operand(torch.bool if call.version >= 10 else call.dtype(), call.operand().sizes, mask)
    return [call.inputs[0], mask]
