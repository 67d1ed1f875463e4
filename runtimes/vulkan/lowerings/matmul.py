"""Products of matrices: linear layers, mm, bmm, addmm, baddbmm, matmul."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mobopt.ir import Node, Value
from mobopt.ir.rewriting import passing_call
from mobopt.ir.schemas import argument_names
from mobopt.ops.contexts import LinearPackedContext
from mobopt.ops.quantized import Quantized
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, aligned_channels
from mobopt.runtimes.vulkan.kernels.activation import Activation
from mobopt.runtimes.vulkan.kernels.convolution_parameters import constant_ref
from mobopt.runtimes.vulkan.kernels.copies import copied
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue, epilogue_of, is_folded
from mobopt.runtimes.vulkan.kernels.geometry import expanded
from mobopt.runtimes.vulkan.kernels.matrix_kernels import multiplies
from mobopt.runtimes.vulkan.kernels.normalization_kernel import normalize
from mobopt.runtimes.vulkan.kernels.operand_rows import batched_view, row_strides, rows_of_batches
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.product import ProductOperands, append_product
from mobopt.runtimes.vulkan.kernels.product_normalizing import (
    Normalization,
    NormalizedInput,
    RowNormalization,
    can_normalize,
    pays,
)
from mobopt.runtimes.vulkan.kernels.weight_packing import (
    Factors,
    bias_vector,
    has_row_scales,
    matrix_weights,
    row_weights,
)
from mobopt.runtimes.vulkan.lowerings.registry import lower, lowers, why_unsupported
from mobopt.runtimes.vulkan.lowerings.wanted_layout import wanted_strides
from mobopt.shaders.enumerations import Norm, Opcode
from mobopt.shaders.push_constants import ProductPush

_CONTEXT = "vulkan_prepack::run_linear_context"


def check_product(call: Node) -> str | None:
    """Only floating operands."""
    for tensor in call.inputs:
        if not tensor.dtype.is_floating_point or tensor.dtype == torch.float64:
            return f"matrix product of {tensor.dtype} operands; only float32 is computed"
    return None


@lowers("aten::linear", check=check_product)
def linear(plan: Plan, call: Node) -> DeviceTensor:
    """``input @ weight.T + bias``."""
    weight: Value = call["weight"]
    quantized = Quantized.of(weight)
    if quantized is not None and takes_quantized(call):
        matrix = Value.of_tensor(weight.dtype, weight.sizes[::-1])
        return _layer(plan, call, call["input"], matrix, call["bias"], quantized)
    if weight.elements is not None:
        return _layer(plan, call, call["input"], Value.of_elements(weight.elements.t(), weight.dtype), call["bias"])
    tensor = plan.tensor(weight)
    turned = tensor.view(tensor.sizes[::-1], tensor.strides[::-1])
    return _layer(plan, call, call["input"], _placed(plan, turned), call["bias"])


def takes_quantized(call: Node) -> bool:
    """Whether a linear layer reads its weight, a constant of few bits, as it is."""
    quantized = None if call.qualified_op == _CONTEXT else Quantized.of(call["weight"])
    return quantized is not None and call["input"].dtype == torch.float32 and has_row_scales(quantized)


def takes_normalization(call: Node) -> bool:
    """Whether a call is a linear layer of constants, for float32, whose kernels may normalise the rows of its input."""
    if call.qualified_op not in ("aten::linear", _CONTEXT) or why_unsupported(call) is not None:
        return False
    if not call.args[0].dtype == call.output.dtype == torch.float32 or call.output.numel == 0:
        return False
    if call.qualified_op == _CONTEXT:
        return True
    weight, bias = call["weight"], call["bias"]
    return (weight.elements is not None or takes_quantized(call)) and (bias is None or bias.elements is not None)


@lowers(_CONTEXT, check=check_product)
def linear_context(plan: Plan, call: Node) -> DeviceTensor:
    """A linear layer whose weight is (in, out)."""
    context = call.args[1]
    assert isinstance(context, LinearPackedContext)
    bias = None if context.bias is None else constant_ref(context.bias)
    return _layer(plan, call, call.args[0], constant_ref(context.weight), bias)


@lowers("aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::matmul", check=check_product)
def product(plan: Plan, call: Node) -> DeviceTensor:
    """The product of two tensors by ``torch.matmul``'s rules."""
    left, right = call.args[:2]
    epilogue = epilogue_of(call)
    return _matmul(plan, left, right, call.output, epilogue, None, _residual(plan, call, epilogue))


