"""Rows that no call can come to, because earlier ones decide all that they are about."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache

from mobopt.ops.targets.row import Row


def shadowed(rows: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """Each row that is never asked about one of its operators, with that operator.

    An earlier row decides all that a later one is about where it covers the release and the same calls (those with
    tensors that fit the GPU, over its limit, or all; quantised or not), and its condition is a part of the later one's:
    it has none, or all operands of its ``and`` are operands of the other's.
    """
    seen: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        for operator in row.operators:
            earlier = [other for other in seen[operator] if _is_wider(other, row)]
            if all(any(other.covers(release) for other in earlier) for release in row.releases):
                yield row, operator
            seen[operator].append(row)


def _is_wider(earlier: Row, later: Row) -> bool:
    sees_same = earlier.sees_misfits or (earlier.over_limit == later.over_limit and not later.sees_misfits)
    sees_same &= earlier.any_dtype or earlier.quantized == later.quantized
    return sees_same and _conjuncts(earlier.when) <= _conjuncts(later.when)


@cache
def _conjuncts(condition: str) -> frozenset[str]:
    if not condition:
        return frozenset()
    tree = ast.parse(" ".join(condition.split()), mode="eval").body
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    return frozenset(map(ast.unparse, parts))
