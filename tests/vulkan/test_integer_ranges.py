"""What the integers of a tensor can be."""

from __future__ import annotations

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.compile.integer_ranges import IntegerRanges


def test_no_integers_fit_anywhere() -> None:
    some, none = Value.of_tensor(torch.int64, (5,)), Value.of_tensor(torch.int64, (0,))
    made = Value.of_tensor(torch.int64, (0, 3))
    ranges = IntegerRanges({some: (0, 6)})
    assert ranges.of(none) == (0, 0)
    ranges.record(Node.call("aten::bincount", (some, None, 0), (made,)), floats_fit=True)
    assert ranges.of(made) == (0, 0)
    assert ranges.of(some) == (0, 6)
