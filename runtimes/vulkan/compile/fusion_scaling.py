"""Folds what scales a convolution's input into the convolution.

A squeeze-and-excitation's product with an image, and a normalisation before a convolution, are computed as the
convolution reads its input, so they take no dispatch and their results no memory.
"""

from __future__ import annotations

from collections.abc import Container

from mobopt.ir import Graph, Node
from mobopt.ir.rewriting import dissolve, enclose
from mobopt.runtimes.vulkan.kernels.convolution_parameters import convolution_of
from mobopt.runtimes.vulkan.kernels.epilogue import PRODUCT, parts_of
from mobopt.runtimes.vulkan.kernels.product_scaling import ScaledInput
from mobopt.runtimes.vulkan.lowerings.convolution import convolution, takes_scaling
from mobopt.runtimes.vulkan.lowerings.registry import lowering_of, why_unsupported


def fold_scalings(graph: Graph, on_host: Container[Node] = ()) -> None:
    """Let each convolution that can scale its input itself do so, where nothing else reads what was scaled.

    Given:
        %m : Float(1, 8, 5, 5) = aten::mul.Tensor(%x, %factor)
        %y : Float(1, 4, 5, 5) = aten::conv2d(%m, %w, None, [1, 1], [0, 0], [1, 1], 1)
    Result:
        %y : Float(1, 4, 5, 5) = mobopt::product()
          block0():
            %m : Float(1, 8, 5, 5) = aten::mul.Tensor(%x, %factor)
            %z : Float(1, 4, 5, 5) = aten::conv2d(%m, %w, None, [1, 1], [0, 0], [1, 1], 1)
            -> (%z)

    It runs after epilogues are folded. Nodes of ``on_host`` stay as they are.
    """
    for node in graph.block.nodes:
        if node not in on_host:
            _fold(node, on_host)


def _fold(node: Node, on_host: Container[Node]) -> None:
    product = parts_of(node)[0]
    lowering = lowering_of(product.qualified_op)
    if lowering is None or lowering.function is not convolution or why_unsupported(product) is not None:
        return
    if not takes_scaling(product):
        return
    found = ScaledInput.of(convolution_of(product).input)
    if found is None or any(part in on_host or len(part.output.uses) != 1 for part in found.nodes):
        return
    parts = dissolve(node) if node.op == PRODUCT else [node]
    enclose([*found.nodes, *parts], PRODUCT)
