"""Attention in operators that every release's CPU build has."""

from __future__ import annotations

import math

import torch

from mobopt.ir import Value
from mobopt.passes.legalizations.building import plus, size_of
from mobopt.passes.legalizations.site import Refused, Site, legalizes

_BOOL = 11
"""``torch.bool`` as TorchScript numbers dtypes (``c10/core/ScalarType.h``)."""


@legalizes("attention_by_products", level="safe")
def attention_by_products(site: Site) -> Value:
    """The query times the keys, a softmax, and that times the values.

    Queries that see no key get zeros, as PyTorch gives them since 2.5.
    """
    if site.const("dropout_p") != 0.0:
        raise Refused("it drops weights at random")
    query, key, value = site.arg("query"), *_heads(site)
    scaled = site.op("aten::mul.Scalar", query, _scale(site, query))
    scores = site.op("aten::matmul", scaled, site.op("aten::transpose.int", key, -2, -1))
    result: Value = site.op("aten::matmul", _weights(site, scores), value)
    return result


@legalizes("softmax_without_dead_rows", level="safe")
def softmax_without_dead_rows(site: Site) -> Value:
    """A softmax whose rows that are all minus infinity become zeros."""
    return _safe_softmax(site, site.arg("self"), site.const("dim"), site.arg("dtype"))


def _heads(site: Site) -> list[Value]:
    """Key and value, with each head as often as queries share it."""
    parts = [site.arg("key"), site.arg("value")]
    if not site.const("enable_gqa"):
        return parts
    heads = size_of(site, site.arg("query"), -3)
    shares = [site.op("aten::floordiv.int", heads, size_of(site, part, -3)) for part in parts]
    return [
        site.op("aten::repeat_interleave.self_int", part, share, -3) for part, share in zip(parts, shares, strict=True)
    ]


def _scale(site: Site, query: Value) -> Value | float:
    known = site.const("scale")
    if known is not None:
        return float(known)
    sizes = site.facts(query).known_sizes
    if sizes is not None:
        return 1.0 / math.sqrt(sizes[-1])
    root: Value = site.op("aten::pow.int_float", size_of(site, query, -1), -0.5)
    return root


def _weights(site: Site, scores: Value) -> Value:
    """Softmax of the scores under the mask."""
    mask, is_causal = site.arg("attn_mask"), site.const("is_causal")
    has_mask = not (mask.is_constant and mask.constant is None)
    if is_causal and has_mask:
        raise Refused("it is causal and has a mask")
    result: Value
    if is_causal:
        sizes = [size_of(site, scores, -2), size_of(site, scores, -1)]
        future = site.op("aten::triu", site.op("aten::ones", sizes, _BOOL), 1)
        result = site.op("aten::softmax.int", _masked(site, scores, future), -1)
        return result
    if not has_mask:
        result = site.op("aten::softmax.int", scores, -1)
        return result
    dtype = site.facts(mask).known_dtype
    if dtype is None:
        raise Refused("whether its mask is of booleans is not known; give example inputs")
    if dtype == "bool":
        hidden = ~mask.constant if mask.is_constant else site.op("aten::logical_not", mask)
        scores = _masked(site, scores, hidden)
    else:
        scores = plus(site, scores, mask)
    return _safe_softmax(site, scores, -1, None)


def _masked(site: Site, scores: Value, hidden: Value | torch.Tensor) -> Value:
    result: Value = site.op("aten::masked_fill.Scalar", scores, hidden, -math.inf)
    return result


def _safe_softmax(site: Site, scores: Value, dim: int, dtype: Value | None) -> Value:
    weights = site.op("aten::softmax.int", scores, dim, dtype)
    dead = site.op("aten::eq.Scalar", site.op("aten::amax", scores, [dim], True), -math.inf)
    result: Value = site.op("aten::masked_fill.Scalar", weights, dead, 0.0)
    return result
