"""Convolutions and pooling of images and signals that are too wide or too high, in parts that overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mobopt.ir import Value
from mobopt.ops.schemas import schema_of
from mobopt.passes.legalizations.building import slice_of, spread, weight_of
from mobopt.passes.legalizations.parts import (
    MOST_PARTS,
    check_worth,
    cut,
    even_bounds,
    join,
    parts_of,
    side_over,
)
from mobopt.passes.legalizations.site import Refused, Site, legalizes


@dataclass(frozen=True)
class _Axis:
    """A sliding window along the dimension that is divided."""

    dim: int
    """Of the tensors."""
    place: int
    """Among the window's parameters."""
    size: int
    """Of the input."""
    outputs: int
    reach: int
    """From the first element of a window to behind its last."""
    stride: int
    padding: int
    rounds_up: bool
    """Whether pooling may have a window more, which reaches out of the input."""

    def inputs(self, start: int, end: int) -> tuple[int, int]:
        """What a convolution or pooling reads for outputs ``start`` to ``end``, in elements of the unpadded input."""
        return start * self.stride - self.padding, (end - 1) * self.stride - self.padding + self.reach

    def sources(self, start: int, end: int) -> tuple[int, int]:
        """What a transposed convolution reads for outputs ``start`` to ``end``, at least one element before them."""
        reaching = -(-(start + self.padding - self.reach + 1) // self.stride)
        before = (start + self.padding) // self.stride  # where the stride is wider than the kernel, none may reach
        last = (end - 1 + self.padding) // self.stride
        return max(min(reaching, before, self.size - 1), 0), min(last + 1, self.size)


@legalizes("windows_in_parts", level="full")
def windows_in_parts(site: Site) -> Value:
    """The same for parts of the image that overlap as far as windows reach, joined."""
    x = site.node.inputs[0]
    axis = _axis_of(site, x)
    bounds = _bounds(site, x, axis, axis.inputs, axis.padding + axis.stride if axis.padding else 0)
    check_worth(site, [x], 3 * (len(bounds) - 1), len(bounds) - 1)
    return join(site, [_window_part(site, x, axis, *pair) for pair in pairwise(bounds)], axis.dim)


@legalizes("transposed_in_parts", level="full")
def transposed_in_parts(site: Site) -> Value:
    """Transposed convolutions of parts of the image, cut where others begin, joined."""
    x = site.node.inputs[0]
    axis = _axis_of(site, x)
    bounds = _bounds(site, x, axis, axis.sources, 2 * axis.reach + axis.stride)
    check_worth(site, [x], 3 * (len(bounds) - 1), len(bounds) - 1)
    return join(site, [_transposed_part(site, x, axis, *pair) for pair in pairwise(bounds)], axis.dim)


def _axis_of(site: Site, x: Value) -> _Axis:
    made = site.node.output
    dim = site.rank(x) + side_over(site, x, made)
    count = 1 if "1d" in site.node.op else 2
    place = dim - (site.rank(x) - count)
    if place < 0:
        raise Refused("its channels or samples are too many, and only rows and columns are divided")
    names = [item.name for item in schema_of(site.node.qualified_op).arguments]
    kernel = spread(site.const("kernel_size"), count) if "kernel_size" in names else list(weight_of(site).shape[2:])
    stride = spread(site.const("stride") or kernel, count)[place]
    dilation = spread(site.const("dilation"), count)[place] if "dilation" in names else 1
    padding = spread(site.const("padding"), count)[place]
    reach = dilation * (kernel[place] - 1) + 1
    rounds_up = "ceil_mode" in names and site.const("ceil_mode")
    return _Axis(dim, place, site.sizes(x)[dim], site.sizes(made)[dim], reach, stride, padding, rounds_up)


def _bounds(site: Site, x: Value, axis: _Axis, reads: Callable[[int, int], tuple[int, int]], more: int) -> list[int]:
    """Where parts of the result begin: as those of the input do, or even ones.

    Args:
        site: the operator.
        x: its input.
        axis: what is divided.
        reads: what part of the input a part of the result reads.
        more: how much more a part may compute or read, for what is dropped.
    """
    parts = parts_of(site, x)
    tries = []
    if parts is not None and parts.dim == axis.dim:
        ratio = axis.outputs / axis.size
        inner = {min(round(bound * ratio), axis.outputs) for bound in parts.bounds[1:-1]}
        tries.append(sorted({0, *inner, axis.outputs}))
    tries += [even_bounds(axis.outputs, -(-axis.outputs // count)) for count in range(2, MOST_PARTS + 1)]
    for bounds in tries:
        extents = [(end - start, _length(reads(start, end), axis.size)) for start, end in pairwise(bounds)]
        if all(max(pair) + more <= site.limit for pair in extents):
            return bounds
    raise Refused(f"{MOST_PARTS} parts are not small enough")


def _length(reads: tuple[int, int], size: int) -> int:
    return min(reads[1], size) - max(reads[0], 0)


def _window_part(site: Site, x: Value, axis: _Axis, start: int, end: int) -> Value:
    """Outputs ``start`` to ``end``.

    Only the first and the last part are padded: on both sides, as the parameter is, so that outputs on the inner side
    are dropped.
    """
    first, last = axis.inputs(start, end)
    if start == 0:
        last = min(last, axis.size)
        whole = _called(site, cut(site, x, axis.dim, 0, last), axis, axis.padding)
        count = (last + 2 * axis.padding - axis.reach) // axis.stride + 1 + axis.rounds_up
        return _dropped(site, whole, axis, count, range(end))
    if end == axis.outputs:
        extra = -(-axis.padding // axis.stride)
        first = (start - extra) * axis.stride
        if first < 0:
            raise Refused("its padding is wider than a part")
        whole = _called(site, cut(site, x, axis.dim, first, axis.size), axis, axis.padding)
        return _dropped(site, whole, axis, end - start + extra, range(extra, end - start + extra))
    if first < 0 or last > axis.size:
        raise Refused("its padding is wider than a part")
    whole = _called(site, cut(site, x, axis.dim, first, last), axis, 0)
    return _dropped(site, whole, axis, end - start, range(end - start))


def _transposed_part(site: Site, x: Value, axis: _Axis, start: int, end: int) -> Value:
    """Outputs ``start`` to ``end`` of what the inputs that reach them spread, without padding."""
    first, last = axis.sources(start, end)
    is_last = end == axis.outputs
    offset = start + axis.padding - first * axis.stride
    while last < axis.size and (last - first - 1) * axis.stride + axis.reach < offset + end - start:
        last += 1  # between windows lie elements that no input reaches
    more = spread(site.const("output_padding"), 1 if "1d" in site.node.op else 2)[axis.place] if is_last else 0
    whole = _called(site, cut(site, x, axis.dim, first, last), axis, 0, more)
    count = (last - first - 1) * axis.stride + axis.reach + more
    return _dropped(site, whole, axis, count, range(offset, offset + end - start))


def _called(site: Site, x: Value, axis: _Axis, padding: int, output_padding: int | None = None) -> Value:
    """The same operator on a part, with its own padding along the axis."""
    count = 1 if "1d" in site.node.op else 2

    def own(name: str, value: int) -> list[int]:
        numbers = spread(site.const(name), count)
        numbers[axis.place] = value
        return numbers

    replaced: dict[str, object] = {"padding": own("padding", padding)}
    if output_padding is not None:
        replaced["output_padding"] = own("output_padding", output_padding)
    names = [item.name for item in schema_of(site.node.qualified_op).arguments]
    rest = [replaced.get(name, value) for name, value in zip(names[1:], site.node.inputs[1:], strict=True)]
    result: Value = site.op(site.node.qualified_op, x, *rest)
    return result


def _dropped(site: Site, whole: Value, axis: _Axis, count: int, kept: Sequence[int]) -> Value:
    """The outputs of a part that are kept, of ``count`` at most."""
    if len(kept) == count:
        return whole
    if kept[-1] >= count:
        raise Refused("a part would have too few outputs")
    return slice_of(site, whole, axis.dim, kept[0], kept[-1] + 1)
