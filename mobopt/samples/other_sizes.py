"""Inputs of other sizes than the example's, where these were declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from mobopt.ir import Program
from mobopt.ir.dimensions import Dimension
from mobopt.ir.guards import closed_guards
from mobopt.passes.declared_sizes import declare_sizes
from mobopt.runtimes.bounds import DeclaredBounds


def inputs_of_other_sizes(
    program: Program, method: str, arguments: Sequence[Any], bounds: DeclaredBounds
) -> Iterator[list[Any]]:
    """A method's arguments with the least sizes that were declared, and with sizes one larger than the example's.

    Elements are those of the example again and again, so that indices stay in range; containers are left as they are.

    Args:
        program: the model, which may have been exported with ranges.
        method: the method's name.
        arguments: of the example, without self.
        bounds: the ranges that a user declares, if any.
    """
    symbols = closed_guards()
    sizes = declare_sizes(program, method, arguments, bounds, symbols).sizes
    if not sizes:
        return
    least = {item.name: item.lower for item in symbols.symbols.values()}
    larger = {name: min(size + 1, symbols.symbols[name].upper) for name, size in symbols.examples.items()}
    values = program.methods[method].inputs[1:]
    for chosen in (least, larger):
        if chosen != symbols.examples:
            pairs = zip(values, arguments, strict=False)
            yield [
                _resized(argument, sizes[value], chosen) if value in sizes else argument for value, argument in pairs
            ]


def _resized(tensor: torch.Tensor, sizes: Sequence[Dimension], chosen: Mapping[str, int]) -> torch.Tensor:
    for dim, size in enumerate(sizes):
        wanted = size if isinstance(size, int) else int(size.substitute(chosen))
        copies = max(-(-wanted // max(tensor.size(dim), 1)), 1)
        tensor = torch.cat([tensor] * copies, dim).narrow(dim, 0, wanted)
    return tensor.contiguous()
