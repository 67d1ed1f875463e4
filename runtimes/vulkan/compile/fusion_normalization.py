"""Folds the normalisation of rows into the linear layer that reads them, which computes both in one dispatch."""

from __future__ import annotations

import math
from collections.abc import Callable, Container

from mobopt.ir import Graph, Node
from mobopt.ir.rewriting import dissolve, enclose
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.epilogue import PRODUCT, parts_of
from mobopt.runtimes.vulkan.kernels.product_normalizing import NormalizedInput, may_normalize
from mobopt.runtimes.vulkan.lowerings.matmul import takes_normalization, takes_quantized


def fold_normalizations(
    graph: Graph,
    device: DeviceInfo,
    on_host: Container[Node] = (),
    is_apart: Callable[[Node], bool] = lambda node: False,
) -> None:
    """Let each linear layer that can normalise its input itself do so, where nothing else reads what was normalised.

    Given:
        %n : Float(1, 5, 16) = aten::layer_norm(%x, [16], %gain, %shift, 1e-05, True)
        %y : Float(1, 5, 8) = aten::linear(%n, %w, %b)
    Result:
        %y : Float(1, 5, 8) = mobopt::product()
          block0():
            %n : Float(1, 5, 16) = aten::layer_norm(%x, [16], %gain, %shift, 1e-05, True)
            %z : Float(1, 5, 8) = aten::linear(%n, %w, %b)
            -> (%z)

    It runs after epilogues are folded. Nodes of ``on_host``, and those of which ``is_apart`` is true, stay as they are.
    """
    for node in graph.block.nodes:
        product = parts_of(node)[0]
        if node in on_host or is_apart(product) or not takes_normalization(product):
            continue
        found = NormalizedInput.of(product.args[0])
        if found is None or found.node in on_host or is_apart(found.node) or len(found.node.output.uses) != 1:
            continue
        rows, inner = math.prod(found.source.sizes[:-1]), found.source.sizes[-1]
        if may_normalize(device, rows, inner, of_few_bits=takes_quantized(product)):
            enclose([found.node, *(dissolve(node) if node.op == PRODUCT else [node])], PRODUCT)
