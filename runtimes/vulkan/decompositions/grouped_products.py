"""Products of rows with one matrix of several each, as mixtures of experts have them."""

from __future__ import annotations

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes


@decomposes("aten::_grouped_mm")
def grouped_product(build: NodeBuilder, node: Node) -> Value | None:
    """Rows (T, K), sorted by group, with the matrices (E, K, N) of their groups; ``offs`` has where each group ends.

    torch leaves rows behind the last end undefined: here they belong to the last group.
    """
    rows, matrices, ends = node["self"], node["mat2"], node["offs"]
    if (rows.rank, matrices.rank) != (2, 3) or ends is None or node["bias"] is not None:
        return None
    if rows.dtype != torch.float32 or node["out_dtype"] not in (None, torch.float32) or rows.numel == 0:
        return None
    begun = build("aten::ge.Tensor", _numbers(rows, ends), build("aten::narrow", ends, 0, 0, matrices.sizes[0] - 1))
    return _products(build, rows, matrices, build("aten::sum.dim_IntList", begun, [1]))


@decomposes("transformers::grouped_mm_fallback")
def grouped_product_of_transformers(build: NodeBuilder, node: Node) -> Value | None:
    """The same, as transformers exports it: rows of no group are zeros, and later groups overwrite earlier ones."""
    rows, matrices, ends = node["input"], node["weight"], node["offs"]
    if rows.dtype != torch.float32 or rows.numel == 0 or matrices.sizes[0] == 0:
        return None
    numbers, groups = _numbers(rows, ends), matrices.sizes[0]
    begins = build("aten::constant_pad_nd", build("aten::narrow", ends, 0, 0, groups - 1), [1, 0])
    begun, unended = build("aten::ge.Tensor", numbers, begins), build("aten::lt.Tensor", numbers, ends)
    ordinals = Value.of_elements(torch.arange(1, groups + 1, dtype=ends.dtype))
    owner = build("aten::amax", build("aten::mul.Tensor", build("aten::logical_and", begun, unended), ordinals), [1])
    group = build("aten::to.dtype", build("aten::clamp_min", build("aten::sub.Scalar", owner, 1), 0), torch.int64)
    nobodys = build("aten::unsqueeze", build("aten::eq.Scalar", owner, 0), 1)
    return build("aten::masked_fill.Scalar", _products(build, rows, matrices, group), nobodys, 0)


def _numbers(rows: Value, ends: Value) -> Value:
    """The number of each row, (T, 1), in the dtype of the ends."""
    return Value.of_elements(torch.arange(rows.sizes[0], dtype=ends.dtype).unsqueeze(1))


def _products(build: NodeBuilder, rows: Value, matrices: Value, group: Value) -> Value:
    """Each row with the matrix of its group (T,).

    Few rows gather their matrices; many are multiplied with all matrices, of which each row keeps that of its group.
    """
    count, (groups, _, columns) = rows.sizes[0], matrices.sizes
    if count <= groups:
        chosen = build("aten::index_select", matrices, 0, group)
        product = build("aten::bmm", build("aten::unsqueeze", rows, 1), chosen)
        return build("aten::reshape", product, [count, columns])
    every = build("aten::matmul", build("aten::unsqueeze", rows, 0), matrices)
    place = build("aten::expand", build("aten::reshape", group, [1, count, 1]), [1, count, columns])
    return build("aten::reshape", build("aten::gather", every, 0, place), [count, columns])
