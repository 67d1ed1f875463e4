"""Factors, determinants and inverses of small matrices, and systems of equations."""

from __future__ import annotations

import torch

from mobopt.ir import Node
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.combine import reduce
from mobopt.runtimes.vulkan.kernels.copies import strided_copy
from mobopt.runtimes.vulkan.kernels.geometry import broadcast_sizes, expanded
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute
from mobopt.runtimes.vulkan.kernels.pointwise_program import Kind, ProgramBuilder, Term
from mobopt.runtimes.vulkan.kernels.scatter_kernel import updated_copy
from mobopt.runtimes.vulkan.kernels.small_matrices import (
    LARGEST,
    Factors,
    factored,
    identities,
    reflected,
    reflections,
    rotated,
    substituted,
)
from mobopt.runtimes.vulkan.kernels.views import diagonal_view, sliced, swapped, unsqueezed, without_dims
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.shaders.enumerations import Combination, Exchanges, Method, Opcode


def check_matrices(call: Node) -> str | None:
    """Small matrices of float32."""
    for value in call.inputs:
        if value.dtype.is_floating_point and value.dtype != torch.float32:
            return f"matrices of {value.dtype} are not factored, only those of float32"
    rows, columns = call.args[0].sizes[-2:]
    if max(rows, columns) > LARGEST:
        return f"a matrix is {rows}x{columns}; those of at most {LARGEST} rows and columns are factored"
    return check_dtypes(call)


def _transposed(tensor: DeviceTensor) -> DeviceTensor:
    return swapped(tensor, -2, -1)


