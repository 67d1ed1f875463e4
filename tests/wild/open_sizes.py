"""Nets exported with every size open that ``torch.export`` can leave open, and inputs of other sizes for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

SMALLEST = 3
"""Of a batch that is exported: one item is a size of its own for torch."""
_MORE_ITEMS, _MORE_PIXELS, _MORE_TOKENS = 2, 32, 3


def exported(module: nn.Module, inputs: Sequence[Tensor]) -> ExportedProgram:
    """The program; torch decides which sizes stay open."""
    sizes = tuple(dict.fromkeys(range(x.dim()), Dim.AUTO) for x in inputs)
    named = _named_inputs(module)
    by_argument = (*sizes[:named], sizes[named:]) if len(sizes) > named else sizes
    return torch.export.export(module, tuple(inputs), dynamic_shapes=by_argument)


def other_inputs(program: ExportedProgram, inputs: Sequence[Tensor]) -> list[list[Tensor]]:
    """Inputs with another value for each open size by itself, of those that the program allows."""
    shapes = _shapes(program)
    known = {symbol: value for shape, x in zip(shapes, inputs, strict=True) for symbol, value in _known(shape, x)}
    found = []
    for symbol, value in known.items():
        places = [(x, dim) for shape, x in zip(shapes, inputs, strict=True) for dim in _places(shape, symbol)]
        value += min(_more(x, dim) for x, dim in places)
        bounds = program.range_constraints.get(symbol)
        if bounds is not None and not bounds.lower <= value <= bounds.upper:
            continue
        found.append([_of_sizes(x, shape, {**known, symbol: value}) for x, shape in zip(inputs, shapes, strict=True)])
    return found


def _named_inputs(module: nn.Module) -> int:
    """How many inputs come before ``*inputs``, which torch.export has as one."""
    kinds = [each.kind for each in signature(module.forward).parameters.values()]
    return kinds.index(Parameter.VAR_POSITIONAL) if Parameter.VAR_POSITIONAL in kinds else len(kinds)


def _shapes(program: ExportedProgram) -> list[tuple[Any, ...]]:
    names = set(program.graph_signature.user_inputs)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    return [tuple(node.meta["val"].shape) for node in nodes]


def _known(shape: Sequence[Any], x: Tensor) -> list[tuple[Any, int]]:
    """Sizes that are a symbol by themselves; what others are made of is one of these."""
    sizes = zip(shape, x.shape, strict=True)
    return [(size.node.expr, value) for size, value in sizes if _is_open(size) and size.node.expr.is_Symbol]


def _places(shape: Sequence[Any], symbol: Any) -> list[int]:
    return [dim for dim, size in enumerate(shape) if _is_open(size) and symbol in size.node.expr.free_symbols]


def _is_open(size: object) -> bool:
    return isinstance(size, torch.SymInt)


def _more(x: Tensor, dim: int) -> int:
    if dim == 0:
        return _MORE_ITEMS
    return _MORE_PIXELS if x.dim() >= 4 and dim >= 2 else _MORE_TOKENS


def _of_sizes(x: Tensor, shape: Sequence[Any], values: Mapping[Any, int]) -> Tensor:
    sizes = [int(size.node.expr.subs(values)) if _is_open(size) else size for size in shape]
    torch.manual_seed(sum(sizes))
    if x.is_floating_point():
        return torch.randn(sizes, dtype=x.dtype)
    if x.dtype == torch.bool:
        return torch.ones(sizes, dtype=torch.bool)
    return torch.randint(int(x.min()), int(x.max()) + 1, sizes, dtype=x.dtype)
