"""Dispatching ``shaders/glsl/normalize.comp``: a normalisation in one dispatch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.activation import IDENTITY, Activation
from mobopt.runtimes.vulkan.kernels.channel_groups import is_scattered
from mobopt.runtimes.vulkan.kernels.division import divide
from mobopt.runtimes.vulkan.kernels.geometry import expanded
from mobopt.runtimes.vulkan.kernels.kernel_access import (
    read_access,
    reading,
    uses_texels,
    write_access,
    writing,
)
from mobopt.runtimes.vulkan.kernels.normalization_in_registers import HeldNormalization, append_held, append_rows
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.reduction_kernel import SUMMED_STEPS, Reduction, plan_reduction
from mobopt.runtimes.vulkan.kernels.result_finish import finish_constants
from mobopt.shaders.enumerations import Norm
from mobopt.shaders.push_blocks import PUSH_CONSTANT_WORDS
from mobopt.shaders.reduction_push import NormalizePush

_PASSES = 3
"""Walks: for the mean, for the variance, and to write."""
_OTHER_ITERATIONS = 64
_MOST_ON_CPU, _MOST_STEPS_ON_CPU = 2**14, 512
"""Elements, and vec4s of an item, beyond which CPU drivers are faster with two kernels: dispatches cost little there,
and one that walks long items thrice finds them no longer in the nearest caches."""
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
    finish: Activation = IDENTITY,
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
        finish: what is done before it is stored.

    Returns:
        False, with nothing done, where one dispatch can't do it, or leaves the device idle.
    """
    operands = [None if tensor is None else expanded(tensor, source.sizes) for tensor in (weight, bias)]
    factors = [tensor for tensor in operands if tensor is not None]
    if source.numel == 0 or any(tensor.strides != factors[0].strides for tensor in factors):
        return False
    as_it_lies, reduction = (
        plan_reduction(plan.device, source, target, dims, writes_all=True, others=factors[:1], order_by=order)
        for order in (0, None)
    )
    if as_it_lies is None or reduction is None:
        return False
    share = 1.0 if norm == Norm.EUCLIDEAN else 1 / math.prod(source.sizes[d] for d in dims)
    wanted = HeldNormalization(source, target, as_it_lies, operands[0], operands[1], norm, share, eps, finish)
    if append_held(plan, wanted):
        return True
    if (norm == Norm.CENTERED and is_scattered(plan.device, source, dims)) or not _fits(plan, source, dims, reduction):
        return False
    if append_rows(plan, replace(wanted, reduction=reduction)):
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
        f"normalize{'' if finish.only_rounds else '_activated'}{'_texels' if texels else ''}",
        [writing(target), data, *bound],
        reduction.grid,
        [
            *(reduction.group, kept.rank, reduced.rank, reduction.threads, int(reduction.lanes_reduced), form),
            write_access(target, reduction.stores_vectors(target)),
            int(plan.device.is_cpu or reduction.steps > 2 * SUMMED_STEPS),
            *(_SPREAD, int(norm), *forms, *finish_constants(finish)),
        ],
        NormalizePush(
            sizes=(*kept.sizes, *reduced.sizes),
            input=(source.offset, *kept.strides[0], *reduced.strides[0]),
            output=(target.offset, *kept.strides[1]),
            output_reduced=reduced.strides[1],
            weight=(weight_offset, *kept.strides[number], *reduced.strides[number]),
            bias=bias_offset,
            share=share,
            eps=eps,
        ),
        iterations=_PASSES * (reduction.steps + reduction.steps // SUMMED_STEPS + 1) + _OTHER_ITERATIONS,
    )
    return True


def _fits(plan: Plan, source: DeviceTensor, dims: Sequence[int], reduction: Reduction) -> bool:
    """Whether one dispatch can walk all elements, and them only, and is as fast as several."""
    kept, reduced = reduction.kept, reduction.reduced
    is_whole = math.prod((*kept.sizes, *reduced.sizes)) == source.numel  # else lanes of no element were added
    rank = kept.rank + reduced.rank
    if plan.device.is_cpu and source.numel > _MOST_ON_CPU and reduction.steps > _MOST_STEPS_ON_CPU:
        return False
    fits = 4 * rank + 6 <= PUSH_CONSTANT_WORDS and _PASSES * reduction.steps <= USUAL_ITERATIONS
    return is_whole and fits and divide(plan.device, source, dims, reduction, passes=_PASSES) is None
