"""Windows of an image, as views of it."""

from __future__ import annotations

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes


@decomposes("aten::im2col")
def unfold(build: NodeBuilder, node: Node) -> Value:
    """``[N, C, H, W]``, or without N, to ``[N, C * taps, windows]``: all that is moved is moved once."""
    names = "kernel_size", "dilation", "padding", "stride"
    taps, gap, pad, step = (list(node[name]) for name in names)
    image = node["self"]
    if any(pad):
        image = build("aten::constant_pad_nd", image, [pad[1], pad[1], pad[0], pad[0]], 0.0)
    first = image.rank - 2
    for d in range(2):
        image = build("aten::unfold", image, first + d, gap[d] * (taps[d] - 1) + 1, step[d])
    for d in range(2):  # windows, then what is in them
        image = build("aten::slice.Tensor", image, first + 2 + d, None, None, gap[d])
    lead = range(first)
    moved = build("aten::permute", image, [*lead, first + 2, first + 3, first, first + 1])
    return build("aten::reshape", moved, list(node.output.sizes))
