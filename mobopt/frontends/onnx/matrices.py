"""Products of matrices."""

from __future__ import annotations

from typing import Any

import torch

from mobopt.frontends.onnx.few_bits import of_rows, product, transposed
from mobopt.frontends.onnx.operands import Operand
from mobopt.frontends.onnx.registry import MICROSOFT, Call, translates


@translates("MatMul")
def _matmul(call: Call) -> Any:
    return product(call.emit, call.tensor(0), call.tensor(1))


@translates("Gemm")
def _gemm(call: Call) -> Any:
    emit, a, b = call.emit, call.tensor(0), call.tensor(1)
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    is_floating = call.dtype().is_floating_point
    a = emit("t", a) if call.get("transA", 0) else a
    bias = call.tensor(2)
    rank = call.operand(2).rank if bias is not None else None
    known = call.operand(2).known_sizes if bias is not None else None
    columns = (
        None if call.operand(1).sizes is None else (call.operand(1).sizes or ())[0 if call.get("transB", 0) else 1]
    )
    fits = bias is None or (rank == 1 and known is not None and known[0] == columns and beta == 1)
    if is_floating and fits and alpha == 1.0:
        weight = b if call.get("transB", 0) else transposed(emit, b)
        return emit("linear", a, weight, bias)
    b = transposed(emit, b) if call.get("transB", 0) else b
    result = product(emit, a, b)
    if not is_floating:
        alpha, beta = int(alpha), int(beta)
    result = result if alpha == 1 else emit("mul.Scalar", result, alpha)
    if bias is None:
        return result
    return emit("add.Tensor", result, bias if beta == 1 else emit("mul.Scalar", bias, beta))


@translates("Einsum")
def _einsum(call: Call) -> Any:
    return call.emit("einsum", call.get("equation").replace(" ", ""), call.tensors())


@translates("Det")
def _det(call: Call) -> Any:
    return call.emit("linalg_det", call.tensor())


