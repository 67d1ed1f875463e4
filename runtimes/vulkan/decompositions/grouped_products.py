"""Products of rows with one matrix of several each, as mixtures of experts have them."""

from __future__ import annotations

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes


@decomposes("aten::_grouped_mm")
def grouped_product(build: NodeBuilder, node: Node) -> Value | None:
    """Rows (T, K), sorted by group, with the matrices (E, K, N) of their groups; ``offs`` has where each group ends.

    Few rows gather their matrices; many are multiplied with all matrices, of which each row keeps that of its group.
    torch leaves rows behind the last end undefined: here they belong to the last group.
    """
    rows, matrices, ends = node["self"], node["mat2"], node["offs"]
    if (rows.rank, matrices.rank) != (2, 3) or ends is None or node["bias"] is not None:
        return None
    if rows.dtype != torch.float32 or node["out_dtype"] not in (None, torch.float32) or rows.numel == 0:
        return None
    count, groups, columns = rows.sizes[0], matrices.sizes[0], matrices.sizes[2]
    numbers = Value.of_elements(torch.arange(count, dtype=ends.dtype).unsqueeze(1))
    begun = build("aten::ge.Tensor", numbers, build("aten::narrow", ends, 0, 0, groups - 1))
    group = build("aten::sum.dim_IntList", begun, [1])
    if count <= groups:
        chosen = build("aten::index_select", matrices, 0, group)
        product = build("aten::bmm", build("aten::unsqueeze", rows, 1), chosen)
        return build("aten::reshape", product, [count, columns])
    every = build("aten::matmul", build("aten::unsqueeze", rows, 0), matrices)
    place = build("aten::expand", build("aten::reshape", group, [1, count, 1]), [1, count, columns])
    return build("aten::reshape", build("aten::gather", every, 0, place), [count, columns])
