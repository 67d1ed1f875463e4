"""Dispatching ``normalize_rows.comp`` and ``normalize_held.comp``: normalisations of what registers hold."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.activation import Activation
from mobopt.runtimes.vulkan.kernels.device_costs import device_costs
from mobopt.runtimes.vulkan.kernels.kernel_access import VECTOR, element_form, reading, spread, writing
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.reduction_kernel import Reduction
from mobopt.runtimes.vulkan.kernels.result_finish import finish_constants
from mobopt.shaders.enumerations import LoadMode, Norm
from mobopt.shaders.reduction_push import NormalizeHeldPush, NormalizeRowsPush

_OTHER_ITERATIONS = 64
_MOST_HELD = 8
"""vec4s of an invocation that holds its part of an item."""
_USUALLY_HELD = 2
_ROWS_OF_A_GROUP = 2
_MOST_OF_A_GROUP = 1024
_MOST_DIMENSIONS = 2
"""Of items, and of an item."""


@dataclass(frozen=True)
class HeldNormalization:
    """What is wanted; see :func:`mobopt.runtimes.vulkan.kernels.normalization_kernel.normalize`."""

    source: DeviceTensor
    target: DeviceTensor
    reduction: Reduction
    """With the strides of the source, of the target and, if there are any, of weight and bias."""
    weight: DeviceTensor | None
    bias: DeviceTensor | None
    norm: Norm
    share: float
    """What sums are multiplied by."""
    eps: float
    finish: Activation

    @property
    def vectors(self) -> int:
        """vec4s of an item."""
        return math.prod(self.reduction.reduced.sizes) // VECTOR

    @property
    def has_whole_vectors(self) -> bool:
        """Whether all is read and written in whole vec4s."""
        reduction, factors = self.reduction, [each for each in (self.weight, self.bias) if each is not None]
        if not reduction.lanes_reduced or reduction.reduced.sizes[-1] % VECTOR:
            return False
        read = [(self.source, 0), *((tensor, len(reduction.kept.strides) - 1) for tensor in factors)]
        whole = all(reduction.lane_mode(tensor, number) == LoadMode.VECTOR for tensor, number in read)
        return whole and reduction.stores_vectors(self.target)

    @property
    def tensors(self) -> tuple[DeviceTensor, ...]:
        """The source, weight, bias and target; what isn't there is the source, which nobody reads as such."""
        operands = (self.source if tensor is None else tensor for tensor in (self.weight, self.bias))
        return (self.source, *operands, self.target)

    @property
    def constants(self) -> tuple[int | float, ...]:
        """Specialization constants that both kernels have last."""
        forms = sum(element_form(tensor) << 3 * place for place, tensor in enumerate(self.tensors))
        given = [int(tensor is not None) for tensor in (self.weight, self.bias)]
        return (int(self.norm), *given, forms, *finish_constants(self.finish))

    @property
    def starts(self) -> tuple[int, int]:
        """Where weight and bias begin, in vec4s."""
        weight, bias = (0 if each is None else each.offset // VECTOR for each in (self.weight, self.bias))
        return weight, bias


def _lanes(plan: Plan) -> int:
    """Invocations of a subgroup where those normalise fast; 0 elsewhere."""
    lanes = device_costs(plan.device).normalizing_lanes
    is_known = plan.device.subgroup_size == lanes and "subgroup_arithmetic" in plan.device.features
    return lanes if is_known else 0


def append_rows(plan: Plan, wanted: HeldNormalization) -> bool:
    """Let each subgroup normalise a row that its registers hold, where the device is known to be faster so; gives
    whether it does."""
    lanes = _lanes(plan)
    kept, reduced = wanted.reduction.kept, wanted.reduction.reduced
    if not lanes or kept.rank != 1 or reduced.rank != 1 or wanted.vectors > lanes * _MOST_HELD:
        return False
    is_given = wanted.weight is not None or wanted.bias is not None
    same = not is_given or kept.sizes[0] == 1 or kept.strides[-1][0] == 0  # for all rows
    if not same or not wanted.has_whole_vectors:
        return False
    group = plan.device.workgroup(_ROWS_OF_A_GROUP * lanes)
    if group % lanes:
        return False
    tensors = wanted.tensors
    weight_start, bias_start = wanted.starts
    plan.dispatch(
        f"normalize_rows{'' if wanted.finish.only_rounds else '_activated'}",
        [writing(wanted.target), *(reading(tensor, LoadMode.VECTOR, texels=False) for tensor in tensors[:-1])],
        spread(-(-kept.sizes[0] // (group // lanes))),
        (group, lanes, -(-wanted.vectors // lanes), *wanted.constants),
        NormalizeRowsPush(
            rows=kept.sizes[0],
            width=wanted.vectors,
            data_start=wanted.source.offset // VECTOR,
            data_pitch=kept.strides[0][0] // VECTOR,
            result_start=wanted.target.offset // VECTOR,
            result_pitch=kept.strides[1][0] // VECTOR,
            weight_start=weight_start,
            bias_start=bias_start,
            share=wanted.share,
            eps=wanted.eps,
        ),
        iterations=_OTHER_ITERATIONS,
    )
    return True


def append_held(plan: Plan, wanted: HeldNormalization) -> bool:
    """Let each workgroup normalise an item that its registers hold and those of a subgroup don't, where the device is
    known to be faster so; gives whether it does.

    An item is runs of vec4s a fixed distance apart, such as the channels of a group in each pixel.
    """
    lanes = _lanes(plan)
    kept, reduced, vectors = wanted.reduction.kept, wanted.reduction.reduced, wanted.vectors
    if not lanes or vectors <= lanes or max(kept.rank, reduced.rank) > _MOST_DIMENSIONS:
        return False
    if reduced.rank == 1 and vectors <= lanes * _MOST_HELD:  # a subgroup holds it
        return False
    group = plan.device.workgroup(min(_MOST_OF_A_GROUP, -(-vectors // (_USUALLY_HELD * lanes)) * lanes))
    if group % lanes or vectors > group * _MOST_HELD or not wanted.has_whole_vectors:
        return False
    outer_items, inner_items = (1, *kept.sizes)[-2:]
    runs, width = (1, *reduced.sizes)[-2:]
    (data, result), weight = [_steps(kept.strides[n], reduced.strides[n]) for n in (0, 1)], (0, 0, 0)
    if wanted.weight is not None or wanted.bias is not None:
        weight = _steps(kept.strides[-1], reduced.strides[-1])
        if (weight[0] and outer_items > 1) or (weight[2] and runs > 1):
            return False
    weight_start, bias_start = wanted.starts
    plan.dispatch(
        f"normalize_held{'' if wanted.finish.only_rounds else '_activated'}",
        [writing(wanted.target), *(reading(tensor, LoadMode.VECTOR, texels=False) for tensor in wanted.tensors[:-1])],
        spread(outer_items * inner_items),
        (group, -(-vectors // group), *wanted.constants),
        NormalizeHeldPush(
            items=outer_items * inner_items,
            inner_items=inner_items,
            runs=runs,
            width=width // VECTOR,
            data_start=wanted.source.offset // VECTOR,
            data_outer=data[0],
            data_inner=data[1],
            data_pitch=data[2],
            result_start=wanted.target.offset // VECTOR,
            result_outer=result[0],
            result_inner=result[1],
            result_pitch=result[2],
            weight_start=weight_start,
            weight_inner=weight[1],
            bias_start=bias_start,
            share=wanted.share,
            eps=wanted.eps,
        ),
        iterations=_OTHER_ITERATIONS,
    )
    return True


def _steps(kept: tuple[int, ...], reduced: tuple[int, ...]) -> tuple[int, int, int]:
    """From one item to the next, outer and inner, and from run to run, in vec4s."""
    outer, inner = (0, *kept)[-2:]
    return outer // VECTOR, inner // VECTOR, (0, *reduced)[-2] // VECTOR
