"""Layer scales become weights, and sums move before permutations, so that both are part of the layer before them.

``x + gamma * layer(h)`` ends the blocks of ConvNeXt (Z. Liu et al., 2022), CaiT (H. Touvron et al., "Going deeper with
image transformers", 2021) and their kin; where the layer is a linear one of an image, a permutation stands between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import made_only_for, make_instead
from mobopt.runtimes.vulkan.compile.layers import insert_layer, layer_of
from mobopt.runtimes.vulkan.kernels.convolution_parameters import CONVOLUTIONS, convolution_of
from mobopt.runtimes.vulkan.kernels.epilogue import added_operands, epilogue_of
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.lowerings.views import inverted

_VECTOR = 4


def fold_layer_scales(graph: Graph, constants: ConstantStore, half: torch.dtype | None = None) -> None:
    """Let layers make what scales and sums after them do.

    Given:
        %z : Float(1, 5, 7, 8) = aten::linear(%h, %w, %b)
        %p : Float(1, 8, 5, 7) = aten::permute(%z, [0, 3, 1, 2])
        %m : Float(1, 8, 5, 7) = aten::mul.Tensor(%gamma, %p)
        %y : Float(1, 8, 5, 7) = aten::add.Tensor(%m, %x, 1)
    Result:
        %z : Float(1, 5, 7, 8) = aten::linear(%h, %scaled_w, %scaled_b)
        %t : Float(1, 5, 7, 8) = aten::permute(%x, [0, 2, 3, 1])
        %s : Float(1, 5, 7, 8) = aten::add.Tensor(%z, %t, 1)
        %y : Float(1, 8, 5, 7) = aten::permute(%s, [0, 3, 1, 2])

    Scales are vectors of constants along the layer's channels. Weights are multiplied in float64 and rounded once. It
    runs before epilogues are folded, which takes the sum in. What something else reads, or is returned, stays, and so
    does a scale that would make weights too small for halves of the type ``half``, if weights become some: those of
    networks that were not trained begin at 1e-6.
    """
    for node in list(graph.block.nodes):
        if node.qualified_op == "aten::mul.Tensor" and not _is_returned(graph, node):
            _fold_scale(graph, node, constants, half)
    for node in list(graph.block.nodes):
        if not _is_returned(graph, node):
            _add_before_permuting(node)


def _is_returned(graph: Graph, node: Node) -> bool:
    return any(user is graph.block.returns for output in node.outputs for user, _ in output.uses)


def _fold_scale(graph: Graph, node: Node, constants: ConstantStore, half: torch.dtype | None) -> None:
    """Take a product with a vector into the layer that makes the other operand."""
    for value, vector in (node.args[:2], node.args[1::-1]):
        if not isinstance(value, Value) or not isinstance(vector, Value) or vector.elements is None:
            continue
        if not value.dtype == vector.dtype == torch.float32 or value.sizes != node.output.sizes:
            continue
        maker = made_only_for(value, node)
        permuted = maker is not None and maker.op == "aten::permute"
        layer = made_only_for(maker.args[0], maker) if maker is not None and permuted else maker
        if layer is None or not _is_along(vector.sizes, _channels_at(layer, value.rank, maker if permuted else None)):
            continue
        whole = _scaled(graph, layer, vector.elements.reshape(-1), constants, half)
        if whole is not None:
            whole.origin |= layer.origin | node.origin
            layer.output.replace_all_uses_with(whole.output)
            layer.destroy()
            node.output.replace_all_uses_with(value if permuted else whole.output)
            node.destroy()
        return


def _channels_at(layer: Node, rank: int, permutation: Node | None) -> tuple[int, int, int] | None:
    """Rank, which dimension has a layer's channels after a permutation, and how many; None if it is no layer."""
    is_linear = layer_of(layer) is not None
    if not is_linear and not (layer.qualified_op in CONVOLUTIONS and layer.output.rank == 4):
        return None
    place = layer.output.rank - 1 if is_linear else 1
    count = layer.output.sizes[place]
    if permutation is not None:
        place = [dim % rank for dim in permutation.args[1]].index(place)
    return rank, place, count


