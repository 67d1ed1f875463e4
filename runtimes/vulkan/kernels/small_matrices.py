"""Dispatching the shaders of small matrices (``factor``, ``householder``, ``jacobi`` and others), and of systems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, contiguous_strides
from mobopt.runtimes.vulkan.kernels.copies import as_contiguous
from mobopt.runtimes.vulkan.kernels.geometry import expanded
from mobopt.runtimes.vulkan.kernels.kernel_access import local_size, reading, spread, writing
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.scatter_kernel import updated_copy
from mobopt.shaders.enumerations import Exchanges, LoadMode, Method
from mobopt.shaders.push_constants import FactorPush, ReflectionsPush, SubstitutePush

LARGEST = 32
"""Rows and columns of a matrix that one invocation factors."""
_FEW_COLUMNS, _FEW_SWEEPS, _SWEEPS = 4, 6, 10
"""Rotations converge quadratically: so many sweeps leave nothing that float32 could show."""


@dataclass(frozen=True)
class Factors:
    """What a factorisation gives, for matrices of any number of leading dimensions."""

    matrices: DeviceTensor
    """Both triangles, or the lower one of Cholesky's."""
    pivots: DeviceTensor
    """int32, from 1: with which row each row was exchanged."""
    failed: DeviceTensor
    """int32: the number of the first step that failed, or 0."""
    odd: DeviceTensor
    """int32: 1 where the permutation is odd."""


