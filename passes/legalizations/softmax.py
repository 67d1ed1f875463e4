"""Softmax in forms that neither overflow nor lose small probabilities.

PyTorch 1.13's kernel divides exponentials by their sum as they are, which overflows above 88; 2.6's ``log_softmax`` is
the logarithm of probabilities plus 6e-8 (``glsl/softmax.glsl``, ``glsl/log_softmax.glsl``).
"""

from __future__ import annotations

from collections.abc import Callable

from mobopt.ir import Value
from mobopt.passes.legalizations.building import reshaped, size_of
from mobopt.passes.legalizations.pointwise import called, clamped, minus
from mobopt.passes.legalizations.shapes import inverse, permuted
from mobopt.passes.legalizations.site import Site, legalizes

_LEAST = -87.0
"""Whose exponential is the smallest normal number of single precision, where that of the largest is 1."""


@legalizes("softmax_of_differences", level="safe")
def softmax_of_differences(site: Site) -> Value:
    """The same of the differences to the largest, over the channels of one image."""

    def over_channels(image: Value) -> Value:
        moved = clamped(site, site.op("aten::permute", image, [0, 3, 1, 2]), _LEAST, 0.0)  # which the rows ask for
        result = site.op(site.node.qualified_op, moved, 1, site.node.inputs[2])
        return site.op("aten::permute", result, [0, 2, 3, 1])  # type: ignore[no-any-return]

    return _over_widths(site, over_channels)


@legalizes("log_softmax_in_steps", level="safe")
def log_softmax_in_steps(site: Site) -> Value:
    """The differences to the largest, minus the logarithm of the sum of their exponentials."""

    def over_widths(image: Value) -> Value:
        total = site.op("aten::sum.dim_IntList", called(site, "exp", image), [3], True)
        # The sum is at least 1: the clamp is for unused lanes alone, whose logarithm would be infinite.
        return minus(site, image, called(site, "log", clamped(site, total, 0.5, None)))

    return _over_widths(site, over_widths)


def _over_widths(site: Site, function: Callable[[Value], Value]) -> Value:
    """What a function makes of an image whose rows are what is normalised, less the largest of each."""
    x, rank = site.arg("self"), site.rank("self")
    dim = site.const("dim") % rank
    order = [*(item for item in range(rank) if item != dim), dim]
    sizes = [size_of(site, x, item) for item in order]
    image = reshaped(site, permuted(site, x, order), [1, -1, sizes[-2] if rank > 1 else 1, sizes[-1]])
    window = [1, sizes[-1]]
    largest = site.op("aten::max_pool2d", image, window, window)
    result = function(minus(site, image, largest))
    return permuted(site, reshaped(site, result, [*sizes[:-1], -1]), inverse(order))