@translates("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def _fused_matmul(call: Call) -> Any:
    emit = call.emit
    product = emit("matmul", _turned(call, 0, "A"), _turned(call, 1, "B"))
    alpha = call.get("alpha", 1.0)
    product = product if alpha == 1.0 else emit("mul.Scalar", product, alpha)
    return Operand(call.dtype(), _product_sizes(call), product)


def _turned(call: Call, index: int, name: str) -> Any:
    """A factor whose rows come first, before the batches, or whose matrices are transposed, or both."""
    emit, x = call.emit, call.tensor(index)
    if call.get(f"transBatch{name}", 0):
        rank = call.rank(index)
        x = emit("permute", x, [*range(1, rank - 1), 0, rank - 1])
    return emit("transpose.int", x, -2, -1) if call.get(f"trans{name}", 0) else x


def _product_sizes(call: Call) -> tuple[int | None, ...] | None:
    """Of a product whose batches are not known to fit each other: their number."""
    ranks = [call.operand(index).rank for index in (0, 1)]
    known = [rank for rank in ranks if rank is not None]
    return (None,) * max(known) if len(known) == 2 else None


@translates("FusedGemm", domain=MICROSOFT)
def _fused_gemm(call: Call) -> Any:
    return Operand(call.dtype(), (None, None), activated(call, _gemm(call), "activation"))


def activated(call: Call, x: Any, attribute: str = "activation") -> Any:
    """What a fused activation makes of a result."""
    name = call.get(attribute, "")
    parameters = call.get("activation_params") or []
    emit = call.emit
    match name:
        case "":
            return x
        case "Relu" | "Sigmoid" | "Tanh":
            return emit(name.lower(), x)
        case "LeakyRelu":
            alpha = parameters[0] if parameters else call.get("activation_alpha", 0.01)
            return emit("leaky_relu", x, alpha)
        case "Clip" if len(parameters) == 2:
            return emit("clamp", x, parameters[0], parameters[1])
        case "HardSigmoid" if len(parameters) == 2:
            return emit("clamp", emit("add.Scalar", emit("mul.Scalar", x, parameters[0]), parameters[1]), 0, 1)
    raise call.unsupported(f"the activation {name!r} is fused into it")


@translates("MatMulNBits", domain=MICROSOFT)
def _matmul_of_bits(call: Call) -> Any:
    """A product with weights of few bits, in blocks along the inner dimension with a scale each."""
    emit, bits = call.emit, call.get("bits", 4)
    rows = call.get("N")
    if bits not in (2, 4, 8):
        raise call.unsupported(f"its weights have {bits} bits")
    if call.has(4) and call.operand(4).value is not None:
        raise call.unsupported("its groups have an order of their own (g_idx)")
    given = [call.operand(index).constant for index in (1, 2, 3) if call.has(index)]
    is_constant = all(isinstance(item, torch.Tensor) for item in given)
    weight = _kept_bits(call, bits) if is_constant and bits > 2 else _floats_of_bits(call, bits)
    x, bias = call.tensor(0), call.tensor(5) if call.has(5) else None
    is_half = call.dtype() != torch.float32  # weights are float32 then, and so is the arithmetic
    x = emit("to.dtype", x, torch.float32) if is_half else x
    bias = emit("to.dtype", bias, torch.float32) if is_half and bias is not None else bias
    result = emit("linear", x, weight, bias)
    sizes = call.operand(0).sizes
    return Operand(
        call.dtype(),
        None if sizes is None else (*sizes[:-1], rows),
        emit("to.dtype", result, call.dtype()) if is_half else result,
    )


def _kept_bits(call: Call, bits: int) -> Any:
    """Constant weights as they are."""
    rows, inner, block = call.get("N"), call.get("K"), call.get("block_size")
    constant, scales = call.operand(1).constant, call.operand(2).constant
    assert constant is not None and scales is not None
    zeros = call.operand(3).constant if call.has(3) else None
    zeros = None if zeros is None else zeros.reshape(rows, -1)
    return of_rows(call.emit, constant.reshape(rows, -1), scales.reshape(rows, -1), zeros, bits, inner, block)


def _floats_of_bits(call: Call, bits: int) -> Any:
    """The floats of weights that are computed, or have 2 bits."""
    emit, block, rows, inner = call.emit, call.get("block_size"), call.get("N"), call.get("K")
    blocks = -(-inner // block)
    weight = _spread(call, call.tensor(1), bits, [rows, blocks, block])
    scales = emit("reshape", emit("to.dtype", call.tensor(2), torch.float32), [rows, blocks, 1])
    if not call.has(3):
        zero: Any = float(1 << (bits - 1))
        weight = emit("sub.Scalar", weight, zero)
    elif call.dtype(3).is_floating_point:
        points = emit("to.dtype", call.tensor(3), torch.float32)
        weight = emit("sub.Tensor", weight, emit("reshape", points, [rows, blocks, 1]))
    else:
        held = -(-blocks * bits // 8) * 8 // bits
        points = _spread(call, call.tensor(3), bits, [rows, held, 1])
        weight = emit("sub.Tensor", weight, emit("slice.Tensor", points, 1, 0, blocks, 1))
    weight = emit("reshape", emit("mul.Tensor", weight, scales), [rows, blocks * block])
    return emit("slice.Tensor", weight, 1, 0, inner, 1)


def _spread(call: Call, packed: Any, bits: int, sizes: list[int]) -> Any:
    """Unsigned integers that lie several in a byte, the lowest bits first, as floats."""
    emit = call.emit
    whole = emit("reshape", emit("to.dtype", packed, torch.int32), [sizes[0], -1, 1])
    shifts = torch.arange(0, 8, bits, dtype=torch.int32)
    parts = emit("bitwise_and.Scalar", emit("bitwise_right_shift.Tensor", whole, shifts), (1 << bits) - 1)
    return emit("reshape", emit("to.dtype", parts, torch.float32), sizes)
