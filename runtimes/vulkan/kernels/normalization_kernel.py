"""Dispatching ``shaders/glsl/normalize.comp``: a normalisation in one dispatch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.activation import IDENTITY, Activation
from mobopt.runtimes.vulkan.kernels.device_costs import device_costs
from mobopt.runtimes.vulkan.kernels.division import divide
from mobopt.runtimes.vulkan.kernels.geometry import expanded
from mobopt.runtimes.vulkan.kernels.kernel_access import (
    VECTOR,
    element_form,
    read_access,
    reading,
    spread,
    uses_texels,
    write_access,
    writing,
)
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.reduction_kernel import SUMMED_STEPS, Reduction, plan_reduction
from mobopt.runtimes.vulkan.kernels.result_rounding import rounding_constants
from mobopt.shaders.enumerations import LoadMode, Norm
from mobopt.shaders.push_blocks import PUSH_CONSTANT_WORDS
from mobopt.shaders.push_constants import NormalizePush, NormalizeRowsPush

_PASSES = 3
"""Walks: for the mean, for the variance, and to write."""
_OTHER_ITERATIONS = 64
_MOST_ON_CPU, _MOST_STEPS_ON_CPU = 2**14, 512
"""Elements, and vec4s of an item, beyond which CPU drivers are faster with two kernels: dispatches cost little there,
and one that walks long items thrice finds them no longer in the nearest caches."""
_MOST_HELD = 8
"""vec4s of an invocation that holds its part of a row."""
_ROWS_OF_A_GROUP = 2
_SPREAD = 0
"""A constant of ``moments.glsl`` that the kernel doesn't ask for."""


