"""Sums, products, extremes, moments and running sums over dimensions of any length: in one dispatch where that is best,
else in parts that a second step joins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from mobopt.runtimes.vulkan.engine.stream import MAX_ITERATIONS, USUAL_ITERATIONS, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, word_type
from mobopt.runtimes.vulkan.kernels.channel_groups import append_channel_moments
from mobopt.runtimes.vulkan.kernels.device_costs import core_count
from mobopt.runtimes.vulkan.kernels.division import Division, collapsed, divide
from mobopt.runtimes.vulkan.kernels.geometry import expanded
from mobopt.runtimes.vulkan.kernels.kernel_access import VECTOR, read_access, reading, write_access, writing
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute, compute_into
from mobopt.runtimes.vulkan.kernels.pointwise_program import Kind, ProgramBuilder, kind_of
from mobopt.runtimes.vulkan.kernels.reduction_kernel import Reduction, plan_reduction, regrouped, run_reduction
from mobopt.shaders.enumerations import After, Before, Combination, LoadMode, Opcode, Spread
from mobopt.shaders.reduction_push import ExtremesPush, IndexMergePush, MomentsMergePush, MomentsPush, ReducePush

_RUN_INVOCATIONS = 256
_LEAST_RUNS = 4
"""Vec4s that each of them reads at least, where there are more workgroups than one."""


def kept_sizes(sizes: Sequence[int], dims: Sequence[int]) -> list[int]:
    """Sizes with the reduced dimensions left as 1."""
    return [1 if d in dims else size for d, size in enumerate(sizes)]


def prepare(
    plan: Plan,
    source: DeviceTensor,
    target: DeviceTensor,
    dims: Sequence[int],
    *,
    writes_all: bool = False,
    shares: bool = True,
) -> tuple[DeviceTensor, Reduction]:
    """The input, copied if it must be, and how to walk it."""
    found = plan_reduction(plan.device, source, target, dims, writes_all=writes_all, shares=shares)
    if found is None:
        source = regrouped(plan, source, dims)
        found = plan_reduction(plan.device, source, target, dims, writes_all=writes_all, shares=shares)
        assert found is not None
    return source, found


def _prepared(
    plan: Plan, source: DeviceTensor, target: DeviceTensor, dims: Sequence[int], *, ordered: bool = False
) -> tuple[DeviceTensor, Reduction]:
    """As :func:`prepare`, with the reduced dimensions merged where they can be."""
    source, reduction = prepare(plan, collapsed(source, dims, ordered=ordered), target, dims)
    return collapsed(source, dims, ordered=ordered), reduction


@dataclass(frozen=True)
class _Recipe:
    """What ``reduce.comp`` does."""

    combination: Combination
    before: Before
    after: After
    exponent: float
    scale: float
    divisor: int


def reduce(
    plan: Plan,
    source: DeviceTensor,
    dims: Sequence[int],
    dtype: torch.dtype,
    combination: Combination,
    before: Before = Before.UNCHANGED,
    after: After = After.FINISHED,
    exponent: float = 1.0,
    scale: float = 1.0,
    divisor: int = 1,
    elements: torch.dtype | None = None,
) -> DeviceTensor:
    """Reduce ``dims``, which stay as dimensions of size 1.

    Args:
        plan: where the dispatches go.
        source: what is reduced.
        dims: not negative, ascending.
        dtype: of the result, of the same kind as the source's.
        combination: how two elements make one.
        before: done to each element first.
        after: done to the result.
        exponent: of ``Before.RAISED``.
        scale: the factor of ``After.SCALED``, or the exponent of ``After.POWER``.
        divisor: of the scale, such as a count of elements; without any, the result is no number.
        elements: the type of what the result holds, if that isn't what stands for its dtype.
    """
    target = plan.empty(kept_sizes(source.sizes, dims), dtype, elements=elements)
    _reduce_into(plan, source, target, dims, _Recipe(combination, before, after, exponent, scale, divisor))
    return target


@replayable
def _reduce_into(plan: Plan, source: DeviceTensor, target: DeviceTensor, dims: Sequence[int], recipe: _Recipe) -> None:
    source, reduction = _prepared(plan, source, target, dims)
    division = divide(plan.device, source, dims, reduction)
    if division is None:
        constants = [int(not source.is_floating), recipe.combination, recipe.before, recipe.after]
        scale = recipe.scale / recipe.divisor if recipe.divisor else math.nan
        push = partial(ReducePush, exponent=recipe.exponent, scale=scale)
        run_reduction(plan, "reduce", reduction, [source], [target], constants, push)
        return
    parts = _partial(plan, division, source, dims, target.dtype, target.storage.elements)
    for first, piece in division.pieces(source):
        part = _from(parts, first, piece.sizes[0])
        _reduce_into(plan, piece, part, [d + 1 for d in dims], replace(recipe, after=After.FINISHED))
    _reduce_into(plan, parts, _as_one(target), [0], replace(recipe, before=Before.UNCHANGED))


def _partial(
    plan: Plan,
    division: Division,
    source: DeviceTensor,
    dims: Sequence[int],
    dtype: torch.dtype,
    elements: torch.dtype | None = None,
) -> DeviceTensor:
    """Room for a result of each part: parts outermost, then the kept dimensions in the order of the source's memory, so
    that neighbours stay neighbours, in rows of whole vec4s."""
    sizes = kept_sizes(source.sizes, dims)
    strides, step = [0] * source.rank, 1
    for d in sorted(range(source.rank), key=lambda d: abs(source.strides[d])):
        if sizes[d] > 1:
            strides[d] = step
            step = -(-step * sizes[d] // 4) * 4
    return plan.empty([division.count, *sizes], dtype, [step, *strides], elements)


def _from(partial: DeviceTensor, first: int, count: int) -> DeviceTensor:
    """Some of the parts."""
    return partial.view((count, *partial.sizes[1:]), partial.strides, partial.offset + first * partial.strides[0])


def _as_one(tensor: DeviceTensor) -> DeviceTensor:
    """With a leading dimension of size 1."""
    return tensor.view((1, *tensor.sizes), (0, *tensor.strides))


def moments(
    plan: Plan, source: DeviceTensor, dims: Sequence[int], correction: float, spread: Spread, eps: float = 0.0
) -> tuple[DeviceTensor, DeviceTensor]:
    """Mean and variance (or what ``spread`` names) over ``dims``, which stay as dimensions of size 1."""
    mean = plan.empty(kept_sizes(source.sizes, dims))
    wide = plan.empty(mean.sizes, strides=mean.strides)
    count = math.prod(source.sizes[d] for d in dims)
    narrower = _inverse(max(count - correction, 0))
    if append_channel_moments(plan, source, dims, (mean, wide), spread, narrower, eps):
        return mean, wide
    source, reduction = _prepared(plan, source, mean, dims)
    division = divide(plan.device, source, dims, reduction, passes=2)
    if division is not None and 2 * reduction.steps > division.count * MAX_ITERATIONS // 2:
        # One dimension alone can't be cut into enough parts.
        source, reduction = _prepared(plan, regrouped(plan, source, dims), mean, dims)
        division = divide(plan.device, source, dims, reduction, passes=2)
    if division is None:
        push = partial(MomentsPush, share=_inverse(count), narrower=narrower, added=eps)
        run_reduction(plan, "moments", reduction, [source], [mean, wide], [spread], push, passes=2)
        return mean, wide
    parts = [_partial(plan, division, source, dims, torch.float32) for _ in ("center", "squares", "shift")]
    counts = []
    for first, piece in division.pieces(source):
        rows = [_from(part, first, piece.sizes[0]) for part in parts]
        inner = [d + 1 for d in dims]
        counts.append(math.prod(piece.sizes[d] for d in inner))
        piece, walk = _prepared(plan, piece, rows[0], inner)
        push = partial(MomentsPush, share=_inverse(counts[-1]))
        run_reduction(plan, "moments_part", walk, [piece], rows, [Spread.VARIANCE], push, passes=2)
    targets = [_as_one(mean), _as_one(wide)]
    _, walk = prepare(plan, parts[0], targets[0], [0])
    merge = partial(
        MomentsMergePush,
        count=count,
        narrower=narrower,
        added=eps,
        part_count=counts[0],
        part_share=counts[0] / count,
        last_count=counts[-1],
        last_share=counts[-1] / count,
    )
    run_reduction(plan, "moments_merge", walk, parts, targets, [spread], merge, passes=2)
    return mean, wide


def _inverse(number: float) -> float:
    return 1 / number if number else math.inf


def extremes(plan: Plan, source: DeviceTensor, dims: Sequence[int]) -> tuple[DeviceTensor, DeviceTensor]:
    """The least and the greatest of floats over ``dims``, which stay as dimensions of size 1."""
    least = plan.empty(kept_sizes(source.sizes, dims), source.dtype)
    greatest = plan.empty(least.sizes, source.dtype, least.strides)
    _find_extremes(plan, source, None, (least, greatest), dims)
    return least, greatest


@replayable
def _find_extremes(
    plan: Plan, lows: DeviceTensor, highs: DeviceTensor | None, targets: Sequence[DeviceTensor], dims: Sequence[int]
) -> None:
    """The least of ``lows`` and the greatest of ``highs``, which lies like it; without that, of the same tensor."""
    if highs is None and _found_in_run(plan, collapsed(lows, dims), targets):
        return
    lows, reduction = _prepared(plan, lows, targets[0], dims)
    highs = lows if highs is None else collapsed(highs, dims)
    division = divide(plan.device, lows, dims, reduction)
    if division is None:
        run_reduction(plan, "extremes", reduction, [lows, highs], targets)
        return
    least, greatest = parts = [_partial(plan, division, lows, dims, target.dtype) for target in targets]
    for (first, low), (_, high) in zip(division.pieces(lows), division.pieces(highs), strict=True):
        found = [_from(part, first, low.sizes[0]) for part in parts]
        _find_extremes(plan, low, high, found, [d + 1 for d in dims])
    _find_extremes(plan, least, greatest, [_as_one(target) for target in targets], [0])


def _found_in_run(plan: Plan, source: DeviceTensor, targets: Sequence[DeviceTensor]) -> bool:
    """The same of all elements of a run in one dispatch, whose last workgroup joins what all have found; False if they
    are no run, or if the device has no use for workgroups side by side."""
    device = plan.device
    is_run = targets[0].numel == 1 and all(
        size == 1 or (size == source.numel and stride == 1)
        for size, stride in zip(source.sizes, source.strides, strict=True)
    )
    if not is_run or device.is_cpu or "no-joins" in device.switches or source.numel < VECTOR:
        return False
    size, runs = device.workgroup(_RUN_INVOCATIONS), -(-source.numel // VECTOR)
    groups = min(-(-runs // (_LEAST_RUNS * size)), core_count(device))
    groups = max(groups, -(-runs // (USUAL_ITERATIONS * size)))
    is_whole = source.offset % VECTOR == 0 and source.offset + VECTOR * runs <= source.storage.capacity
    mode = LoadMode.VECTOR if is_whole else LoadMode.SINGLES
    found = plan.empty((groups, 2))
    plan.dispatch(
        "extremes_whole",
        [
            *(writing(target, by_element=True) for target in targets),
            reading(source, mode, texels=False),
            bind(found, writes=True, reads=True),
            plan.counters(1),
        ],
        (groups, 1, 1),
        (size, groups, read_access(source, mode), write_access(targets[0], whole=False)),
        ExtremesPush(source.offset, source.numel),
        iterations=5 * (-(-runs // (groups * size)) + -(-groups // size)) + 2 * size.bit_length(),
    )
    return True


def extreme_indices(
    plan: Plan, source: DeviceTensor, dims: Sequence[int], *, smallest: bool
) -> tuple[DeviceTensor, DeviceTensor]:
    """Values and indices of the largest or smallest elements over ``dims``, which stay as dimensions of size 1.

    An index counts in row-major order over ``dims``; of equal elements the first is taken.
    """
    if source.is_long:
        combination = Combination.SMALLEST if smallest else Combination.LARGEST
        values = reduce(plan, source, dims, source.dtype, combination, elements=source.storage.elements)
        builder = ProgramBuilder()
        found = builder.step(
            Opcode.INT_EQ, builder.tensor(source), builder.tensor(expanded(values, source.sizes)), kind=Kind.BOOL
        )
        is_extreme = compute(plan, builder, found, source.sizes, torch.bool)
        return values, extreme_indices(plan, is_extreme, dims, smallest=False)[1]
    values = plan.empty(kept_sizes(source.sizes, dims), source.dtype)
    indices = plan.empty(values.sizes, torch.int64, values.strides)
    _extremes_into(plan, source, [indices, values], dims, [int(not source.is_floating), int(smallest)])
    return values, indices


@replayable
def _extremes_into(
    plan: Plan, source: DeviceTensor, targets: Sequence[DeviceTensor], dims: Sequence[int], constants: Sequence[int]
) -> None:
    source, reduction = _prepared(plan, source, targets[0], dims, ordered=True)
    division = divide(plan.device, source, dims, reduction)
    if division is not None and sum(source.sizes[d] > 1 for d in dims) > 1:
        # Parts of an inner dimension wouldn't follow each other in the order that indices count in.
        source, reduction = _prepared(plan, regrouped(plan, source, dims), targets[0], dims, ordered=True)
        division = divide(plan.device, source, dims, reduction)
    if division is None:
        run_reduction(plan, "reduce_index", reduction, [source], targets, constants)
        return
    found = [_partial(plan, division, source, dims, word_type(target.dtype)) for target in targets]
    for first, piece in division.pieces(source):
        rows = [_from(part, first, piece.sizes[0]) for part in found]
        _extremes_into(plan, piece, rows, [d + 1 for d in dims], constants)
    wholes = [_as_one(target) for target in targets]
    indices, values = found
    _, walk = prepare(plan, values, wholes[0], [0])
    push = partial(IndexMergePush, part_length=division.length)
    run_reduction(plan, "reduce_index_merge", walk, [values, indices], wholes, constants, push)


def running(
    plan: Plan,
    source: DeviceTensor,
    dims: Sequence[int],
    dtype: torch.dtype,
    *,
    product: bool,
    elements: torch.dtype | None = None,
) -> DeviceTensor:
    """Running sums or products along the only one of ``dims`` (a scalar has none); the source's elements are of the
    result's kind, which holds ``elements`` if that isn't what stands for its dtype."""
    target = plan.empty(source.sizes, dtype, elements=elements)
    _run_along(plan, source, target, dims, product)
    return target


@replayable
def _run_along(plan: Plan, source: DeviceTensor, target: DeviceTensor, dims: Sequence[int], product: bool) -> None:
    """Parts run on their own; the running totals of what lies before a part are then added to it (G. Blelloch, "Prefix
    sums and their applications", 1990)."""
    source, reduction = prepare(plan, source, target, dims, writes_all=True, shares=False)
    division = divide(plan.device, source, dims, reduction)
    if division is None:
        constants = [int(not source.is_floating), int(product)]
        run_reduction(plan, "cumulative", reduction, [source], [target], constants)
        return
    pieces = list(zip(division.pieces(source), division.pieces(target), strict=True))
    for (_, piece), (_, place) in pieces:
        _run_along(plan, piece, place, [d + 1 for d in dims], product)
    _, whole = pieces[0][1]
    totals = _last_of(whole, division.dim + 1)
    before = plan.empty(totals.sizes, target.dtype, elements=target.storage.elements)
    _run_along(plan, totals, before, [0], product)
    for _, (first, place) in pieces:
        start, count = (first, place.sizes[0]) if first else (1, place.sizes[0] - 1)
        if count:
            _join(plan, _from(place, start - first, count), _from(before, start - 1, count), product)


def _last_of(tensor: DeviceTensor, dim: int) -> DeviceTensor:
    sizes = [1 if d == dim else size for d, size in enumerate(tensor.sizes)]
    return tensor.view(sizes, tensor.strides, tensor.offset + (tensor.sizes[dim] - 1) * tensor.strides[dim])


def _join(plan: Plan, place: DeviceTensor, before: DeviceTensor, product: bool) -> None:
    kind = kind_of(place.dtype)
    opcodes = (Opcode.MUL, Opcode.ADD) if place.is_floating else (Opcode.INT_MUL, Opcode.INT_ADD)
    builder = ProgramBuilder()
    value = builder.step(opcodes[0 if product else 1], builder.tensor(before), builder.tensor(place), kind=kind)
    compute_into(plan, builder, value, place)
