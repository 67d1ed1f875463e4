"""Joins linear layers of one input, so that one product computes them: queries, keys and values, gates and what passes
them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from mobopt.ir import Graph, InsertionPoint, Node, Value
from mobopt.ir.rewriting import destroy_unread
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.compile.layers import Layer, insert_layer, layer_of
from mobopt.runtimes.vulkan.kernels.activation import activation_of
from mobopt.runtimes.vulkan.kernels.epilogue import added_operands
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore

_ALIGNMENT = 8
"""Elements at a multiple of which the part of each layer begins, so that kernels can read it as it lies."""


def join_projections(graph: Graph, constants: ConstantStore) -> None:
    """Make one linear layer of those of equal input, and their results slices of its own.

    Given:
        %a : Float(1, 5, 16) = aten::linear(%x, %w0, %b0)
        %b : Float(1, 5, 16) = aten::linear(%x, %w1, %b1)
    Result:
        %y : Float(1, 5, 32) = aten::linear(%x, %w, %b2)
        %a : Float(1, 5, 16) = aten::slice.Tensor(%y, 2, 0, 16, 1)
        %b : Float(1, 5, 16) = aten::slice.Tensor(%y, 2, 16, 32, 1)

    Layers stay as they are whose results need memory of their own, or go through what their own dispatch would do.
    """
    groups: dict[Hashable, list[Layer]] = {}
    for node in graph.block.nodes:
        layer = layer_of(node)
        if layer is not None and not _would_lose(graph, node.output):
            groups.setdefault(layer.kind, []).append(layer)
    for layers in groups.values():
        if len(layers) > 1:
            _join(graph, layers, constants)


def _would_lose(graph: Graph, value: Value) -> bool:
    """Whether a layer alone does more than its product, or makes what is returned."""
    while len(value.uses) == 1:
        reader = value.uses[0][0]
        if reader is graph.block.returns or len(reader.outputs) != 1:
            break
        if activation_of(reader) is not None:
            return any(user.qualified_op != "aten::mul.Tensor" for user, _ in reader.output.uses)
        if not has_trait(reader.qualified_op, Trait.VIEW):
            return bool(added_operands(reader))
        value = reader.output
    return any(user is graph.block.returns for user, _ in value.uses)


def _join(graph: Graph, layers: Sequence[Layer], constants: ConstantStore) -> None:
    product = insert_layer(graph, layers, lambda parts: _joined(parts, constants))
    if product is None:
        return
    start, point = 0, InsertionPoint.after(product)
    for layer in layers:
        old, end = layer.node.output, start + layer.columns
        args = (product.output, product.output.rank - 1, start, end, 1)
        part = point.insert(Node.call("aten::slice.Tensor", args, [Value("", old.type)], layer.node.origin))
        part.output.name, old.name = old.name, ""
        old.replace_all_uses_with(part.output)
        start = _aligned(end)
    for layer in layers:
        destroy_unread(layer.node)


def _joined(parts: Sequence[torch.Tensor], constants: ConstantStore) -> torch.Tensor:
    """Rows of all parts, each with zeros up to where the next one begins; the same tensor in every plan."""

    def join() -> torch.Tensor:
        joined = torch.zeros(sum(_aligned(part.shape[0]) for part in parts), *parts[0].shape[1:], dtype=parts[0].dtype)
        start = 0
        for part in parts:
            joined[start : start + part.shape[0]] = part
            start += _aligned(part.shape[0])
        return joined

    return constants.derived(parts, ("joined rows",), join)


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT
