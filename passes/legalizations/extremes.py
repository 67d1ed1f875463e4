"""The larger or the smaller of two tensors, which PyTorch's Vulkan backend has no kernel for.

A step of their difference would choose as well, but gives NaN where an operand is infinite. The maximum of a window is
exact: one operand lies below the other, and a window has two elements that are as far apart as an operand is high.
The kernel begins with the lowest number (``glsl/max_pool2d.glsl``), which stands where both elements are lower still.
"""

from __future__ import annotations

import math

import torch

from mobopt.ir import Value
from mobopt.passes.legalizations.building import joined, plus, reshaped, size_of
from mobopt.passes.legalizations.pointwise import clamped, scaled
from mobopt.passes.legalizations.site import Refused, Site, legalizes


@legalizes("pool_of_both", level="safe")
def pool_of_both(site: Site) -> Value:
    """The maximum of windows over one operand above the other; of their negatives for a minimum."""
    left, right = site.arg("self"), site.arg("other")
    is_maximum = site.node.op in ("aten::maximum", "aten::max")
    if any(site.facts(x).known_dtype != "float32" for x in (left, right) if not _is_number(x)):
        raise Refused("its operands are not known to be of float32")
    for x, bound in ((left, right), (right, left)):
        if _is_number(bound):
            number = float(bound.constant)
            return clamped(site, x, *((number, None) if is_maximum else (None, number)))
    if site.rank(site.node.output) > 4:
        raise Refused("Vulkan tensors have at most 4 dimensions")
    whole = _repeated(site, left, right), _repeated(site, right, left)
    if is_maximum:
        return _larger(site, *whole)
    return scaled(site, _larger(site, *(scaled(site, x, -1.0) for x in whole)), -1.0)


def _is_number(x: Value) -> bool:
    """Whether an operand is a constant of no dimensions, which decides no dtype; and a bound that a clamp takes."""
    return x.is_constant and x.constant.dim() == 0 and not math.isnan(x.constant)


def _repeated(site: Site, x: Value, other: Value) -> Value:
    """An operand, as large as the result: a sum with zeros of the other's size."""
    if site.sizes(x) == site.sizes(site.node.output):
        return x
    zeros = torch.zeros(other.constant.shape) if other.is_constant else clamped(site, other, 0.0, 0.0)
    return plus(site, x, zeros)


def _larger(site: Site, left: Value, right: Value) -> Value:
    """The larger element of two tensors of one size and of up to four dimensions."""
    sizes = [size_of(site, left, dim) for dim in range(site.rank(left))]
    images = [left, right]
    if len(sizes) < 4:
        image: list[int | Value] = [*[1] * (4 - max(len(sizes), 1)), *sizes[:-1], -1]
        images = [reshaped(site, x, image) for x in images]
    height = sizes[-2] if len(sizes) > 1 else 1
    pooled: Value = site.op("aten::max_pool2d", joined(site, images, 2), [2, 1], [1, 1], [0, 0], [height, 1], False)
    return pooled if len(sizes) == 4 else reshaped(site, pooled, [*sizes[:-1], -1] if sizes else [])
