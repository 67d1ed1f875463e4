"""Matrix products and attention in the forms that PyTorch's Vulkan kernels compute right.

Before 2.6 a second matrix must be a weight in the file: one that is computed is read as if it were packed
(``aten/src/ATen/native/vulkan/ops/Mm.cpp``).
"""

from __future__ import annotations

import math

import torch

from mobopt.ir import Value
from mobopt.passes.legalizations.building import plus, reshaped, size_of, weight_of
from mobopt.passes.legalizations.site import Refused, Site, legalizes


@legalizes("linear_of_row", level="safe")
def linear_of_row(site: Site) -> Value:
    """A matrix of one row in place of a vector."""
    outputs, inputs = weight_of(site).shape
    row = reshaped(site, site.arg("input"), [1, inputs])
    return reshaped(site, _linear(site, row), [outputs])


@legalizes("linear_of_rows", level="safe")
def linear_of_rows(site: Site) -> Value:
    """All dimensions but the last made one, and put back afterwards."""
    x, rank = site.arg("input"), site.rank("input")
    outputs, inputs = weight_of(site).shape
    product = _linear(site, reshaped(site, x, [-1, inputs]))
    return reshaped(site, product, [-1, *(size_of(site, x, dim) for dim in range(1, rank - 1)), outputs])


@legalizes("add_bias_after_linear", level="safe")
def add_bias_after_linear(site: Site) -> Value:
    """A linear layer without bias, then the bias added."""
    return plus(site, site.op("aten::linear", site.arg("input"), site.arg("weight"), None), site.arg("bias"))


@legalizes("linear_as_convolution", level="safe")
def linear_as_convolution(site: Site) -> Value:
    """A 1x1 convolution, with the features as channels: its images stay small where the rows of a matrix are many."""
    x, rank = site.arg("input"), site.rank("input")
    outputs, inputs = weight_of(site).shape
    plane = reshaped(site, x, [1, -1, size_of(site, x, rank - 2), inputs])
    channels = site.op("aten::permute", plane, [0, 3, 1, 2])
    weight = weight_of(site)[:, :, None, None].contiguous()
    convolved = site.op("aten::conv2d", channels, weight, site.arg("bias"), [1, 1], [0, 0], [1, 1], 1)
    back = site.op("aten::permute", convolved, [0, 2, 3, 1])
    return reshaped(site, back, [-1, *(size_of(site, x, dim) for dim in range(1, rank - 1)), outputs])


@legalizes("linear_as_product", level="safe")
def linear_as_product(site: Site) -> Value:
    """A matrix product with the transposed weight, then the bias added."""
    product = site.op("aten::matmul", site.arg("input"), site.op("aten::t", site.arg("weight")))
    bias = site.arg("bias")
    has_bias = not (bias.is_constant and bias.constant is None)
    return plus(site, product, bias) if has_bias else product


def _linear(site: Site, x: Value) -> Value:
    result: Value = site.op("aten::linear", x, site.arg("weight"), site.arg("bias"))
    return result


@legalizes("addmm_as_linear", level="safe")
def addmm_as_linear(site: Site) -> Value:
    """A linear layer whose weight has the factor in it, then the scaled first operand added."""
    weight = weight_of(site, "mat2").t() * float(site.const("alpha"))
    product = site.op("aten::linear", site.arg("mat1"), weight.contiguous(), None)
    return plus(site, product, _scaled(site, site.arg("self"), float(site.const("beta"))))


@legalizes("baddbmm_in_steps", level="safe")
def baddbmm_in_steps(site: Site) -> Value:
    """A product of batches of matrices, then the scaled first operand added."""
    product = site.op("aten::bmm", site.arg("batch1"), site.arg("batch2"))
    scaled = _scaled(site, product, float(site.const("alpha")))
    return plus(site, scaled, _scaled(site, site.arg("self"), float(site.const("beta"))))


def _scaled(site: Site, x: Value, factor: float) -> Value:
    if x.is_constant and factor != 1.0:
        return site.graph.constant(x.constant * factor)
    return x if factor == 1.0 else site.op("aten::mul.Scalar", x, factor)