@lowers("aten::addmm", "aten::baddbmm", "aten::addmv", "aten::addbmm", check=lambda call: check_addition(call))
def added_product(plan: Plan, call: Node) -> DeviceTensor:
    """``beta * input + alpha * (left @ right)``."""
    addend, left, right = call.args[:3]
    beta, alpha = float(call["beta"]), float(call["alpha"])
    epilogue = epilogue_of(call)
    if alpha == 1 and addend.elements is not None and _is_row(addend, call.output.sizes):
        residual = _residual(plan, call, epilogue)
        bias = bias_vector(plan, addend.elements.reshape(-1).expand(call.output.sizes[-1]), beta) if beta else None
        return _matmul(plan, left, right, call.output, epilogue, bias, residual)
    assert epilogue.residual is None
    before = Activation() if alpha == 1 else Activation(Opcode.MUL, alpha)
    if beta == 0:
        return _matmul(plan, left, right, call.output, Epilogue(before, None, epilogue.before), None, None)
    scaled = addend if beta == 1 else _scaled(plan, addend, beta)
    residual = expanded(plan.tensor(scaled), call.output.sizes)
    steps = Epilogue(before, scaled, epilogue.before)
    return _matmul(plan, left, right, call.output, steps, None, residual)


def check_addition(call: Node) -> str | None:
    """As a product; batches are not summed."""
    if call.qualified_op == "aten::addbmm":
        return "the sum over a batch of products is not computed"
    return check_product(call)


def _residual(plan: Plan, call: Node, epilogue: Epilogue) -> DeviceTensor | None:
    """What is added to a product, with the product's sizes."""
    return None if epilogue.residual is None else expanded(plan.tensor(epilogue.residual), call.output.sizes)


def takes_rows(call: Node) -> bool:
    """Whether the residual of a product may be a row that is known: not of one whose result is a vector."""
    return not has_trait(call.qualified_op, Trait.CONVOLUTION) and call.output.rank > 1


def takes_residual(call: Node) -> bool:
    """Whether the epilogue of a product may have a residual: one that adds a matrix of its own may not."""
    if "alpha" not in argument_names(call.qualified_op):
        return True
    addend = call.args[0]
    return float(call["alpha"]) == 1 and addend.elements is not None and _is_row(addend, call.output.sizes)


def _is_row(addend: Value, sizes: Sequence[int]) -> bool:
    """Whether a tensor that is added is the same for every row of the result."""
    return all(size == 1 for size in addend.sizes[:-1]) and len(sizes) > 1


def _scaled(plan: Plan, ref: Value, factor: float) -> Value:
    output = Value.of_tensor(ref.dtype, ref.sizes)
    with passing_call("aten::mul.Scalar", (ref, factor), (output,)) as call:
        lowered = lower(plan, call)
    assert isinstance(lowered, DeviceTensor)
    plan.place(output, lowered)
    return output


def _placed(plan: Plan, tensor: DeviceTensor) -> Value:
    """A device tensor as a tensor of the graph."""
    ref = Value.of_tensor(tensor.dtype, tensor.sizes)
    plan.place(ref, tensor)
    return ref


def _matmul(
    plan: Plan,
    left: Value,
    right: Value,
    output: Value,
    epilogue: Epilogue,
    bias: DeviceTensor | None,
    residual: DeviceTensor | None,
    factors: Factors | None = None,
) -> DeviceTensor:
    """``torch.matmul`` with an epilogue; ``residual`` has the sizes of ``output``, the result. ``factors`` is what a
    constant ``right`` was packed to, if it was."""
    sizes = epilogue.sizes_of(output.sizes)
    a = plan.tensor(left)
    a = a.view((1, *a.sizes), (0, *a.strides)) if a.rank == 1 else a
    rows = a.sizes[-2]
    batch: Sequence[int] = ()
    if math.prod(right.sizes[:-2]) == 1:
        rows = math.prod(a.sizes[:-1])
        a, b = rows_of_batches(plan, a, 0), factors or _right(plan, right)
    else:
        batch = sizes[: len(sizes) - (left.rank > 1) - 1]
        tensor = plan.tensor(right)
        a = rows_of_batches(plan, expanded(a, (*batch, rows, a.sizes[-1])), len(batch))
        b = factors_of_batches(plan, rows_of_batches(plan, expanded(tensor, (*batch, *tensor.sizes[-2:])), len(batch)))
    whole = (*sizes, 1) if right.rank == 1 else sizes
    result = plan.own_result(output, whole, _strides(output, whole, len(batch)))
    target = batched_view(result, len(batch))
    assert target is not None
    if residual is not None:
        residual = rows_of_batches(plan, _with_dropped(residual, left.rank, right.rank), len(batch))
    _append(plan, a, b, target, epilogue, bias, residual)
    return result if right.rank > 1 else result.view(sizes, result.strides[:-1])


