"""Folds pointwise nodes into the convolution or matrix product that feeds them.

``relu(conv(x))`` becomes one node, and so does ``relu(conv(x) + y)``: the memory of the tensors between is never
touched. Runs before other fusion, as what is folded here costs nothing.
"""

from __future__ import annotations

from collections.abc import Container

import torch

from mobopt.ir import Graph, InsertionPoint, Node, Value
from mobopt.ir.rewriting import dissolve, enclose
from mobopt.runtimes.vulkan.kernels.activation import activation_of
from mobopt.runtimes.vulkan.kernels.epilogue import (
    EPILOGUE,
    PRODUCT,
    added_operands,
    are_channels_of,
    folded_epilogue,
    parts_of,
)
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.lowerings.convolution import convolution, takes_channels
from mobopt.runtimes.vulkan.lowerings.matmul import (
    added_product,
    linear,
    linear_context,
    product,
    takes_residual,
    takes_rows,
)
from mobopt.runtimes.vulkan.lowerings.registry import (
    LoweringResult,
    lower_part,
    lowering_of,
    lowers,
    why_unsupported,
)

_TAKE_EPILOGUES = (convolution, linear, linear_context, product, added_product)


def fold_epilogues(graph: Graph, on_host: Container[Node] = ()) -> None:
    """Fold every activation and every addition of a tensor that its producer's epilogue has room for.

    Nodes of ``on_host`` stay as they are. A node is folded if nothing else uses what it is applied to. Where a residual
    is added, the whole takes the place of the addition, as the residual may be made after the product.
    """
    for node in graph.block.nodes:
        if node not in on_host:
            _fold(node, on_host)


def _fold(node: Node, on_host: Container[Node]) -> None:
    """Join a node with the producer that takes it into its epilogue, if there is one."""
    for source in _sources(node):
        maker = source.producer
        if maker is None or len(source.uses) != 1 or source.dtype != node.output.dtype:
            continue
        if are_channels_of(source, node.output):
            continue
        parts = parts_of(maker)
        if maker in on_host or not _takes_epilogue(parts[0]) or not _has_room(parts, node, source):
            continue
        inner = dissolve(maker) if maker.op == PRODUCT else [maker]
        place = node if activation_of(node) is None else inner[0]
        enclose([*inner, node], PRODUCT, InsertionPoint.before(place))
        return


def _sources(node: Node) -> list[Value]:
    """Tensors that a product may make for a node to be folded into it; none if the node is of another kind."""
    return [node.args[0]] if activation_of(node) is not None else added_operands(node, rows=True)


def _takes_epilogue(node: Node) -> bool:
    lowering = lowering_of(node.qualified_op)
    return lowering is not None and lowering.function in _TAKE_EPILOGUES and why_unsupported(node) is None


def _has_room(parts: list[Node], node: Node, source: Value) -> bool:
    """Whether the epilogue of a product can do one node more, which reads ``source`` as what the product made."""
    # Halves are rounded between the product and what follows, so nothing may be part of the product itself.
    rounds = parts[0].output.dtype != torch.float32
    epilogue = folded_epilogue(parts)
    whole = None if epilogue is None else epilogue.followed_by(node, source)
    if whole is None:
        return False
    is_simple = not rounds and whole.residual is None and whole.after.is_identity
    if whole.residual is not None and are_channels_of(whole.residual, source):
        return not rounds and takes_channels(parts[0])
    if whole.residual is not None and whole.residual.sizes != source.sizes:
        return not rounds and takes_rows(parts[0]) and takes_residual(parts[0])
    return is_simple or takes_residual(parts[0])


@lowers(PRODUCT, exact=True)
def product_with_epilogue(plan: Plan, node: Node) -> LoweringResult:
    """A convolution or matrix product that finishes what it computes before it stores it."""
    parts = parts_of(node)
    return lower_part(plan, parts[0], node, EPILOGUE, folded_epilogue(parts))