@lowers("aten::linalg_lu_factor_ex", "aten::linalg_lu_factor", check=check_matrices)
def lu_factor(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """Both triangles in one matrix, the exchanges of rows, and for the ``_ex`` form where it failed."""
    method = Method.PIVOTED if call["pivot"] else Method.PLAIN
    found = factored(plan, plan.tensor(call.args[0]), method, refuses=_refuses(call))
    return (found.matrices, found.pivots, found.failed)[: len(call.outputs)]


def _refuses(call: Node) -> bool:
    """Whether a matrix that can't be factored is an error; the forms that tell of it refuse where they are asked to."""
    return bool(call["check_errors"]) if call.op.endswith("_ex") else True


@lowers("aten::linalg_cholesky_ex", "aten::linalg_cholesky", check=check_matrices)
def cholesky(plan: Plan, call: Node) -> DeviceTensor | tuple[DeviceTensor, ...]:
    """A triangle whose product with its own transpose is the matrix."""
    source = plan.tensor(call.args[0])
    found = factored(plan, _transposed(source) if call["upper"] else source, Method.CHOLESKY, refuses=_refuses(call))
    triangle = _transposed(found.matrices) if call["upper"] else found.matrices
    return triangle if len(call.outputs) == 1 else (triangle, found.failed)


def _solved(plan: Plan, factors: DeviceTensor, pivots: DeviceTensor, sides: DeviceTensor) -> DeviceTensor:
    """``A X = B`` of a factored matrix."""
    lower = substituted(plan, factors, sides, upper=False, unit=True, pivots=pivots, exchanges=Exchanges.FIRST)
    return substituted(plan, factors, lower, upper=True, unit=False)


@lowers("aten::linalg_inv_ex", "aten::linalg_inv", "aten::inverse", check=check_matrices)
def inverse(plan: Plan, call: Node) -> DeviceTensor | tuple[DeviceTensor, ...]:
    """Inverses."""
    source = plan.tensor(call.args[0])
    found = factored(plan, source, Method.PIVOTED, refuses=_refuses(call))
    result = _solved(plan, found.matrices, found.pivots, identities(plan, source))
    return result if len(call.outputs) == 1 else (result, found.failed)


@lowers("aten::linalg_solve_ex", "aten::linalg_solve", check=check_matrices)
def solve(plan: Plan, call: Node) -> DeviceTensor | tuple[DeviceTensor, ...]:
    """Systems of equations of square matrices, from the left or the right."""
    matrices, sides = plan.tensor(call.args[0]), plan.tensor(call.args[1])
    is_vector = sides.rank == 1 or (sides.rank == matrices.rank - 1 and sides.sizes == matrices.sizes[:-1])
    if is_vector:
        sides = unsqueezed(sides, sides.rank)
    batch = broadcast_sizes(matrices.sizes[:-2], sides.sizes[:-2])
    sides = expanded(sides, [*batch, *sides.sizes[-2:]])
    if not call["left"]:
        matrices, sides = _transposed(matrices), _transposed(sides)
    found = factored(plan, matrices, Method.PIVOTED, refuses=_refuses(call))
    result = _solved(plan, found.matrices, found.pivots, sides)
    result = result if call["left"] else _transposed(result)
    result = without_dims(result, (result.rank - 1,)) if is_vector else result
    return result if len(call.outputs) == 1 else (result, found.failed)


@lowers("aten::linalg_solve_triangular", check=check_matrices)
def solve_triangular(plan: Plan, call: Node) -> DeviceTensor:
    """Systems of equations of triangular matrices, from the left or the right."""
    matrices, sides = plan.tensor(call.args[0]), plan.tensor(call["B"])
    sides = expanded(sides, call.output.sizes)
    if call["left"]:
        return substituted(plan, matrices, sides, upper=call["upper"], unit=call["unitriangular"])
    turned = (_transposed(tensor) for tensor in (matrices, sides))
    return _transposed(substituted(plan, *turned, upper=not call["upper"], unit=call["unitriangular"]))


@lowers("aten::linalg_lu_solve", check=check_matrices)
def lu_solve(plan: Plan, call: Node) -> DeviceTensor:
    """Systems of equations of factored matrices, from the left or the right, of these or of their transposes."""
    factors, pivots = plan.tensor(call.args[0]), plan.tensor(call["pivots"])
    sides = expanded(plan.tensor(call["B"]), call.output.sizes)
    if not call["left"]:
        sides = _transposed(sides)
    if call["adjoint"] == call["left"]:  # of the transpose: its factors are exchanged
        turned = _transposed(factors)
        upper = substituted(plan, turned, sides, upper=False, unit=False)
        lower = substituted(plan, turned, upper, upper=True, unit=True)
        result = substituted(plan, factors, lower, upper=False, unit=True, pivots=pivots, exchanges=Exchanges.UNDONE)
    else:
        result = _solved(plan, factors, pivots, sides)
    return result if call["left"] else _transposed(result)


def check_permutation(call: Node) -> str | None:
    """The permutation alone; triangles are parts of their matrix."""
    return "triangles are computed by others" if call["unpack_data"] else check_matrices(call)


@lowers("aten::lu_unpack", check=check_permutation)
def permutation(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """Exchanges of rows as matrices."""
    pivots, output = plan.tensor(call["LU_pivots"]), call.outputs[0]
    like = plan.empty(output.sizes, output.dtype)
    if not call["unpack_pivots"] or not like.numel:
        made = like
    else:
        square = identities(plan, like)
        padded = _padded_pivots(plan, pivots, output.sizes[-1])
        made = substituted(plan, square, square, upper=False, unit=True, pivots=padded, exchanges=Exchanges.UNDONE)
    return (made, *(plan.empty(empty.sizes, empty.dtype) for empty in call.outputs[1:]))


def _padded_pivots(plan: Plan, pivots: DeviceTensor, rows: int) -> DeviceTensor:
    """As many exchanges as there are rows: the last ones of a tall matrix stay."""
    *batch, steps = pivots.sizes
    if steps == rows:
        return pivots
    own = plan.packed([], ("exchanges", rows), lambda: torch.arange(1, rows + 1, dtype=torch.int32))
    target = plan.empty((*batch, rows), torch.int32)
    strided_copy(plan, expanded(own, target.sizes), target)
    strided_copy(plan, pivots, sliced(target, len(batch), 0, steps))
    return target


def _diagonals(found: Factors) -> DeviceTensor:
    matrices = found.matrices
    return diagonal_view(matrices, 0, -2, -1, matrices.sizes[:-1])


def _sign(builder: ProgramBuilder, found: Factors) -> Term:
    """-1 where rows were exchanged an odd number of times, else 1."""
    odd = builder.converted(builder.tensor(found.odd), Kind.FLOAT)
    return builder.step(Opcode.MULADD, odd, builder.scalar(-2.0, Kind.FLOAT), builder.scalar(1.0, Kind.FLOAT))


def _over_diagonal(plan: Plan, values: DeviceTensor, combination: Combination) -> DeviceTensor:
    last = values.rank - 1
    return without_dims(reduce(plan, values, (last,), values.dtype, combination), (last,))


@lowers("aten::_linalg_det", check=check_matrices)
def determinant(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """Determinants, and the factors that they are products of."""
    found = factored(plan, plan.tensor(call.args[0]), Method.PIVOTED, refuses=False)
    product = _over_diagonal(plan, _diagonals(found), Combination.MULTIPLY)
    builder = ProgramBuilder()
    result = builder.step(Opcode.MUL, builder.tensor(product), _sign(builder, found))
    return compute(plan, builder, result, product.sizes, torch.float32), found.matrices, found.pivots


@lowers("aten::_linalg_slogdet", check=check_matrices)
def log_determinant(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """Signs and logarithms of determinants, and the factors that they are products of."""
    found = factored(plan, plan.tensor(call.args[0]), Method.PIVOTED, refuses=False)
    diagonal = _diagonals(found)
    parts = []
    for first, second, combination in (
        (Opcode.SIGN, None, Combination.MULTIPLY),
        (Opcode.ABS, Opcode.LOG, Combination.ADD),
    ):
        each = ProgramBuilder()
        value = each.step(first, each.tensor(diagonal))
        value = value if second is None else each.step(second, value)
        parts.append(_over_diagonal(plan, compute(plan, each, value, diagonal.sizes, torch.float32), combination))
    builder = ProgramBuilder()
    sign = builder.step(Opcode.MUL, builder.tensor(parts[0]), _sign(builder, found))
    return compute(plan, builder, sign, parts[0].sizes, torch.float32), parts[1], found.matrices, found.pivots


@lowers("aten::geqrf", check=check_matrices)
def triangle_and_reflections(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """The upper triangle of a QR factorisation, and what the orthogonal matrix is made of."""
    return reflected(plan, plan.tensor(call.args[0]))


@lowers("aten::linalg_householder_product", "aten::orgqr", check=check_matrices)
def product_of_reflections(plan: Plan, call: Node) -> DeviceTensor:
    """The columns of an orthogonal matrix."""
    vectors, scales = (updated_copy(plan, plan.tensor(value)) for value in call.args[:2])
    return reflections(plan, vectors, scales, vectors.sizes[-1])


@lowers("aten::linalg_svdvals", check=check_matrices)
def singular_values(plan: Plan, call: Node) -> DeviceTensor:
    """From the largest to the smallest."""
    return rotated(plan, _tall(plan.tensor(call.args[0])))[2]


@lowers("aten::linalg_svd", check=check_matrices)
def singular_vectors(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """The same with vectors. The left ones are a QR factorisation's of the rotated columns: they are orthogonal also
    where a column is zero, or there are more of them than columns."""
    source = plan.tensor(call.args[0])
    tall = _tall(source)
    columns, turns, values = rotated(plan, tall)
    width = tall.sizes[-2 if call["full_matrices"] else -1]
    if call.outputs[0 if tall is source else 2].is_used:
        left = reflections(plan, *reflected(plan, columns), width, signed=True)
    else:
        left = plan.empty((*tall.sizes[:-1], width), torch.float32)
    if tall is source:
        return left, values, _transposed(turns)
    return turns, values, _transposed(left)


def _tall(tensor: DeviceTensor) -> DeviceTensor:
    return tensor if tensor.sizes[-2] >= tensor.sizes[-1] else _transposed(tensor)
