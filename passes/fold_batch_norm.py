"""A batch normalisation after a convolution becomes part of its weight and bias.

With s = gamma / sqrt(variance + eps), batch_norm(conv(x, W, b)) is conv(x, s W, s (b - mean) + beta), with one s for
each output channel. A missing b or beta is 0, a missing gamma is 1: see :func:`mobopt.ops.folding.fold_batch_norm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from mobopt.ir import Graph, Node, Program, Value, describe
from mobopt.ops.folding import Folded, fold_batch_norm
from mobopt.ops.records import Like, record_of
from mobopt.passes.manager import After, Pass
from mobopt.passes.note_kinds import FUSED_WITH, NOT_FUSED_WITH, STAYS
from mobopt.passes.notes import NoteBook
from mobopt.passes.ranks import known_rank
from mobopt.passes.rewriting import argument, bypass_node, constants, is_constant_tensor, only_user, tensor_key

IN_FLOAT32 = "its weight is in half precision; mobopt's runtime folds the normalisation in float32"


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """Fold batch normalisation into the convolution, transposed convolution or linear layer before it.

    Given:
        %y = aten::conv2d(%x, %w, %none, ...)
        %z = aten::batch_norm(%y, %gamma, %beta, %mean, %variance, False, ...)
    Result:
        %y = aten::conv2d(%x, %w.1, %bias.1, ...)

    A linear layer is folded only if its input is known to be (batch, features): the channels of a tensor of three
    dimensions are not the features.
    """

    name = "fold_batch_norm"
    after = (
        After("canonicalize", "it knows only the forms that this makes"),
        After("remove_dropout", "dropout stands between a layer and its normalisation"),
    )
    keeps_halves: bool = False
    """Whether layers in half precision stay as they are, as folded weights and biases would be rounded once more."""

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Fold in every method; methods that share a layer share the folded one too."""
        folder = _Folder(notes, self.keeps_halves)
        changed = [folder.fold_graph(graph) for graph in program.methods.values()]
        return any(changed)


class _Folder:
    """Folds, and remembers what was folded."""

    def __init__(self, notes: NoteBook, keeps_halves: bool) -> None:
        self.notes, self.keeps_halves = notes, keeps_halves
        self.known: dict[Any, tuple[list[Any], Folded]] = {}
        """Folded weight and bias by what they were made from, which is kept alive with them."""

    def fold_graph(self, graph: Graph) -> bool:
        """Fold in one graph."""
        changed = False
        for node in graph.walk():
            if node.op == "aten::batch_norm":
                changed |= self.fold(graph, node)
        return changed

    def fold(self, graph: Graph, norm: Node) -> bool:
        """Fold one normalisation if it may be."""
        layer = norm.inputs[0].producer
        if layer is None or not _is_layer(layer):
            self.notes.add(STAYS, norm, reason="no convolution or linear layer is right before it")
            return False
        reason = _refusal(layer, norm)
        if not reason and self.keeps_halves and layer.inputs[1].constant.dtype in (torch.float16, torch.bfloat16):
            reason = IN_FLOAT32
        if reason:
            self.notes.add(NOT_FUSED_WITH, layer, other=norm, reason=reason)
            return False
        weight, bias = self.folded(layer, norm)
        folded = graph.constant(weight, name=layer.inputs[1].name)
        folded.attribute = layer.inputs[1].attribute
        layer.replace_input(1, folded)
        layer.replace_input(2, graph.constant(bias, name=f"{norm.output.name}.bias"))
        self.notes.add(FUSED_WITH, layer, other=norm)
        bypass_node(norm, layer.output)
        return True

    def folded(self, layer: Node, norm: Node) -> Folded:
        """Weight and bias of the fused layer."""
        key = _made_from(layer, norm)
        if key not in self.known:
            sources = [value.constant for value in (*layer.inputs[1:3], *norm.inputs[1:5])]
            eps, transposed = argument(norm, "eps").constant, _is_transposed(layer)
            self.known[key] = sources, fold_batch_norm(*sources, eps=eps, transposed=transposed, groups=_groups(layer))
        return self.known[key][1]


