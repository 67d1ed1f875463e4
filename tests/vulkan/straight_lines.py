"""Straight lines from text, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from mobopt.ir import Graph, parse_graph


def line_of(lines: Sequence[str], tensors: Mapping[str, Tensor], given: str, returned: str) -> Graph:
    """A graph of nodes, a line each, with constants before them.

    Args:
        lines: as a graph's text has them.
        tensors: the constants, by name.
        given: the inputs, with their types.
        returned: the outputs.
    """
    constants = [
        f"%{name} : Float({', '.join(map(str, value.shape))}) = prim::Constant[value=<Tensor>]()"
        for name, value in tensors.items()
    ]
    body = "".join(f"  {line}\n" for line in (*constants, *lines))
    return parse_graph(f"graph({given}):\n{body}  return ({returned})\n", dict(tensors))
