"""Elements put where a mask, or a place in row-major order, says."""

from __future__ import annotations

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.refusals import unless
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes


@decomposes("aten::put")
def put(build: NodeBuilder, node: Node) -> Value:
    """Places of the whole in row-major order are those of one dimension."""
    x, index, source = (build("aten::reshape", node[name], [-1]) for name in ("self", "index", "source"))
    made = build("aten::index_put", x, [index], source, node["accumulate"])
    return build("aten::reshape", made, list(node.output.sizes))


@decomposes("aten::masked_scatter")
def masked_scatter(build: NodeBuilder, node: Node) -> Value | None:
    """The n-th true element of the mask takes the n-th element of the source."""
    sizes = list(node.output.sizes)
    x, mask = (build("aten::expand", node[name], sizes) for name in ("self", "mask"))
    if node["source"].numel == 0 or mask.dtype != torch.bool:
        return None
    flat = build("aten::reshape", mask, [-1])
    order = build("aten::reshape", _order_of_true(build, flat), sizes)
    taken = build("aten::take", node["source"], order)
    return build("aten::where.self", mask, taken, x)


def _order_of_true(build: NodeBuilder, mask: Value) -> Value:
    """How many true elements of a line come before each that is true; 0 for others."""
    counted = build("aten::cumsum", mask, 0)
    return build("aten::where.self", mask, build("aten::sub.Scalar", counted, 1), build("aten::zeros_like", counted))


@decomposes("aten::index_put")
def index_put(build: NodeBuilder, node: Node) -> Value | None:
    """Of one mask: a choice between what is there and what is put."""
    x, values = node["self"], node["values"]
    given = [(place, index) for place, index in enumerate(node["indices"]) if index is not None]
    if len(given) != 1 or given[0][1].dtype != torch.bool or x.numel == 0 or values.numel == 0:
        return None
    if values.dtype != x.dtype:
        if node["accumulate"] or values.numel != 1:
            return None
        values = build("aten::to.dtype", values, x.dtype)  # torch fills with a number
    ((first, mask),) = given
    rest = x.rank - first - mask.rank
    seen = build("aten::reshape", mask, [*mask.sizes, *[1] * rest])
    values = _at_true(build, values, mask, rest)
    if node["accumulate"]:
        nothing = build("aten::zeros_like", values)
        return build("aten::add.Tensor", x, build("aten::where.self", seen, values, nothing))
    return build("aten::where.self", seen, values, x)


def _at_true(build: NodeBuilder, values: Value, mask: Value, rest: int) -> Value:
    """What is put, with the dimensions of the mask in place of the one that counts its true elements."""
    if values.rank <= rest:
        return values
    place = values.rank - rest - 1
    count = values.sizes[place]
    sizes = [*values.sizes[:place], *(mask.sizes if count > 1 else [1] * mask.rank), *values.sizes[place + 1 :]]
    if count > 1:
        flat = build("aten::reshape", mask, [-1])
        order = _order_of_true(build, flat)
        # So many elements as are true must be given.
        is_wrong = build("aten::ne.Scalar", build("aten::sum", flat), count)
        values = build("aten::index_select", values, place, unless(build, is_wrong, order))
    return build("aten::reshape", values, sizes)


@decomposes("aten::nonzero_static")
def nonzero_static(build: NodeBuilder, node: Node) -> Value | None:
    """The places of the first elements that aren't zero, and the fill value where there are no more."""
    x: Value = node["self"]
    count, rank = node["size"], x.rank
    if 0 in (x.numel, rank, count) or x.dtype.is_complex:
        return None
    is_true = x if x.dtype == torch.bool else build("aten::ne.Scalar", x, 0)
    flat = build("aten::reshape", is_true, [-1])
    order = build(
        "aten::where.self", flat, _order_of_true(build, flat), build("aten::full_like", flat, count, torch.int64)
    )
    whole = build("aten::full", [count + 1], -1, torch.int64)
    order = build("aten::clamp_max", order, count)  # what is beyond comes to the last place, which is cut off
    own = Value.of_elements(torch.arange(x.numel))
    found = build("aten::narrow", build("aten::scatter.src", whole, 0, order, own), 0, 0, count)
    is_there = build("aten::unsqueeze", build("aten::ge.Scalar", found, 0), -1)
    columns = []
    for size in reversed(x.sizes):
        columns.append(build("aten::remainder.Scalar", found, size))
        found = build("aten::floor_divide.Scalar", found, size) if len(columns) < rank else found
    places = build("aten::stack", columns[::-1], -1)
    return build("aten::where.ScalarOther", is_there, places, node["fill_value"])


@decomposes("aten::one_hot")
def one_hot(build: NodeBuilder, node: Node) -> Value | None:
    """Ones put where the classes say, which must be places that there are."""
    classes, count = node["self"], node["num_classes"]
    if count <= 0 or classes.numel == 0:
        return None  # the largest class decides how many there are
    empty = build("aten::new_zeros", classes, [*classes.sizes, count])
    return build("aten::scatter.value", empty, -1, build("aten::unsqueeze", classes, -1), 1)


@decomposes("aten::embedding_renorm")
def embedding_renorm(build: NodeBuilder, node: Node) -> Value | None:
    """Rows that are read and longer than allowed become as long as allowed."""
    table, rows, longest = node["self"], node["indices"], node["max_norm"]
    if table.dtype != torch.float32 or rows.numel == 0:
        return None
    unread = build("aten::new_zeros", table, [table.sizes[0]])
    read = build("aten::index_fill.int_Scalar", unread, 0, build("aten::reshape", rows, [-1]), 1.0)
    lengths = build("aten::linalg_vector_norm", table, node["norm_type"], [1])
    is_read, is_long = build("aten::gt.Scalar", read, 0.0), build("aten::gt.Scalar", lengths, longest)
    scale = build("aten::mul.Scalar", build("aten::reciprocal", build("aten::add.Scalar", lengths, 1e-7)), longest)
    is_shortened = build("aten::logical_and", is_read, is_long)
    scale = build("aten::where.self", is_shortened, scale, build("aten::ones_like", scale))
    return build("aten::mul.Tensor", table, build("aten::unsqueeze", scale, 1))
