"""Operators that ONNX and ExecuTorch lack, as functions of operators that they have.

torch.onnx and ExecuTorch know most of ATen. What they lack of it and models have are layers that torch fuses on the
CPU, and a few operators that older releases had no other form of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.nn import functional

_aten = torch.ops.aten
_FUNCTIONS: dict[Any, Callable[..., Any]] = {}
_OF_KEYS = 1
"""The type of a mask (batch, keys); others are of (queries, keys), or of all scores."""


def with_known_operators(program: ExportedProgram) -> ExportedProgram:
    """The program with functions in place of the operators that are lacking; itself if it has none."""
    graphs = [module for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    found = {node.target for module in graphs for node in module.graph.nodes} & _FUNCTIONS.keys()
    return program.run_decompositions({operator: _FUNCTIONS[operator] for operator in found}) if found else program


def _computes(operator: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _FUNCTIONS[operator] = function
        return function

    return register


@_computes(_aten._native_multi_head_attention.default)
def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The fast path of ``nn.MultiheadAttention``, on (batch, length, elements)."""
    weights, biases = weight.chunk(3), bias.chunk(3)
    sources = zip((query, key, value), weights, biases, strict=True)
    q, k, v = (_by_heads(functional.linear(x, *layer), heads) for x, *layer in sources)
    scores = q @ k.transpose(-2, -1) / math.sqrt(embed_dim // heads)
    if mask is not None:
        hidden = mask.to(torch.bool)
        hidden = hidden[:, None, None] if mask_type == _OF_KEYS else hidden
        scores = scores.masked_fill(hidden, -math.inf)
    attention = scores.softmax(-1)
    joined = (attention @ v).transpose(1, 2).flatten(2)
    result = functional.linear(joined, out_weight, out_bias)
    if not need_weights:
        return result, result.new_empty(0)
    return result, attention.mean(1) if average else attention


def _by_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, length, elements) as (batch, heads, length, elements)."""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


@_computes(_aten._transformer_encoder_layer_fwd.default)
def _encoder_layer(
    source: Tensor,
    embed_dim: int,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *rest: Any,
) -> Tensor:
    """The fast path of ``nn.TransformerEncoderLayer``."""
    norms, (up_weight, up_bias, down_weight, down_bias) = rest[:4], rest[4:8]
    mask, mask_type = (*rest[8:], None, None)[:2]

    def normalized(x: Tensor, first: int) -> Tensor:
        return functional.layer_norm(x, [embed_dim], norms[first], norms[first + 1], eps)

    x = normalized(source, 0) if norm_first else source
    layer = (embed_dim, heads, weight, bias, out_weight, out_bias)
    x = source + _multi_head_attention(x, x, x, *layer, mask, False, True, mask_type)[0]
    x = x if norm_first else normalized(x, 0)
    inner = functional.linear(normalized(x, 2) if norm_first else x, up_weight, up_bias)
    inner = functional.gelu(inner) if use_gelu else inner.relu()
    x = x + functional.linear(inner, down_weight, down_bias)
    return x if norm_first else normalized(x, 2)


@_computes(_aten.rrelu.default)
def _leaky_relu_by_chance(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Tensor:
    """Of a model that is not being trained."""
    return functional.leaky_relu(x, (lower + upper) / 2)


@_computes(_aten.adaptive_max_pool2d.default)
def _adaptive_max_pool(x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Maxima of windows, and their places in the image, window by window."""
    height, width = x.shape[-2:]
    bounds = [  # torch.onnx divides integers towards zero, so nothing negative is divided
        [(place * size // count, ((place + 1) * size + count - 1) // count) for place in range(count)]
        for size, count in zip((height, width), sizes, strict=True)
    ]
    windows = [(top, bottom, left, right) for top, bottom in bounds[0] for left, right in bounds[1]]
    maxima, indices = [], []
    for top, bottom, left, right in windows:
        largest, index = x[..., top:bottom, left:right].flatten(-2).max(-1)
        row = torch.div(index, right - left, rounding_mode="floor")
        maxima.append(largest)
        indices.append((row + top) * width + index - row * (right - left) + left)
    shape = (*x.shape[:-2], *sizes)
    return torch.stack(maxima, -1).view(shape), torch.stack(indices, -1).view(shape)
