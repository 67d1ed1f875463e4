"""Quantiles, by tables of where they lie among so many sorted elements.

Source: ``aten/src/ATen/native/Sorting.cpp``. Since 2.14 torch computes places in float64, which devices seldom have;
fractions and lengths are known before a run, so the host does, and tables hold for each count of numbers what it found.
"""

from __future__ import annotations

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes

_LARGEST_TABLE = 2**22
"""Elements of the tables of one operator; torch sorts no more than 16 million."""
_ROUNDED = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}


@decomposes("aten::quantile", "aten::quantile.scalar", "aten::nanquantile", "aten::nanquantile.scalar")
def quantile(build: NodeBuilder, node: Node) -> Value | None:
    """Elements at fractions of a sorted line, or between two of them; NaN where there is one, unless it is left out."""
    fractions, skips_nan = _fractions(node["q"]), node.op == "aten::nanquantile"
    x = _lines(build, node["self"], node["dim"])
    length = x.sizes[-1]
    if x.numel == 0 or x.dtype != torch.float32 or fractions is None:
        return None
    if fractions.numel() * (length if skips_nan else 1) > _LARGEST_TABLE:
        return None
    line, _ = build.all("aten::sort.stable", x, stable=True, dim=-1, descending=False)
    if skips_nan:
        numbers = build("aten::sum.dim_IntList", build("aten::eq.Tensor", line, line), [-1], False)
        last = build("aten::clamp_min", build("aten::sub.Scalar", numbers, 1), 0)
        made = _between(build, node, line, _places(fractions, torch.arange(length), node["interpolation"]), last)
    else:
        made = _between(build, node, line, _places(fractions, torch.tensor(length - 1), node["interpolation"]), None)
        largest = build("aten::narrow", line, -1, length - 1, 1)
        made = build("aten::where.self", build("aten::isnan", largest), largest, made)
    if fractions.dim():
        made = build("aten::permute", made, [made.rank - 1, *range(made.rank - 1)])
    return build("aten::reshape", made, list(node.output.sizes))


def _fractions(given: Value | float) -> torch.Tensor | None:
    """Fractions that are known, as float64; None also for those that torch refuses, as the CPU will."""
    elements = given.elements if isinstance(given, Value) else torch.tensor(given, dtype=torch.float32)
    if elements is None or elements.dim() > 1 or not ((elements >= 0) & (elements <= 1)).all():
        return None
    return elements.double()


def _lines(build: NodeBuilder, x: Value, dim: int | None) -> Value:
    """The tensor with the lines that are sorted in its last dimension."""
    if dim is None or x.rank == 0:
        return build("aten::reshape", x, [-1])
    dim %= x.rank
    return build("aten::permute", x, [*(d for d in range(x.rank) if d != dim), dim])


def _places(fractions: torch.Tensor, last: torch.Tensor, interpolation: str) -> list[torch.Tensor]:
    """The places of the elements below and above, and how far it is from one to the other; ``[counts, fractions]``."""
    ranks = fractions.reshape(-1) * last.unsqueeze(-1)
    if interpolation in _ROUNDED:
        return [_ROUNDED[interpolation](ranks).long()]
    below = ranks.floor()
    weight = torch.full_like(ranks, 0.5) if interpolation == "midpoint" else ranks - below
    return [below.long(), ranks.ceil().long(), weight.float()]


def _between(build: NodeBuilder, node: Node, line: Value, tables: list[torch.Tensor], last: Value | None) -> Value:
    """What lies at the places of tables, in the row of which the last number of each line tells, if it does."""
    known = [Value.of_elements(table) for table in tables]
    if last is None:
        chosen = [build("aten::index_select", line, -1, places) for places in known[:2]]
        weights = known[2:]
    else:
        rows = [build("aten::index.Tensor", table, [last]) for table in known]
        chosen = [build("aten::gather", line, -1, places) for places in rows[:2]]
        weights = rows[2:]
    return build("aten::lerp.Tensor", *chosen, *weights) if weights else chosen[0]