def _strides(output: Value, sizes: Sequence[int], batch_rank: int) -> Sequence[int]:
    """Of a product's result: rows of whole vec4s, of batches in the order that who reads it wants."""
    usual = row_strides(sizes)
    if not batch_rank or sizes != output.sizes or sizes[-1] % 4:
        return usual
    return wanted_strides(output, usual, lambda tensor: batched_view(tensor, batch_rank) is not None) or usual


def _with_dropped(tensor: DeviceTensor, left_rank: int, right_rank: int) -> DeviceTensor:
    """A tensor of a product's sizes with the dimensions that vectors as operands drop, of size 1."""
    sizes, steps = tensor.sizes, tensor.strides
    if right_rank == 1:
        sizes, steps = (*sizes, 1), (*steps, 1)
    if left_rank == 1:
        sizes, steps = (*sizes[:-1], 1, sizes[-1]), (*steps[:-1], 0, steps[-1])
    return tensor.view(sizes, steps)


def _layer(
    plan: Plan, call: Node, source: Value, matrix: Value, bias: Value | None, quantized: Quantized | None = None
) -> DeviceTensor:
    """A linear layer: ``source @ matrix + bias``, with the call's epilogue; ``quantized`` is a matrix of few bits,
    transposed."""
    epilogue = epilogue_of(call)
    residual = _residual(plan, call, epilogue)
    maker = source.producer
    if maker is not None and is_folded(maker, call):
        found = NormalizedInput.of(source)
        assert found is not None
        weight, own = quantized or matrix.elements, None if bias is None else bias.elements
        assert weight is not None
        if can_normalize(plan, plan.tensor(found.source), math.prod(source.sizes[:-1]), found.rows, weight):
            return _normalizing_layer(plan, call, found, weight, own, epilogue, residual)
        plan.place(source, _normalized_apart(plan, maker))
    vector = None
    if bias is not None and bias.elements is not None:
        vector = bias_vector(plan, bias.elements)
    elif bias is not None:
        vector = copied(plan, plan.tensor(bias), dtype=torch.float32)
    factors = None if quantized is None else row_weights(plan, quantized)
    return _matmul(plan, source, matrix, call.output, epilogue, vector, residual, factors)


def _normalizing_layer(
    plan: Plan,
    call: Node,
    found: NormalizedInput,
    weight: torch.Tensor | Quantized,
    bias: torch.Tensor | None,
    epilogue: Epilogue,
    residual: DeviceTensor | None,
) -> DeviceTensor:
    """A linear layer whose kernel can normalise the rows of its input; a weight of few bits is transposed."""
    left = rows_of_batches(plan, plan.tensor(found.source), 0)
    sizes = epilogue.sizes_of(call.output.sizes)
    result = plan.own_result(call.output, sizes, row_strides(sizes))
    rows, columns = left.sizes[1], sizes[-1]
    target = result.view((1, rows, columns), (0, aligned_channels(columns), 1))
    if residual is not None:
        residual = rows_of_batches(plan, residual, 0)
    if isinstance(weight, Quantized):
        summed, normalization = found.rows.beside(plan, weight, bias)
        vector = None if summed is None else bias_vector(plan, summed)
        _append(plan, left, row_weights(plan, weight), target, epilogue, vector, residual, normalization)
    else:
        _append_normalizing(plan, left, found.rows, weight, bias, target, epilogue, residual)
    return result


