"""Variants of attention, as one attention or as products and a softmax; torch's fused layers of transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes

_OF_KEYS = 1
"""The type of a mask (batch, keys); others are of (queries, keys), or of all scores."""
_ATTENTION = "aten::scaled_dot_product_attention"


@decomposes("aten::_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(build: NodeBuilder, node: Node) -> Sequence[Value | None] | None:
    """Its first result; the other is for training."""
    query, key, value, dropout, is_causal, mask, scale = node.args
    return (build(_ATTENTION, query, key, value, mask, dropout, is_causal, scale=scale), None)


@decomposes("aten::_scaled_dot_product_attention_math")
def attention_and_weights(build: NodeBuilder, node: Node) -> Sequence[Value | None] | None:
    """Attention, and its weights if somebody reads them."""
    query, key, value, mask, dropout, is_causal, dropped, scale, enable_gqa = node.args
    if not node.outputs[1].is_used:
        return (
            build(_ATTENTION, query, key, value, mask, dropout, is_causal, scale=scale, enable_gqa=enable_gqa),
            None,
        )
    if dropout > 0 or dropped is not None or enable_gqa or is_causal or mask is not None:
        return None
    scale = 1 / math.sqrt(query.sizes[-1]) if scale is None else scale
    weights = build("aten::softmax.int", _scores(build, query, key, scale), -1)
    return (build("aten::matmul", weights, value), weights)


@decomposes("aten::_native_multi_head_attention")
def multi_head_attention(build: NodeBuilder, node: Node) -> Sequence[Value | None] | None:
    """The layer of ``nn.MultiheadAttention``, on (batch, length, elements)."""
    query, key, value, _, heads, weight, bias, out_weight, out_bias, mask, _, average, mask_type = node.args
    projected = _projected(build, (query, key, value), weight, bias, heads)
    weights: Value | None = None
    if len(node.outputs) == 2 and node.outputs[1].is_used:
        attended, weights = _with_weights(build, projected, mask, mask_type)
        weights = build("aten::mean.dim", weights, [1]) if average else weights
    else:
        attended = _attended(build, projected, mask, mask_type)
    made = build("aten::linear", _joined_heads(build, attended), out_weight, out_bias)
    return (made, weights)[: len(node.outputs)]


@decomposes("aten::_transformer_encoder_layer_fwd")
def encoder_layer(build: NodeBuilder, node: Node) -> Value | None:
    """The layer of ``nn.TransformerEncoderLayer``."""
    source, _, heads, weight, bias, out_weight, out_bias, use_gelu, norm_first, eps = node.args[:10]
    *norms, up_weight, up_bias, down_weight, down_bias, mask, mask_type = node.args[10:]

    def normalized(x: Value, number: int) -> Value:
        return build("aten::layer_norm", x, [x.sizes[-1]], *norms[2 * number : 2 * number + 2], eps)

    x = normalized(source, 0) if norm_first else source
    projected = _projected(build, (x, x, x), weight, bias, heads)
    joined = _joined_heads(build, _attended(build, projected, mask, mask_type))
    x = build("aten::add.Tensor", build("aten::linear", joined, out_weight, out_bias), source)
    x = x if norm_first else normalized(x, 0)
    inner = build("aten::linear", normalized(x, 1) if norm_first else x, up_weight, up_bias)
    inner = build("aten::gelu" if use_gelu else "aten::relu", inner)
    x = build("aten::add.Tensor", build("aten::linear", inner, down_weight, down_bias), x)
    return x if norm_first else normalized(x, 1)


def _projected(
    build: NodeBuilder, sources: Sequence[Value], weight: Value, bias: Value, heads: int
) -> tuple[Value, ...]:
    """Queries, keys and values (batch, heads, length, elements): of one linear layer where they have one source."""
    size = weight.sizes[0] // 3
    if sources[0] is sources[1] is sources[2]:
        parts = build.all("aten::split.Tensor", build("aten::linear", sources[0], weight, bias), size, -1)
    else:
        slices = [
            [build("aten::slice.Tensor", whole, 0, first * size, (first + 1) * size) for whole in (weight, bias)]
            for first in range(3)
        ]
        parts = tuple(build("aten::linear", x, *slice) for x, slice in zip(sources, slices, strict=True))
    return tuple(
        build(
            "aten::transpose.int",
            build("aten::reshape", part, [*part.sizes[:2], heads, size // heads]),
            1,
            2,
        )
        for part in parts
    )


def _joined_heads(build: NodeBuilder, x: Value) -> Value:
    """(batch, heads, length, elements) as (batch, length, elements)."""
    batch, heads, length, size = x.sizes
    return build("aten::reshape", build("aten::transpose.int", x, 1, 2), [batch, length, heads * size])


def _attended(build: NodeBuilder, projected: Sequence[Value], mask: Value | None, mask_type: int | None) -> Value:
    """Attention without its weights."""
    if mask is None:
        return build(_ATTENTION, *projected)
    return _with_weights(build, projected, mask, mask_type)[0]


def _with_weights(
    build: NodeBuilder, projected: Sequence[Value], mask: Value | None, mask_type: int | None
) -> tuple[Value, Value]:
    """Attention and its weights; a mask says which keys don't count, and where none does, torch gives NaN here."""
    query, key, value = projected
    scores = _scores(build, query, key, 1 / math.sqrt(query.sizes[-1]))
    if mask is not None:
        hidden = mask if mask.dtype == torch.bool else build("aten::to.dtype", mask, torch.bool)
        if mask_type == _OF_KEYS:
            hidden = build("aten::reshape", hidden, [mask.sizes[0], 1, 1, mask.sizes[1]])
        scores = build("aten::masked_fill.Scalar", scores, hidden, -math.inf)
    weights = build("aten::softmax.int", scores, -1)
    return build("aten::matmul", weights, value), weights


def _scores(build: NodeBuilder, query: Value, key: Value, scale: float) -> Value:
    turned = build("aten::transpose.int", key, -2, -1)
    return build("aten::mul.Scalar", build("aten::matmul", query, turned), scale)
