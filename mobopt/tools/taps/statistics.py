"""Numbers that stand for a large value: six statistics, then a sample, in one vector of float64.

The graph that computes them runs on the phone's CPU, and by the reference interpreter: one definition for both sides.
"""

from __future__ import annotations

import math

import torch

from mobopt.ir import Value
from mobopt.ir.types import TENSOR, ListType
from mobopt.tools.differences import Difference, difference
from mobopt.tools.taps.nodes import NodeWriter

NAMES = ("min", "max", "mean", "standard deviation", "NaN", "infinities")
"""The statistics in order: four of the elements with zero in place of those that are not finite, and two counts."""
_DOUBLE = 7
"""``ScalarType::Double``."""


def sampling_step(numel: int, samples: int) -> int:
    """Every how many elements the sample takes one: a number that shares no divisor with ``numel``, so that no row or
    column is all that is seen."""
    step = max(1, -(-numel // samples))
    while math.gcd(step, numel) > 1:
        step += 1
    return step


def write_statistics(write: NodeWriter, value: Value, step: int) -> Value:
    """Append the nodes that make the vector of a tensor on the CPU.

    Args:
        write: appends nodes.
        value: the tensor.
        step: of the sample.
    """
    flat = write("aten::flatten", value, 0, -1, overload="using_ints")
    wide = _as_double(write, flat)
    finite = write("aten::nan_to_num", wide, 0.0, 0.0, 0.0)
    counts = [_as_double(write, write("aten::sum", write(op, wide), None)) for op in ("aten::isnan", "aten::isinf")]
    numbers = [
        write("aten::min", finite),
        write("aten::max", finite),
        write("aten::mean", finite, None),
        write("aten::std", finite, False),
        *counts,
    ]
    tensors = ListType(TENSOR)
    vector = write("aten::stack", write("prim::ListConstruct", *numbers, type=tensors), 0)
    sample = write("aten::slice", wide, 0, 0, None, step, overload="Tensor")
    return write("aten::cat", write("prim::ListConstruct", vector, sample, type=tensors), 0)


def _as_double(write: NodeWriter, value: Value) -> Value:
    return write("aten::to", value, _DOUBLE, False, False, None, overload="dtype")


def statistics_difference(reference: torch.Tensor, other: torch.Tensor) -> Difference:
    """How far two such vectors are from each other: what is known of the difference of the tensors that they stand for.

    The error is the largest one of the extremes, the mean, the deviation and the sample, over the reference's largest
    magnitude; infinite if other counts of elements are not finite. The mean error and the cosine are the sample's.
    """
    count = len(NAMES)
    theirs, ours = reference[:count].tolist(), other[:count].tolist()
    sample = difference(reference[count:], other[count:])
    scale = max(abs(theirs[0]), abs(theirs[1]))
    apart = max(abs(left - right) for left, right in zip(theirs[:4], ours[:4], strict=True))
    if sample.error < math.inf:
        apart = max(apart, sample.error * (sample.scale or 1.0))
    error = apart / scale if scale else (0.0 if apart == 0 else math.inf)
    if theirs[4:] != ours[4:] or sample.error == math.inf or math.isnan(apart):
        error = math.inf
    nans, infinities = ((_count(theirs[place]), _count(ours[place])) for place in (4, 5))
    return Difference(error, sample.mean, sample.cosine, scale, nans, infinities)


def _count(number: float) -> int:
    return int(number) if math.isfinite(number) and number >= 0 else 0
