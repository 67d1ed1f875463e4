"""Convolutions of single pixels come before the upsampling that they read: there are fewer pixels there."""

from __future__ import annotations

import math

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import made_only_for, make_instead
from mobopt.ir.types import TensorType
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.kernels.convolution_parameters import CONVOLUTIONS, convolution_of
from mobopt.runtimes.vulkan.kernels.epilogue import epilogue_of


def convolve_before_upsampling(graph: Graph) -> None:
    """Exchange a convolution of single pixels and an upsampling that nothing else reads.

    Given:
        %u : Float(1, 16, 56, 56) = aten::upsample_bilinear2d.vec(%x, None, True, [2., 2.])
        %y : Float(1, 8, 56, 56) = aten::conv2d(%u, %w, %b, [1, 1], [0, 0], [1, 1], 1)
    Result:
        %c : Float(1, 8, 28, 28) = aten::conv2d(%x, %w, %b, [1, 1], [0, 0], [1, 1], 1)
        %y : Float(1, 8, 56, 56) = aten::upsample_bilinear2d.vec(%c, None, True, [2., 2.])

    What an upsampling makes are sums of pixels with weights that add up to one, so both orders give the same but for
    rounding, a bias included. A convolution stays where it makes more channels than it reads, as those would have to be
    interpolated, and where arithmetic comes after it, which it takes in (:mod:`.fusion`) and an upsampling doesn't.
    """
    for node in list(graph.block.nodes):
        upsampling = _read_by(node)
        if upsampling is None or any(has_trait(user.qualified_op, Trait.ELEMENTWISE) for user, _ in node.output.uses):
            continue
        source: Value = upsampling.args[0]
        sizes = (*node.output.sizes[:2], *source.sizes[2:])
        made = Value("", TensorType(node.output.dtype, sizes))
        early = Node.call(node.qualified_op, (source, *node.args[1:]), [made], node.origin)
        early.insert_before(node)
        late = Node.call(
            upsampling.qualified_op,
            (made, *upsampling.args[1:]),
            [Value("", node.output.type)],
            upsampling.origin,
        )
        make_instead(late, node)
        node.destroy()
        upsampling.destroy()


def _read_by(node: Node) -> Node | None:
    """The upsampling before a convolution of single pixels, if both can change places and there is less to do then."""
    if node.qualified_op not in CONVOLUTIONS or node.output.rank != 4:
        return None
    convolution = convolution_of(node)
    upsampling = made_only_for(convolution.input, node)
    if upsampling is None or not has_trait(upsampling.qualified_op, Trait.RESAMPLING) or convolution.transposed:
        return None
    if not convolution.is_of_single_pixels or set(convolution.stride) != {1} or not epilogue_of(node).is_identity:
        return None
    source: Value = upsampling.args[0]
    is_larger = math.prod(convolution.input.sizes[2:]) > math.prod(source.sizes[2:])
    return upsampling if is_larger and node.output.sizes[1] <= source.sizes[1] else None
