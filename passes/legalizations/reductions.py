"""Reductions, by the mean and the maximum over images, which Vulkan kernels of every release compute right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mobopt.ir import Value
from mobopt.passes.legalizations.building import plus, reshaped, size_of, times
from mobopt.passes.legalizations.pointwise import called, clamped, minus, scaled
from mobopt.passes.legalizations.shapes import inverse, permuted
from mobopt.passes.legalizations.site import Refused, Site, legalizes


@dataclass(frozen=True)
class _Dims:
    """Which dimensions of a tensor go, and which are kept."""

    rank: int
    gone: list[int]
    keepdim: bool

    @property
    def kept(self) -> list[int]:
        return [dim for dim in range(self.rank) if dim not in self.gone]


def _dims(site: Site, name: str = "dim") -> _Dims:
    """The dimensions that the node reduces; none given: all."""
    rank, given = site.rank("self"), site.const(name)
    listed = [given] if isinstance(given, int) else list(given or range(rank))
    dims = _Dims(rank, sorted({dim % rank for dim in listed if rank}), bool(site.const("keepdim")))
    if not dims.kept and not dims.keepdim:
        raise Refused("its result has no dimensions")
    return dims


def _as_image(site: Site, x: Value, dims: _Dims) -> Value:
    """(1, what is kept, what goes): an image whose height and width are reduced."""
    moved = permuted(site, x, [*dims.kept, *dims.gone])
    gone = [size_of(site, x, dim) for dim in dims.gone]
    if len(gone) <= 2:
        return reshaped(site, moved, [1, -1, gone[0], gone[1] if len(gone) == 2 else 1])
    kept = size_of(site, x, dims.kept[0]) if dims.kept else 1
    return reshaped(site, moved, [1, kept, gone[0], -1])


def _from_image(site: Site, reduced: Value, x: Value, dims: _Dims) -> Value:
    """What is kept, in its sizes, with ones for what has gone if these are kept too."""
    dimensions = range(dims.rank) if dims.keepdim else dims.kept
    return reshaped(site, reduced, [1 if dim in dims.gone else size_of(site, x, dim) for dim in dimensions])


def _count(site: Site, x: Value, dims: Sequence[int]) -> Value:
    """How many elements are reduced to one, when the model runs."""
    count = size_of(site, x, dims[0])
    for dim in dims[1:]:
        count = site.op("aten::mul.int", count, size_of(site, x, dim))
    return count


def _mean(site: Site, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
    result: Value = site.op("aten::mean.dim", x, list(dims), keepdim)
    return result


def _sum(site: Site, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
    result: Value = site.op("aten::sum.dim_IntList", x, list(dims), keepdim)
    return result


def _amax(site: Site, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
    result: Value = site.op("aten::amax", x, list(dims), keepdim)
    return result


@legalizes("mean_over_images", level="safe")
def mean_over_images(site: Site) -> Value:
    """The mean over height and width of an image that has what is reduced there."""
    x, dims = site.arg("self"), _dims(site)
    return _from_image(site, _mean(site, _as_image(site, x, dims), [2, 3], False), x, dims)


@legalizes("sum_by_mean", level="safe")
def sum_by_mean(site: Site) -> Value:
    """The mean times the number of elements."""
    x, dims = site.arg("self"), _dims(site)
    return scaled(site, _mean(site, x, dims.gone, dims.keepdim), _count(site, x, dims.gone))


@legalizes("name_dimensions", level="safe")
def name_dimensions(site: Site) -> Value:
    """The same with dimensions counted from the first."""
    dims = _dims(site)
    return _sum(site, site.arg("self"), dims.gone, dims.keepdim)


@legalizes("deviation_in_steps", level="safe")
def deviation_in_steps(site: Site) -> Value | tuple[Value, ...]:
    """Mean, squares of differences, and their mean, one by one."""
    x, dims, correction = site.arg("self"), _dims(site), _correction(site)
    elements = math.prod(site.sizes(x)[dim] for dim in dims.gone)
    if elements <= correction:
        raise Refused(f"it takes the deviation of {elements} elements")
    centred = minus(site, x, _mean(site, x, dims.gone, True))
    result = _mean(site, times(site, centred, centred), dims.gone, dims.keepdim)
    if correction:
        count = _count(site, x, dims.gone)
        result = scaled(site, result, site.op("aten::div.int", count, site.op("aten::sub.int", count, correction)))
    if site.node.op in ("aten::std", "aten::std_mean"):
        result = called(site, "sqrt", result)
    if site.node.op in ("aten::var", "aten::std"):
        return result
    return result, _mean(site, x, dims.gone, dims.keepdim)


def _correction(site: Site) -> int:
    """What is subtracted from the number of elements."""
    if site.node.overload == "dim":
        return int(site.const("unbiased"))
    correction = site.const("correction")
    if correction is not None and correction != int(correction):
        raise Refused(f"its correction is {correction}")
    return 1 if correction is None else int(correction)


@legalizes("maximum_by_pooling", level="full")
def maximum_by_pooling(site: Site) -> Value | tuple[Value, ...]:
    """Max pooling of an image that has what is reduced in its height and width; the minimum by negatives."""
    x, dims, op = site.arg("self"), _dims(site), site.node.op
    if any(value.uses for value in site.node.outputs[1:]):
        raise Refused("the places of the maxima are used")
    if site.facts(x).known_dtype != "float32" or dims.rank > 4:
        raise Refused("Vulkan tensors are float32 and have at most 4 dimensions")
    is_minimum = op in ("aten::amin", "aten::min")
    image = _as_image(site, scaled(site, x, -1.0) if is_minimum else x, dims)
    sizes = [site.sizes(x)[dim] for dim in dims.gone]
    window = [sizes[0], math.prod(sizes[1:])]
    largest = site.op("aten::max_pool2d", image, window, window)
    result = _from_image(site, scaled(site, largest, -1.0) if is_minimum else largest, x, dims)
    return result if len(site.node.outputs) == 1 else (result, result)


@legalizes("norm_in_steps", level="safe")
def norm_in_steps(site: Site) -> Value:
    """The root of the sum of squares, the sum of absolute values, or their maximum."""
    x, dims = site.arg("self"), _dims(site)
    order = 2.0
    if site.node.op != "aten::frobenius_norm":
        given = site.const("ord" if site.node.op == "aten::linalg_vector_norm" else "p")
        order = 2.0 if given is None else float(given)
    if site.node.op == "aten::linalg_vector_norm" and site.const("dtype") is not None:
        raise Refused("it changes the dtype")
    if order == 2.0:
        return called(site, "sqrt", _sum(site, times(site, x, x), dims.gone, dims.keepdim))
    if order not in (1.0, math.inf):
        raise Refused(f"its order is {order}")
    reduce = _sum if order == 1.0 else _amax
    return reduce(site, called(site, "abs", x), dims.gone, dims.keepdim)


@legalizes("logsumexp_in_steps", level="full")
def logsumexp_in_steps(site: Site) -> Value:
    """The maximum plus the logarithm of the sum of exponentials of the differences to it."""
    x, dims = site.arg("self"), _dims(site)
    largest = _amax(site, x, dims.gone, True)
    total = _sum(site, called(site, "exp", minus(site, x, largest)), dims.gone, dims.keepdim)
    # The sum is at least 1: the clamp is for unused lanes alone, whose logarithm would be infinite.
    logarithm = called(site, "log", clamped(site, total, 0.5, None))
    return plus(site, logarithm, largest if dims.keepdim else _amax(site, x, dims.gone, False))


@legalizes("cumsum_over_width", level="safe")
def cumsum_over_width(site: Site) -> Value:
    """The same over the width of one image."""
    x, rank = site.arg("self"), site.rank("self")
    dim = site.const("dim") % rank
    order = [*(item for item in range(rank) if item != dim), dim]
    sizes = [size_of(site, x, item) for item in order]
    image = reshaped(site, permuted(site, x, order), [1, -1, 1, sizes[-1]])
    summed = site.op("aten::cumsum", image, 3)
    return permuted(site, reshaped(site, summed, [*sizes[:-1], -1]), inverse(order))