@legalizes("matmul_by_rank", level="safe")
def matmul_by_rank(site: Site) -> Value:
    """``mm`` of matrices, or ``bmm`` of batches of them, with dimensions put together and back."""
    left, right = site.arg("self"), site.arg("other")
    ranks = site.rank(left), site.rank(right)
    if 1 in ranks:
        return _with_vectors(site, left, right, ranks)
    if ranks[1] == 2:
        columns = site.sizes(right)[1]
        rows = left if ranks[0] == 2 else reshaped(site, left, [-1, site.sizes(left)[-1]])
        product: Value = site.op("aten::mm", rows, right)
        if ranks[0] == 2:
            return product
        return reshaped(site, product, [*(size_of(site, left, dim) for dim in range(ranks[0] - 1)), columns])
    if site.sizes(left)[:-2] != site.sizes(right)[:-2]:
        raise Refused("its operands have different batches")
    batches = [
        item if rank == 3 else _batch_of_matrices(site, item) for item, rank in zip((left, right), ranks, strict=True)
    ]
    product = site.op("aten::bmm", *batches)
    if ranks[0] == 3:
        return product
    leading = [size_of(site, left, dim) for dim in range(ranks[0] - 1)]
    return reshaped(site, product, [*leading, size_of(site, right, ranks[1] - 1)])


def _batch_of_matrices(site: Site, x: Value) -> Value:
    rank = site.rank(x)
    return reshaped(site, x, [-1, size_of(site, x, rank - 2), size_of(site, x, rank - 1)])


def _with_vectors(site: Site, left: Value, right: Value, ranks: tuple[int, int]) -> Value:
    if max(ranks) > 2:
        raise Refused("it multiplies a vector with a batch of matrices")
    row = reshaped(site, left, [1, -1]) if ranks[0] == 1 else left
    column = reshaped(site, right, [-1, 1]) if ranks[1] == 1 else right
    product = site.op("aten::mm", row, column)
    return reshaped(site, product, [-1] if max(ranks) == 2 else [])


@legalizes("attention_in_steps", level="safe")
def attention_in_steps(site: Site) -> Value:
    """Scores, mask, softmax and the weighted sum, one by one."""
    mask = site.arg("attn_mask")
    if not mask.is_constant:
        raise Refused("its mask is computed, and may hide every key from a query")
    if mask.constant is None:
        return _attention(site, None)
    known: torch.Tensor = mask.constant
    if known.dtype == torch.bool:
        known = torch.zeros(known.shape).masked_fill(~known, -math.inf)
    if (known == -math.inf).all(-1).any():
        raise Refused("its mask hides every key from a query")
    return _attention(site, known.clamp(min=_LOWEST))


@legalizes("causal_attention_in_steps", level="full")
def causal_attention_in_steps(site: Site) -> Value:
    """Scores, a constant mask, softmax and the weighted sum, one by one."""
    rows, columns = int(site.sizes("query")[-2]), int(site.sizes("key")[-2])
    future = torch.ones(rows, columns, dtype=torch.bool).triu(1)
    return _attention(site, torch.zeros(rows, columns).masked_fill(future, _LOWEST))


_LOWEST = -1e4
"""Far below every score, and still a number in half precision."""


def _attention(site: Site, mask: Value | torch.Tensor | None) -> Value:
    query, key, value = (site.arg(name) for name in ("query", "key", "value"))
    if site.const("dropout_p") != 0.0:
        raise Refused("it drops weights at random")
    if site.rank(query) not in (3, 4) or site.sizes(query)[:-2] != site.sizes(key)[:-2]:
        raise Refused("its query and key have different batches, or no batch")
    known = site.const("scale")
    scale = 1.0 / math.sqrt(site.sizes(query)[-1]) if known is None else known
    scaled = site.op("aten::mul.Scalar", query, scale)
    scores = site.op("aten::matmul", scaled, site.op("aten::transpose.int", key, -2, -1))
    masked = scores if mask is None else plus(site, scores, mask)
    weights = site.op("aten::softmax.int", masked, -1)
    result: Value = site.op("aten::matmul", weights, value)
    return result
