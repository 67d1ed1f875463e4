"""Graphs as text before and after a rewrite."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping

import torch

from mobopt.ir import Graph, named_constants, parse_graph, print_graph, verify_graph

SIZES = (2, 5, 7, 6)
F = "Float(2, 5, 7, 6)"


def graph_of(text: str, constants: Mapping[str, torch.Tensor] | None = None) -> Graph:
    """A graph; ``F`` is short for the usual type."""
    return parse_graph(re.sub(r": F\b", f": {F}", textwrap.dedent(text)), constants)


def text_of(graph: Graph) -> str:
    """The text of a graph, which must be sound and read as it prints."""
    verify_graph(graph)
    text = print_graph(graph)
    assert print_graph(parse_graph(text, named_constants(graph))) == text
    return print_graph(graph, digests=False).replace(f": {F}", ": F")


def expect(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")