def factored(plan: Plan, matrices: DeviceTensor, method: Method, *, refuses: bool) -> Factors:
    """Factor matrices of at most :data:`LARGEST` rows and columns.

    Args:
        plan: where the dispatches go.
        matrices: float32, of rank 2 or more.
        method: how; Cholesky's looks at lower triangles.
        refuses: whether a step that fails raises the flag of the run.
    """
    *batch, rows, columns = matrices.sizes
    count, steps = math.prod(batch), min(rows, columns)
    target = updated_copy(plan, matrices)
    pivots = plan.empty((*batch, steps), torch.int32)
    facts = plan.empty((*batch, 2), torch.int32)
    size = local_size(plan.device, count)
    if count:
        plan.dispatch(
            "factor",
            [writing(target, reads=True), writing(pivots), writing(facts), plan.stream.raised_by()],
            spread(-(-count // size)),
            [size, int(method), int(refuses)],
            FactorPush(count, rows, columns),
            iterations=sum((rows - k) * (2 + max(columns - k, k)) + columns + k for k in range(steps)),
        )
    strides = facts.strides[:-1]
    return Factors(target, pivots, facts.view(batch, strides), facts.view(batch, strides, facts.offset + 1))


def substituted(
    plan: Plan,
    matrices: DeviceTensor,
    sides: DeviceTensor,
    *,
    upper: bool,
    unit: bool,
    pivots: DeviceTensor | None = None,
    exchanges: Exchanges = Exchanges.NONE,
) -> DeviceTensor:
    """Solve triangular systems ``matrices @ x = sides``; leading dimensions are broadcast to those of the right sides.

    Args:
        plan: where the dispatches go.
        matrices: float32, square; the other triangle is not looked at.
        sides: float32.
        upper: which triangle.
        unit: whether the diagonal counts as ones.
        pivots: of each system, if rows are exchanged.
        exchanges: of rows of the right sides.
    """
    *batch, rows, columns = sides.sizes
    count = math.prod(batch)
    target = updated_copy(plan, sides)
    if not target.numel:
        return target
    square = as_contiguous(plan, expanded(matrices, [*batch, rows, rows]))
    row_step, column_step = square.strides[-2:]
    given = None if pivots is None else as_contiguous(plan, expanded(pivots, [*batch, rows]))
    size = local_size(plan.device, count * columns)
    plan.dispatch(
        "substitute",
        [
            writing(target, reads=True),
            reading(square, LoadMode.SINGLES, False),
            reading(square if given is None else replace(given), LoadMode.SINGLES, False),
        ],
        spread(-(-count * columns // size)),
        [size, int(upper), int(unit), int(exchanges)],
        SubstitutePush(count, rows, columns, square.offset, rows * rows, row_step, column_step),
        iterations=rows * (rows + 2),
    )
    return target


def reflected(plan: Plan, matrices: DeviceTensor) -> tuple[DeviceTensor, DeviceTensor]:
    """An upper triangle with the vectors of reflections below it, as LAPACK's ``geqrf`` gives it, and their scales."""
    *batch, rows, columns = matrices.sizes
    count, steps = math.prod(batch), min(rows, columns)
    target = updated_copy(plan, matrices)
    scales = _dense(plan, (*batch, steps))
    size = local_size(plan.device, count)
    if target.numel:
        plan.dispatch(
            "householder",
            [writing(target, reads=True), writing(scales)],
            spread(-(-count // size)),
            [size],
            FactorPush(count, rows, columns),
            iterations=sum(3 * (rows - k) + (columns - k) * (2 * (rows - k) + 1) for k in range(steps)),
        )
    return target, scales


def reflections(
    plan: Plan, vectors: DeviceTensor, scales: DeviceTensor, width: int, *, signed: bool = False
) -> DeviceTensor:
    """The product of reflections.

    Args:
        plan: where the dispatches go.
        vectors: below the diagonal, dense, as :func:`reflected` gives them.
        scales: dense; how many reflections there are.
        width: columns of the product that are asked for.
        signed: whether columns are turned so that the triangle above the vectors has no negative diagonal.
    """
    *batch, rows, columns = vectors.sizes
    count, steps = math.prod(batch), scales.sizes[-1]
    product = _dense(plan, (*batch, rows, width))
    size = local_size(plan.device, count * width)
    if product.numel:
        plan.dispatch(
            "reflections",
            [
                reading(vectors, LoadMode.SINGLES, False),
                reading(scales, LoadMode.SINGLES, False),
                writing(product, reads=True),
            ],
            spread(-(-count * width // size)),
            [size, int(signed)],
            ReflectionsPush(count, rows, columns, steps, width),
            iterations=rows + steps * (2 * rows + 1),
        )
    return product


def rotated(plan: Plan, matrices: DeviceTensor) -> tuple[DeviceTensor, DeviceTensor, DeviceTensor]:
    """Columns turned until they are orthogonal and ordered by length, the rotation, and their lengths.

    Args:
        plan: where the dispatches go.
        matrices: with no fewer rows than columns. What is not finite raises the flag of the run.
    """
    *batch, rows, columns = matrices.sizes
    count = math.prod(batch)
    target, turns = updated_copy(plan, matrices), _dense(plan, (*batch, columns, columns))
    values = _dense(plan, (*batch, columns))
    size, sweeps = local_size(plan.device, count), _FEW_SWEEPS if columns <= _FEW_COLUMNS else _SWEEPS
    for sweep in range(sweeps if target.numel else 0):
        plan.dispatch(
            "jacobi",
            [
                *(writing(tensor, reads=True) for tensor in (target, turns, values)),
                plan.stream.raised_by(),
            ],
            spread(-(-count // size)),
            [size, int(sweep == 0), int(sweep == sweeps - 1)],
            FactorPush(count, rows, columns),
            iterations=columns * (columns - 1) // 2 * (2 * rows + columns + 1) + columns * (columns + 3 * rows + 3),
        )
    return target, turns, values


def _dense(plan: Plan, sizes: Sequence[int]) -> DeviceTensor:
    return plan.empty(sizes, torch.float32, contiguous_strides(sizes))


def identities(plan: Plan, like: DeviceTensor) -> DeviceTensor:
    """The identity in the sizes of square matrices."""
    rows = like.sizes[-1]
    eye = plan.packed([], ("identity", rows), lambda: torch.eye(rows))
    return eye.view(like.sizes, [*[0] * (like.rank - 2), *contiguous_strides((rows, rows))])