def _is_along(sizes: Sequence[int], channels: tuple[int, int, int] | None) -> bool:
    """Whether a vector that broadcasts has one element for each channel."""
    if channels is None or len(sizes) > channels[0]:
        return False
    rank, place, count = channels
    padded = (1,) * (rank - len(sizes)) + tuple(sizes)
    return all(size == (count if dim == place else 1) for dim, size in enumerate(padded))


def _scaled(
    graph: Graph, node: Node, factors: torch.Tensor, constants: ConstantStore, half: torch.dtype | None
) -> Node | None:
    """A layer, before another, whose channels are multiplied; None if there is none."""

    def scaled(tensor: torch.Tensor) -> torch.Tensor:
        along = factors.double().reshape(-1, *[1] * (tensor.dim() - 1))
        return constants.derived([tensor, factors], ("scaled",), lambda: (tensor.double() * along).float())

    def vanishes(weight: torch.Tensor) -> bool:
        return half is not None and constants.fits_half(weight, half) and not constants.fits_half(scaled(weight), half)

    layer = layer_of(node)
    if layer is not None:
        if not isinstance(layer.weight, torch.Tensor) or node.output.dtype != torch.float32 or vanishes(layer.weight):
            return None
        return insert_layer(graph, [layer], lambda tensors: scaled(tensors[0]))
    wanted = convolution_of(node)
    weight, bias = wanted.weight.elements, None if wanted.bias is None else wanted.bias.elements
    if weight is None or node.output.dtype != torch.float32 or (wanted.bias is not None and bias is None):
        return None
    if wanted.transposed or node.qualified_op.endswith(".padding") or not epilogue_of(node).is_identity:
        return None
    if vanishes(weight):
        return None
    tensors = [None if tensor is None else Value.of_elements(scaled(tensor)) for tensor in (weight, bias)]
    walk = [list(numbers) for numbers in (wanted.stride, wanted.padding, wanted.dilation)]
    whole = Node.call("aten::conv2d", (wanted.input, *tensors, *walk, wanted.groups), [_like(node.output)], node.origin)
    whole.insert_before(node)
    return whole


def _like(value: Value) -> Value:
    return Value("", value.type)


def _add_before_permuting(node: Node) -> None:
    """Add to a linear layer's result as it lies, and permute the sum."""
    for value in added_operands(node):
        permutation = made_only_for(value, node)
        if permutation is None or permutation.op != "aten::permute" or value.dtype != torch.float32:
            continue
        source: Value = permutation.args[0]
        layer = made_only_for(source, permutation)
        if layer is None or layer_of(layer) is None or source.sizes[-1] % _VECTOR:
            continue
        dims = [dim % value.rank for dim in permutation.args[1]]
        other = next(operand for operand in node.args[:2] if operand is not value)
        turned = _turned(other, inverted(dims), source, node)
        summed = _inserted("aten::add.Tensor", (source, turned, 1), source, node)
        back = Node.call("aten::permute", (summed, dims), [_like(node.output)], permutation.origin)
        make_instead(back, node)
        node.destroy()
        permutation.destroy()
        return


def _turned(value: Value, dims: list[int], like: Value, place: Node) -> Value:
    """A value permuted; what it is a permutation of, if that is undone."""
    maker = value.producer
    if maker is not None and maker.op == "aten::permute":
        own = [dim % value.rank for dim in maker.args[1]]
        if [own[dim] for dim in dims] == list(range(value.rank)):
            source: Value = maker.args[0]
            return source
    return _inserted("aten::permute", (value, dims), like, place)


def _inserted(operator: str, args: tuple[Any, ...], like: Value, place: Node) -> Value:
    """What an operator makes, of the type of another value; it comes before a node, and from it."""
    made = Node.call(operator, args, [_like(like)], place.origin)
    made.insert_before(place)
    return made.output
