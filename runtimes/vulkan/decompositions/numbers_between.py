"""Numbers between two that are computed, powers of numbers, and choices of several."""

from __future__ import annotations

from itertools import combinations as combined
from itertools import combinations_with_replacement

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes

_MOST_CHOSEN = 2**20
"""Places of elements that choices have altogether; torch would take long to make more."""


@decomposes("aten::linspace.Tensor_Tensor", "aten::linspace.Tensor_Scalar", "aten::linspace.Scalar_Tensor")
def linspace(build: NodeBuilder, node: Node) -> Value | None:
    """Numbers at equal distances, counted from the nearer end, as torch's are."""
    start, end = (_number(build, node[name]) for name in ("start", "end"))
    if node.output.dtype != torch.float32 or start is None or end is None or node.output.numel == 0:
        return None
    steps = node["steps"]
    if steps == 1:
        return build("aten::reshape", start, [1])
    step = build("aten::div.Scalar", build("aten::sub.Tensor", end, start), steps - 1)
    up = torch.arange(steps)
    is_near = Value.of_elements(up < steps // 2)
    forth, back = (Value.of_elements(part.float()) for part in (up, up - (steps - 1)))
    rising = build("aten::add.Tensor", build("aten::mul.Tensor", forth, step), start)
    falling = build("aten::add.Tensor", build("aten::mul.Tensor", back, step), end)
    return build("aten::where.self", is_near, rising, falling)


def _number(build: NodeBuilder, given: Value | float) -> Value | None:
    """A tensor of one number; None for what is none of float32."""
    if not isinstance(given, Value):
        return Value.of_elements(torch.tensor(float(given)))
    if given.rank:
        return None
    return given if given.dtype == torch.float32 else None


@decomposes("aten::logspace.Tensor_Tensor", "aten::logspace.Tensor_Scalar", "aten::logspace.Scalar_Tensor")
def logspace(build: NodeBuilder, node: Node) -> Value:
    """Powers of a base, whose exponents are at equal distances."""
    between = build(f"aten::linspace.{node.overload}", node["start"], node["end"], node["steps"], node["dtype"])
    return build("aten::pow.Scalar", node["base"], between)


@decomposes("aten::vander")
def powers(build: NodeBuilder, node: Node) -> Value | None:
    """The powers of numbers, each number's in a row, the highest first unless they are increasing."""
    x: Value = node["x"]
    count = x.sizes[0] if node["N"] is None else node["N"]
    if 0 in (x.numel, count):
        return None
    wide = build("aten::to.dtype", x, node.output.dtype) if x.dtype != node.output.dtype else x
    column = build("aten::unsqueeze", wide, -1)
    made = build("aten::ones_like", column)
    if count > 1:
        factors = build("aten::expand", column, [x.sizes[0], count - 1])
        made = build("aten::cat", [made, build("aten::cumprod", factors, 1)], 1)
    return made if node["increasing"] else build("aten::flip", made, [1])


@decomposes("aten::combinations")
def choices(build: NodeBuilder, node: Node) -> Value | None:
    """All choices of so many elements, in the order of their places."""
    x: Value = node["self"]
    length, count = x.sizes[0], node["r"]
    if not isinstance(length, int) or count < 1 or node.output.numel == 0 or node.output.numel > _MOST_CHOSEN:
        return None
    choose = combinations_with_replacement if node["with_replacement"] else combined
    places = torch.tensor(list(choose(range(length), count)))
    taken = build("aten::index_select", x, 0, Value.of_elements(places.flatten()))
    return build("aten::reshape", taken, list(places.shape))