def _groups(layer: Node) -> int:
    return 1 if layer.op == "aten::linear" else int(argument(layer, "groups").constant)


def _refusal(layer: Node, norm: Node) -> str:
    """Why the two can't be fused; empty if they can."""
    reason = _refusal_of_pair(layer, norm)
    if reason:
        return reason
    others = (user for user, _ in layer.inputs[1].uses if user is not layer and not _is_folded_alike(user, layer, norm))
    other = next(others, None)
    return "" if other is None else f"its weight is shared with {describe(other)}"


def _is_folded_alike(other: Node, layer: Node, norm: Node) -> bool:
    """Whether another layer with the same weight gets the same folded one, as where a module is called twice."""
    if other.op != layer.op or other.inputs[1] is not layer.inputs[1]:
        return False
    other_norm = only_user(other.output)
    if other_norm is None or other_norm.op != "aten::batch_norm" or _refusal_of_pair(other, other_norm):
        return False
    return _made_from(other, other_norm) == _made_from(layer, norm)


def _made_from(layer: Node, norm: Node) -> tuple[Any, ...]:
    """What decides about the folded weight and bias."""
    sources = (value.constant for value in (*layer.inputs[1:3], *norm.inputs[1:5]))
    return layer.op, _groups(layer), argument(norm, "eps").constant, *map(tensor_key, sources)


def _refusal_of_pair(layer: Node, norm: Node) -> str:
    """Why the two can't be fused, be the weight whose it may."""
    if only_user(layer.output) is not norm:
        return "its output is used elsewhere too"
    if layer.block is not norm.block:
        return "they do not run equally often"
    weight = layer.inputs[1]
    if not is_constant_tensor(weight) or not layer.inputs[2].is_constant:
        return "its weight or bias is not constant"
    if layer.op != "aten::linear" and not argument(layer, "groups").is_constant:
        return "its groups are not constant"
    return _refusal_of_norm(layer, norm)


def _refusal_of_norm(layer: Node, norm: Node) -> str:
    training = argument(norm, "training")
    if not training.is_constant or training.constant:
        return "the batch normalisation trains"
    if constants(norm.inputs[1:5]) is None or not argument(norm, "eps").is_constant:
        return "the batch normalisation's weights are not constant"
    if not is_constant_tensor(norm.inputs[3]) or not is_constant_tensor(norm.inputs[4]):
        return "the batch normalisation has no running statistics"
    if norm.inputs[3].constant.numel() != _channels(layer):
        return "the batch normalisation is over another dimension than the layer's output channels"
    if layer.op == "aten::linear":
        return _refusal_of_rank(known_rank(layer.inputs[0]))
    return ""


def _refusal_of_rank(rank: int | None) -> str:
    """Why a linear layer's input of this rank is no obstacle or is; channels are its second dimension."""
    if rank is None:
        return (
            "the linear layer's input may have three dimensions, where channels are not the features; flatten(1) "
            "before the layer makes it two"
        )
    return (
        "" if rank == 2 else "the linear layer's input does not have two dimensions, so channels are not the features"
    )


def _channels(layer: Node) -> int:
    weight: Value = layer.inputs[1]
    sizes: torch.Size = weight.constant.shape
    return sizes[1] * _groups(layer) if _is_transposed(layer) else sizes[0]


def _is_layer(node: Node) -> bool:
    """Whether a node is a convolution, transposed or not, or a linear layer."""
    return record_of(node.qualified_op).channels in (Like.WEIGHT, Like.TRANSPOSED_WEIGHT) or node.op == "aten::linear"


def _is_transposed(node: Node) -> bool:
    return record_of(node.qualified_op).channels == Like.TRANSPOSED_WEIGHT
