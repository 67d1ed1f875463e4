"""Operators on tensors that are in parts: each on the parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from mobopt.ir import Value
from mobopt.ops.effects import listed_items
from mobopt.passes.legalizations.building import plus
from mobopt.passes.legalizations.parts import Parts, cut, join, parts_of, with_size
from mobopt.passes.legalizations.site import Refused, Site, legalizes

_OF_CHANNELS = ("aten::batch_norm", "aten::layer_norm", "aten::prelu")
"""Operators whose other tensors are for each channel, or for the dimensions that they look at as a whole."""
_ONE_OPERATOR = "it is one operator, and what it reads is not in parts on the GPU"


@legalizes("apply_to_parts", level="full")
def apply_to_parts(site: Site) -> Value:
    """The same on each part."""
    made = site.sizes(site.node.output)
    tensors = [value for value in site.node.inputs if str(value.type) == "Tensor"]
    parts = _first_parts(site, tensors)
    behind = parts.dim - len(made)
    has_own_dims = site.rank(parts.values[0]) == len(made) and made[parts.dim] == parts.bounds[-1]
    if not has_own_dims or any(dim % len(made) == parts.dim for dim in _mixed(site, len(made))):
        raise Refused("it mixes elements of several parts")

    if site.node.op in _OF_CHANNELS:
        tensors = tensors[:1]

    def own(value: Value, start: int, end: int) -> Value:
        sizes = site.sizes(value)
        if len(sizes) < -behind or sizes[behind] == 1:
            return value
        return cut(site, value, len(sizes) + behind, start, end)

    def part(start: int, end: int) -> Value:
        inputs = [own(value, start, end) if value in tensors else value for value in site.node.inputs]
        return site.op(site.node.qualified_op, *inputs)  # type: ignore[no-any-return]

    return _each(site, parts.bounds, parts.dim, part)


def _mixed(site: Site, rank: int) -> Sequence[int]:
    """Dimensions along which an operator looks at more than one element."""
    op = site.node.op
    if op in ("aten::softmax", "aten::log_softmax"):
        return [site.const("dim")]
    if op == "aten::layer_norm":
        return [-1 - index for index in range(len(site.const("normalized_shape")))]
    return [1] if op in ("aten::batch_norm", "aten::prelu") else []


@legalizes("cat_parts", level="full")
def cat_parts(site: Site) -> Value:
    """The parts of the operands joined one by one."""
    values = listed_items(site.node.inputs[0])
    if values is None:
        raise Refused(_ONE_OPERATOR)
    parts = _first_parts(site, values)
    made = site.sizes(site.node.output)
    dim = site.const("dim") % len(made)
    if dim == parts.dim or (dim >= len(made) - 2 and made[dim] > site.limit):
        raise Refused("it joins what is over the limit")

    def part(start: int, end: int) -> Value:
        return site.op("aten::cat", [cut(site, value, parts.dim, start, end) for value in values], site.const("dim"))  # type: ignore[no-any-return]

    return _each(site, parts.bounds, parts.dim, part)


@legalizes("rearrange_parts", level="full")
def rearrange_parts(site: Site) -> Value:
    """The same order or sizes for each part."""
    x, made = site.node.inputs[0], site.sizes(site.node.output)
    parts = _first_parts(site, [x])
    if site.node.op in ("aten::permute", "aten::transpose", "aten::t"):
        dim = _order(site, len(made)).index(parts.dim)
        return _each_value(
            site, parts, dim, lambda value: site.op(site.node.qualified_op, value, *site.node.inputs[1:])
        )
    before, size = math.prod(site.sizes(x)[: parts.dim]), parts.bounds[-1]
    for dim in range(len(made)):
        if made[dim] == size and math.prod(made[:dim]) == before:
            break
    else:
        raise Refused("the dimension that is divided does not stay one")

    def reshaped(value: Value) -> Value:
        sizes = with_size(made, dim, site.sizes(value)[parts.dim])
        return site.op("aten::reshape", value, sizes)  # type: ignore[no-any-return]

    return _each_value(site, parts, dim, reshaped)


def _order(site: Site, rank: int) -> list[int]:
    if site.node.op == "aten::permute":
        return [dim % rank for dim in site.const("dims")]
    order = list(range(rank))
    first, second = (0, 1) if site.node.op == "aten::t" else (site.const(name) % rank for name in ("dim0", "dim1"))
    order[first], order[second] = second, first
    return order


@legalizes("slice_parts", level="full")
def slice_parts(site: Site) -> Value:
    """Slices of the parts that it is in."""
    x, dim = site.arg("self"), site.const("dim") % site.rank("self")
    _first_parts(site, [x])
    if site.const("step") != 1:
        raise Refused("it takes not every element")
    start = site.const("start") or 0
    start = max(start + site.sizes(x)[dim], 0) if start < 0 else start
    return cut(site, x, dim, start, start + site.sizes(site.node.output)[dim])


@legalizes("mean_of_parts", level="full")
def mean_of_parts(site: Site) -> Value:
    """The means of the parts, each times its share, added."""
    x = site.node.inputs[0]
    parts = _first_parts(site, [x])
    rank = site.rank(x)
    if site.node.op == "aten::mean":
        dims = [dim % rank for dim in site.const("dim") or []]
    else:
        count = 1 if "1d" in site.node.op else 2
        if math.prod(site.sizes(site.node.output)[-count:]) != 1:
            raise Refused("it has several windows")
        dims = list(range(rank - count, rank))
    if parts.dim not in dims:
        raise Refused("it leaves the dimension that is divided")
    total: Value | None = None
    for value in parts.values:
        share = site.sizes(value)[parts.dim] / parts.bounds[-1]
        mean = site.op(site.node.qualified_op, value, *site.node.inputs[1:])
        term = site.op("aten::mul.Scalar", mean, share)
        total = term if total is None else plus(site, total, term)
    assert total is not None
    return total


def _first_parts(site: Site, values: Sequence[Value]) -> Parts:
    """The parts of the first operand that has some.

    Raises:
        Refused: none has.
    """
    for value in values:
        parts = None if value.is_constant else parts_of(site, value)
        if parts is not None:
            return parts
    raise Refused(_ONE_OPERATOR)


def _each(site: Site, bounds: Sequence[int], dim: int, part: Callable[[int, int], Value]) -> Value:
    """What is computed for each part, joined."""
    return join(site, [part(start, end) for start, end in pairwise(bounds)], dim)


def _each_value(site: Site, parts: Parts, dim: int, apply: Callable[[Value], Value]) -> Value:
    return join(site, [apply(value) for value in parts.values], dim)
