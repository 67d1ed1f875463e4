"""What is refused for its elements, which are known only when a call runs."""

from __future__ import annotations

import torch

from mobopt.ir import Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder


def unless(build: NodeBuilder, is_wrong: Value, value: Value) -> Value:
    """A value; if any element of another one is true, the call ends in the error of an index out of range."""
    place = build("aten::reshape", build("aten::to.dtype", build("aten::any", is_wrong), torch.int64), [1])
    nothing = build("aten::index_select", Value.of_elements(torch.zeros(1, dtype=value.dtype)), 0, place)
    return build("aten::add.Tensor", value, build("aten::reshape", nothing, []))