@replayable
def _append_normalizing(
    plan: Plan,
    left: DeviceTensor,
    rows: RowNormalization,
    matrix: torch.Tensor,
    bias: torch.Tensor | None,
    result: DeviceTensor,
    epilogue: Epilogue,
    residual: DeviceTensor | None,
) -> None:
    """Append the product of normalised rows (1, rows, inner): in one dispatch where that is faster, else in two."""
    (_, count, inner), columns = left.sizes, matrix.shape[1]
    folded = rows.weights(plan, matrix)
    if not pays(plan.device, count, inner, columns, multiplies(plan.device, plan.weight_elements(folded))):
        elements = plan.half if plan.halves_weights else torch.float32
        between = plan.empty(left.sizes, torch.float32, row_strides(left.sizes), elements)
        gains, shifts = (None if v is None else bias_vector(plan, v).view((inner,), (1,)) for v in rows.vectors)
        norm = Norm.CENTERED if rows.is_centered else Norm.ROOT_MEAN_SQUARE
        if normalize(plan, left, between, (2,), gains, shifts, rows.eps, norm=norm):
            own = None if bias is None else bias_vector(plan, bias)
            factors = matrix_weights(plan, matrix, (inner, columns))
            _append(plan, between, factors, result, epilogue, own, residual)
            return
    summed = rows.bias(plan, matrix, bias)
    own = None if summed is None else bias_vector(plan, summed)
    factors = matrix_weights(plan, folded, (inner, columns))
    _append(plan, left, factors, result, epilogue, own, residual, rows.normalization(plan, folded))


def _normalized_apart(plan: Plan, call: Node) -> DeviceTensor:
    """What a normalisation makes that was folded into a product whose kernels can't do it."""
    if plan.halves_weights:
        plan.halved |= {call.output}
    result = lower(plan, call)
    assert isinstance(result, DeviceTensor)
    return result


def _right(plan: Plan, matrix: Value) -> Factors:
    """The right operand, (inner, columns), (1, ..., inner, columns) or a vector, as one batch of whole vec4s."""
    inner, columns = (*matrix.sizes, 1)[:2] if matrix.rank == 1 else matrix.sizes[-2:]
    if matrix.elements is not None:
        constant = matrix.elements
        return matrix_weights(plan, constant, (inner, columns))
    tensor = plan.tensor(matrix)
    steps = (*tensor.strides, 1) if matrix.rank == 1 else tensor.strides[-2:]
    return factors_of_batches(plan, rows_of_batches(plan, tensor.view((inner, columns), steps), 0))


def factors_of_batches(plan: Plan, tensor: DeviceTensor) -> Factors:
    """A (batch, inner, columns) tensor with dense rows as the right operand; rows must not overlap."""
    _, inner, columns = tensor.sizes
    pitch = aligned_channels(columns)
    if inner > 1 and tensor.strides[1] < pitch:
        tensor = copied(plan, tensor, row_strides(tensor.sizes))
    return Factors(tensor, (tensor.strides[1] if inner > 1 else pitch) // 4, tensor.strides[0] // 4)


def append_batches(
    plan: Plan,
    left: DeviceTensor,
    right: Factors,
    result: DeviceTensor,
    scale: float = 1.0,
    residual: DeviceTensor | None = None,
) -> None:
    """Append ``left @ right * scale + residual``, of tensors (batch, rows, columns) with dense rows of whole vec4s;
    see :func:`rows_of_batches` and :func:`factors_of_batches`."""
    added = None if residual is None else _placed(plan, residual)
    epilogue = Epilogue(Activation() if scale == 1 else Activation(Opcode.MUL, scale), added)
    _append(plan, left, right, result, epilogue, None, residual)


def _append(
    plan: Plan,
    left: DeviceTensor,
    right: Factors,
    result: DeviceTensor,
    epilogue: Epilogue,
    bias: DeviceTensor | None,
    residual: DeviceTensor | None,
    normalization: Normalization | None = None,
) -> None:
    """Append the product of (batch, rows, inner) and (batch, inner, columns)."""
    if result.numel == 0:
        return
    batches, rows, stored = result.sizes
    inner, columns = left.sizes[2], 2 * stored if epilogue.is_gated else stored
    other = residual if residual is not None else result
    numbers = ProductPush(
        rows=rows,
        inner=aligned_channels(inner) // 4,
        columns=aligned_channels(columns) // 4,
        input_offset=left.offset // 4,
        input_pitch=left.strides[1] // 4,
        input_batch=left.strides[0] // 4,
        weight_offset=right.tensor.offset // 4,
        weight_pitch=right.pitch,
        weight_batch=right.batch_stride,
        out_offset=result.offset // 4,
        out_pitch=result.strides[1] // 4,
        out_batch=result.strides[0] // 4,
        residual_offset=other.offset // 4,
        residual_pitch=other.strides[1] // 4,
        residual_batch=other.strides[0] // 4,
    )
    operands = ProductOperands(left, right.tensor, result, bias, residual, right.scales, normalization=normalization)
    append_product(plan, numbers, operands, epilogue, batches=batches, inner_tail=inner % 4, column_tail=columns % 4)
