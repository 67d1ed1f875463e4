"""Numbers of Python in traces, which hold them as tensors without dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from mobopt.passes.number_operands import NumberKey, number_key

_NARROWEST = {torch.float64: torch.float16, torch.int64: torch.int8}
"""Of the dtypes in which traces hold numbers: one that a number leaves what it is, and a tensor does not."""


def traced_numbers(module: torch.jit.ScriptModule) -> frozenset[NumberKey]:
    """The constants of a module that were numbers when it was traced, by dtype and element.

    torch remembers it of a tensor for as long as the process that traced it runs, and computes with them as with
    numbers; what it saves doesn't tell. Constants that are equal to one that was a tensor are left out.
    """
    numbers, tensors = set[NumberKey](), set[NumberKey]()
    for graph in _graphs(module):
        for tensor in _constants(graph):
            (numbers if _is_number(tensor) else tensors).add(number_key(tensor))
    return frozenset(numbers - tensors)


def _graphs(module: torch.jit.ScriptModule | torch.jit.ScriptFunction[Any, Any]) -> Iterator[Any]:
    """The graphs of all methods; a traced function has one."""
    if isinstance(module, torch.jit.ScriptFunction):
        yield module.graph
        return
    for part in module.modules():
        compiled: Any = part._c
        yield from (compiled._get_method(name).graph for name in compiled._method_names())


def _constants(block: Any) -> Iterator[torch.Tensor]:
    for node in block.nodes():
        for inner in node.blocks():
            yield from _constants(inner)
        if node.kind() == "prim::Constant" and node.hasAttribute("value") and node.kindOf("value") == "t":
            tensor = node.t("value")
            if tensor.dim() == 0 and tensor.dtype in _NARROWEST:
                yield tensor


def _is_number(tensor: torch.Tensor) -> bool:
    narrow = _NARROWEST[tensor.dtype]
    return torch.result_type(tensor, torch.zeros((), dtype=narrow)) == narrow