def normalize(
    plan: Plan,
    source: DeviceTensor,
    target: DeviceTensor,
    dims: Sequence[int],
    weight: DeviceTensor | None,
    bias: DeviceTensor | None,
    eps: float,
    *,
    norm: Norm = Norm.CENTERED,
    rounding: Activation = IDENTITY,
) -> bool:
    """Write ``(x - mean) / sqrt(variance + eps) * weight + bias``, statistics being of ``dims``, in one dispatch.

    Args:
        plan: where the dispatch goes.
        source: what is normalised.
        target: of the same sizes.
        dims: not negative, ascending.
        weight: broadcast to the source's sizes; none is one.
        bias: with the weight's strides.
        eps: added to the variance; what the sum of squares is at least, of :attr:`Norm.EUCLIDEAN`.
        norm: what is divided by; nothing is subtracted where that is no deviation.
        rounding: what is done before it is stored.

    Returns:
        False, with nothing done, where one dispatch can't do it, or leaves the device idle.
    """
    operands = [None if tensor is None else expanded(tensor, source.sizes) for tensor in (weight, bias)]
    factors = [tensor for tensor in operands if tensor is not None]
    if source.numel == 0:
        return False
    if any(tensor.strides != factors[0].strides for tensor in factors):
        return False
    reduction = plan_reduction(plan.device, source, target, dims, writes_all=True, others=factors[:1])
    if reduction is None or not _fits(plan, source, dims, reduction):
        return False
    if _append_rows(plan, source, target, reduction, operands, eps, norm, rounding):
        return True
    kept, reduced = reduction.kept, reduction.reduced
    number = len(kept.strides) - 1  # of the factors' strides; without factors nobody reads them
    reads = [(source, reduction.lane_mode(source, 0))]
    reads += [(tensor, reduction.lane_mode(tensor, number)) for tensor in factors]
    texels = uses_texels(plan.device, reads)
    bindings = iter([reading(tensor, mode, texels) for tensor, mode in reads])
    accesses = iter([read_access(tensor, mode) for tensor, mode in reads])
    data, form = next(bindings), next(accesses)
    bound = [data if tensor is None else next(bindings) for tensor in operands]
    forms = [-1 if tensor is None else next(accesses) for tensor in operands]
    weight_offset, bias_offset = (0 if tensor is None else tensor.offset for tensor in operands)
    plan.dispatch(
        f"normalize{'_texels' if texels else ''}",
        [writing(target), data, *bound],
        reduction.grid,
        [
            *(reduction.group, kept.rank, reduced.rank, reduction.threads, int(reduction.lanes_reduced), form),
            write_access(target, reduction.stores_vectors(target)),
            int(plan.device.is_cpu or reduction.steps > 2 * SUMMED_STEPS),
            *(_SPREAD, int(norm), *forms, *rounding_constants(rounding)),
        ],
        NormalizePush(
            sizes=(*kept.sizes, *reduced.sizes),
            input=(source.offset, *kept.strides[0], *reduced.strides[0]),
            output=(target.offset, *kept.strides[1]),
            output_reduced=reduced.strides[1],
            weight=(weight_offset, *kept.strides[number], *reduced.strides[number]),
            bias=bias_offset,
            share=_share(norm, math.prod(source.sizes[d] for d in dims)),
            eps=eps,
        ),
        iterations=_PASSES * (reduction.steps + reduction.steps // SUMMED_STEPS + 1) + _OTHER_ITERATIONS,
    )
    return True


def _append_rows(
    plan: Plan,
    source: DeviceTensor,
    target: DeviceTensor,
    reduction: Reduction,
    operands: Sequence[DeviceTensor | None],
    eps: float,
    norm: Norm,
    rounding: Activation,
) -> bool:
    """Let each subgroup normalise a row that its registers hold, where the device is known to be faster so; gives
    whether it does."""
    lanes = device_costs(plan.device).normalizing_lanes
    kept, reduced = reduction.kept, reduction.reduced
    elements = reduced.sizes[-1]
    vectors = elements // VECTOR
    if not lanes or plan.device.subgroup_size != lanes or "subgroup_arithmetic" not in plan.device.features:
        return False
    if not reduction.lanes_reduced or kept.rank != 1 or reduced.rank != 1 or vectors > lanes * _MOST_HELD:
        return False
    factors = [tensor for tensor in operands if tensor is not None]
    read = [(source, 0), *((tensor, len(kept.strides) - 1) for tensor in factors)]
    whole = all(reduction.lane_mode(tensor, number) == LoadMode.VECTOR for tensor, number in read)
    same = not factors or kept.sizes[0] == 1 or kept.strides[-1][0] == 0  # for all rows
    if elements % VECTOR or not whole or not same or not reduction.stores_vectors(target):
        return False
    tensors = (source, *(source if tensor is None else tensor for tensor in operands), target)
    forms = sum(element_form(tensor) << 3 * place for place, tensor in enumerate(tensors))
    group = plan.device.workgroup(_ROWS_OF_A_GROUP * lanes)
    if group % lanes:
        return False
    starts = [0 if tensor is None else tensor.offset // VECTOR for tensor in operands]
    given = [int(tensor is not None) for tensor in operands]
    plan.dispatch(
        "normalize_rows",
        [writing(target), *(reading(tensor, LoadMode.VECTOR, texels=False) for tensor in tensors[:-1])],
        spread(-(-kept.sizes[0] // (group // lanes))),
        (group, lanes, -(-vectors // lanes), int(norm), *given, forms, *rounding_constants(rounding)),
        NormalizeRowsPush(
            rows=kept.sizes[0],
            width=vectors,
            data_start=source.offset // VECTOR,
            data_pitch=kept.strides[0][0] // VECTOR,
            result_start=target.offset // VECTOR,
            result_pitch=kept.strides[1][0] // VECTOR,
            weight_start=starts[0],
            bias_start=starts[1],
            share=_share(norm, elements),
            eps=eps,
        ),
        iterations=_OTHER_ITERATIONS,
    )
    return True


def _share(norm: Norm, count: int) -> float:
    """What sums over so many elements are multiplied by."""
    return 1.0 if norm == Norm.EUCLIDEAN else 1 / count


def _fits(plan: Plan, source: DeviceTensor, dims: Sequence[int], reduction: Reduction) -> bool:
    """Whether one dispatch can walk all elements, and them only, and is as fast as several."""
    kept, reduced = reduction.kept, reduction.reduced
    is_whole = math.prod((*kept.sizes, *reduced.sizes)) == source.numel  # else lanes of no element were added
    rank = kept.rank + reduced.rank
    if plan.device.is_cpu and source.numel > _MOST_ON_CPU and reduction.steps > _MOST_STEPS_ON_CPU:
        return False
    fits = 4 * rank + 6 <= PUSH_CONSTANT_WORDS and _PASSES * reduction.steps <= USUAL_ITERATIONS
    return is_whole and fits and divide(plan.device, source, dims, reduction, passes=_PASSES) is None
