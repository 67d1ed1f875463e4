"""Folds what scales a convolution's input into the convolution.

A squeeze-and-excitation's product with an image, and a normalisation before a convolution, are computed as the
convolution reads its input, so they take no dispatch and their results no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from mobopt.ir import Graph, Node
from mobopt.ir.rewriting import dissolve, enclose
from mobopt.runtimes.vulkan.kernels.convolution_parameters import convolution_of
from mobopt.runtimes.vulkan.kernels.epilogue import PRODUCT, parts_of
from mobopt.runtimes.vulkan.kernels.product_scaling import ScaledInput
from mobopt.runtimes.vulkan.lowerings.convolution import convolution, takes_scaling
from mobopt.runtimes.vulkan.lowerings.registry import lowering_of, why_unsupported


def fold_scalings(
    graph: Graph,
    on_host: Container[Node] = (),
    is_apart: Callable[[Node], bool] = lambda node: False,
    is_unfit: Callable[[Node], bool] = lambda node: False,
) -> None:
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

    It runs after epilogues are folded. Nodes of ``on_host``, and those of which ``is_apart`` is true, stay as they are;
    so does what makes a scaled image of which ``is_unfit`` is true: halves don't hold it, and a kernel that multiplies
    halves would round it.
    """
    for node in graph.block.nodes:
        found = None if node in on_host or any(map(is_apart, parts_of(node))) else _scaled_input(node)
        if found is None or is_unfit(found.nodes[-1]):
            continue
        if any(part in on_host or is_apart(part) or len(part.output.uses) != 1 for part in found.nodes):
            continue
        enclose([*found.nodes, *(dissolve(node) if node.op == PRODUCT else [node])], PRODUCT)


def _scaled_input(node: Node) -> ScaledInput | None:
    """What a convolution reads that could scale it itself; None if it is another node, or reads something else."""
    product = parts_of(node)[0]
    lowering = lowering_of(product.qualified_op)
    if lowering is None or lowering.function is not convolution or why_unsupported(product) is not None:
        return None
    return ScaledInput.of(convolution_of(product).input) if takes_scaling(product) else None
