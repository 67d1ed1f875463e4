"""Running sums of powers: in each round every element takes in what lies twice as far before it as in the last one
(W. D. Hillis and G. L. Steele, Data parallel algorithms, 1986)."""

from __future__ import annotations

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes


@decomposes("aten::logcumsumexp")
def logcumsumexp(build: NodeBuilder, node: Node) -> Value | None:
    """The logarithm of the sum of powers so far."""
    x, dim = node.args
    if x.rank == 0 or x.numel == 0:
        return build("aten::clone", x)
    dim, reach = dim % x.rank, 1
    length = x.sizes[dim]
    current: Value = x
    while reach < length:
        first = build("aten::slice.Tensor", current, dim, 0, reach)
        before = build("aten::slice.Tensor", current, dim, 0, length - reach)
        after = build("aten::slice.Tensor", current, dim, reach, length)
        current = build("aten::cat", [first, build("aten::logaddexp", before, after)], dim)
        reach *= 2
    return current
