"""How well two results agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

TIMES_ROUNDING = 4
"""How much farther from the result of float64 the optimised model may be than the model itself: sums in another order
round in another way."""
RELATIVE_TOLERANCE = 1e-4
"""Of the largest magnitude of the expected output, for float32."""


@dataclass(frozen=True)
class Agreement:
    """The largest difference between two results."""

    absolute: float
    relative: float
    """``absolute`` over the largest magnitude of the tensor that it is in."""
    is_rounding: bool = False
    """Whether a larger difference is that of single precision: both results are as far from that of float64."""

    @property
    def agrees(self) -> bool:
        """Whether the difference is within the tolerance, or one that single precision makes anyway."""
        return self.relative <= RELATIVE_TOLERANCE or self.is_rounding


_NONE = Agreement(0.0, 0.0)
_TOTAL = Agreement(float("inf"), float("inf"))


def compare(actual: Any, expected: Any) -> Agreement:
    """Compare two results, also nests of tuples, lists and dictionaries; other structure or shapes: infinite."""
    pairs = list(_pairs(actual, expected))
    return max((_compare_leaves(*pair) for pair in pairs), key=lambda item: item.relative, default=_NONE)


def _pairs(actual: Any, expected: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)) and len(actual) == len(expected):
        for left, right in zip(actual, expected, strict=True):
            yield from _pairs(left, right)
    elif isinstance(expected, dict) and isinstance(actual, dict) and actual.keys() == expected.keys():
        for key, right in expected.items():
            yield from _pairs(actual[key], right)
    else:
        yield actual, expected


def _compare_leaves(actual: Any, expected: Any) -> Agreement:
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        same = type(actual) is type(expected) and actual == expected
        return _NONE if same else _TOTAL
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return _TOTAL
    if expected.numel() == 0:
        return _NONE
    left, right = actual.detach().double(), expected.detach().double()
    equal = (left == right) | (left.isnan() & right.isnan())
    difference = torch.where(equal, 0.0, (left - right).abs()).nan_to_num(nan=float("inf")).max().item()
    finite = right[right.isfinite()].abs()
    scale = finite.max().item() if finite.numel() else 0.0
    return Agreement(difference, difference / scale if scale else (0.0 if difference == 0 else float("inf")))
